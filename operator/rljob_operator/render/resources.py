"""What containers ask of Kubernetes, and what their Ray nodes offer.

Guarantees: resources that cannot be overcommitted have equal requests and limits, as Kubernetes demands;
numbers for Ray are given in the one place that the cluster's KubeRay reads.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from rljob_api.kubernetes import Resources
from rljob_api.pools import Pool
from rljob_operator.render.kuberay import KubeRay


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a container gets of a resource of which the job says neither request nor limit."""

    requests: Mapping[str, str]
    limits: Mapping[str, str]

    def without(self, names: Collection[str]) -> "Defaults":
        """These defaults without the resources that are named."""
        sides = (self.requests, self.limits)
        return Defaults(*({name: side[name] for name in side if name not in names} for side in sides))


_MEMORY_REQUEST = "1Gi"
"""Memory request of Ray's containers: a token amount, so that the scheduler does not take the pod for one
without memory."""
_HEAD_MEMORY = "4Gi"
_DRIVER_MEMORY = "16Gi"
_REWARDS_MEMORY = "16Gi"
_CPU_WORKER_MEMORY = "8Gi"
_MEMORY_GI_PER_DEVICE = 256
_TRIAL_MILLIS = 100
"""For each thread of a job without devices: such jobs are for trying out, several on a small node."""
_HEAD_MILLIS = 250
"""For each container of the head beside workers with devices."""

_OBJECT_STORE_BYTES = 100 * 2**20
"""Control messages only: samples and weights do not go through Ray's object store, which would else reserve
30 % of the memory."""


def overcommitted(resource: str) -> bool:
    """Whether requests of the resource may be below its limits."""
    return resource in ("cpu", "memory", "ephemeral-storage")


def head_defaults(has_devices: bool) -> Defaults:
    """Defaults of the head's Ray container, in a job whose workers have devices or not."""
    return _defaults(f"{_HEAD_MILLIS if has_devices else _TRIAL_MILLIS}m", _HEAD_MEMORY)


def driver_defaults(has_devices: bool) -> Defaults:
    """Defaults of the driver's container, which holds prompts and queued samples."""
    return _beside_the_head(has_devices, "768Mi", _DRIVER_MEMORY)


def rewards_defaults(has_devices: bool) -> Defaults:
    """Defaults of the container with the processes of the reward function."""
    return _beside_the_head(has_devices, "256Mi", _REWARDS_MEMORY)


def worker_defaults(pool: Pool, has_devices: bool) -> Defaults:
    """Defaults of a worker's Ray container.

    With devices, the threads beside them are not to wait for a CPU. No CPU has a limit, for being throttled
    is worse than sharing. The bound on memory is what nodes have for each device, so that one pod does not
    take down its neighbours."""
    if not has_devices:
        cpu, memory = f"{_TRIAL_MILLIS * pool.cpus_per_worker}m", _CPU_WORKER_MEMORY
    else:
        cpu, memory = str(pool.cpus_per_worker), f"{_MEMORY_GI_PER_DEVICE * pool.accelerators_per_worker}Gi"
    return _defaults(cpu, memory)


def container_resources(
    asked: Resources, defaults: Defaults, devices: Mapping[str, int]
) -> dict[str, dict[str, str]]:
    """`resources` of a container: what is asked for, `defaults` for what is in neither requests nor limits
    (a limit alone is a request too), and the devices."""
    requests, limits = dict(asked.requests), dict(asked.limits)
    missing = defaults.without({*asked.requests, *asked.limits})
    requests.update(missing.requests)
    limits.update(missing.limits)
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
    `GPU`, and resources of other names. KubeRay refuses a group that says them in both.

    No node offers a CPU: no actor of ours asks for one, and Ray keeps an idle process for each. Nor does a
    process read logs from files: they go to the containers' output.
    """
    units = {"CPU": 0, **units}
    started = {
        **(parameters or {}),
        "include-log-monitor": "0",  # KubeRay leaves out flags that are "false"
        "object-store-memory": str(_OBJECT_STORE_BYTES),
    }
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


def _beside_the_head(has_devices: bool, request: str, memory: str) -> Defaults:
    """Of a container of ours in the head's pod. In a job for trying out, two share what others have alone."""
    millis = _HEAD_MILLIS if has_devices else _TRIAL_MILLIS // 2
    return Defaults({"cpu": f"{millis}m", "memory": request}, {"memory": memory})


def _defaults(cpu: str, memory: str) -> Defaults:
    return Defaults({"cpu": cpu, "memory": _MEMORY_REQUEST}, {"memory": memory})
