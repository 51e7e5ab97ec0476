"""What the cluster's KubeRay understands.

Guarantees: nothing is rendered that an older KubeRay would drop without a word.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

OLDEST = (1, 4)
"""Releases before it ask for fields that are not rendered here."""


class UnsupportedKubeRay(ValueError):
    """The cluster's KubeRay cannot run RLJobs; the message says why, for people."""


@dataclass(frozen=True, slots=True)
class KubeRay:
    """Capabilities of a KubeRay."""

    group_resources: bool
    """Groups have `resources`: logical Ray resources by name (KubeRay 1.5 and newer). Otherwise they go into
    `rayStartParams`; a schema without the field prunes it."""

    @classmethod
    def of_version(cls, version: str) -> "KubeRay":
        """Capabilities of a release, such as `1.6.2` or `v1.6.2`; raises `UnsupportedKubeRay`."""
        found = re.match(r"^v?(\d+)\.(\d+)(\.|$)", version)
        if not found:
            raise UnsupportedKubeRay(f"{version} is not a version of KubeRay, such as 1.6.2")
        release = (int(found[1]), int(found[2]))
        if release < OLDEST:
            raise UnsupportedKubeRay(f"KubeRay {version} is too old: RLJobs need 1.4 or newer")
        return cls(group_resources=release >= (1, 5))

    @classmethod
    def of_schema(cls, openapi: Mapping[str, Any]) -> "KubeRay":
        """Capabilities by the schema that the API server serves (`/openapi/v3/apis/ray.io/v1`), whatever the
        version of the controller: the schema decides what is pruned. Raises `UnsupportedKubeRay`."""
        for schema in _schemas(openapi):
            spec = _properties(schema).get("spec", {})
            group = _properties(_properties(spec).get("workerGroupSpecs", {}).get("items", {}))
            # By fields that are needed: a schema has no version of the controller in it.
            if "template" in group and "scaleStrategy" in group:
                return cls(group_resources="resources" in group)
        raise UnsupportedKubeRay(
            "the cluster's RayCluster has no worker groups as of ray.io/v1: install KubeRay"
        )


def _schemas(openapi: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for schema in openapi.get("components", {}).get("schemas", {}).values():
        kinds = schema.get("x-kubernetes-group-version-kind", ())
        if any((kind.get("group"), kind.get("kind")) == ("ray.io", "RayCluster") for kind in kinds):
            yield schema


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = schema.get("properties", {})
    return found
