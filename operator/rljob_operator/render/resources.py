"""What containers ask of Kubernetes, and what their Ray nodes offer.

Guarantees: resources that cannot be overcommitted have equal requests and limits, as Kubernetes demands;
numbers for Ray are given in the one place that the cluster's KubeRay reads.
"""

import json
from collections.abc import Mapping
from typing import Any

from rljob_api.kubernetes import Resources
from rljob_operator.render.kuberay import KubeRay

HEAD_REQUESTS = {"cpu": "250m", "memory": "1Gi"}
"""Of the head's Ray container, where the job does not say."""
DRIVER_REQUESTS = {"cpu": "250m", "memory": "1Gi"}
"""Of the driver's container, where the head's template does not say."""

_OBJECT_STORE_BYTES = 100 * 2**20
"""Control messages only: samples and weights do not go through Ray's object store, which would else reserve
30 % of the memory."""


def overcommitted(resource: str) -> bool:
    """Whether requests of the resource may be below its limits."""
    return resource in ("cpu", "memory", "ephemeral-storage")


def container_resources(
    asked: Resources, defaults: Mapping[str, str], devices: Mapping[str, int]
) -> dict[str, dict[str, str]]:
    """`resources` of a container: what is asked for, `defaults` for what is in neither requests nor limits
    (a limit alone is a request too), and the devices."""
    requests, limits = dict(asked.requests), dict(asked.limits)
    for name, quantity in defaults.items():
        if name not in requests and name not in limits:
            requests[name] = quantity
    for name, quantity in [*asked.requests.items(), *asked.limits.items()]:
        if not overcommitted(name):
            requests.setdefault(name, quantity)
            limits.setdefault(name, quantity)
    for name, count in devices.items():
        requests[name] = limits[name] = str(count)
    sides = {"requests": requests, "limits": limits}
    return {side: amounts for side, amounts in sides.items() if amounts}


def ray_start(
    kuberay: KubeRay, units: Mapping[str, int], parameters: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """`rayStartParams` and, where KubeRay has it, `resources` of a group whose Ray nodes offer `units`:
    `CPU`, `GPU`, and resources of other names. KubeRay refuses a group that says them in both."""
    started = {**(parameters or {}), "object-store-memory": str(_OBJECT_STORE_BYTES)}
    if kuberay.group_resources:
        return {"rayStartParams": started, "resources": {name: str(count) for name, count in units.items()}}
    flags = {"CPU": "num-cpus", "GPU": "num-gpus"}
    started.update({flag: str(units[name]) for name, flag in flags.items() if name in units})
    others = {name: count for name, count in units.items() if name not in flags}
    if others:
        # The value ends up in a shell's command line: the quotes belong to it. KubeRay parses what is between
        # them, and leaves out the GPUs where that is no JSON.
        started["resources"] = f"'{json.dumps(others)}'"
    return {"rayStartParams": started}
