"""Security contexts: the `restricted` Pod Security Standard.

Guarantees: pods run in namespaces that enforce `restricted`, unless a template or a volume asks for more.
"""

from typing import Any

USER = 1000
"""User and group of all processes; `ray` in Ray's images."""


def pod_security() -> dict[str, Any]:
    """`securityContext` of a pod. Volumes belong to the group; where a large one does already, nothing is
    changed in it."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> dict[str, Any]:
    """`securityContext` of a container."""
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def own_container_security() -> dict[str, Any]:
    """The same for containers of which it is known that they write to volumes alone."""
    return {**container_security(), "readOnlyRootFilesystem": True}
