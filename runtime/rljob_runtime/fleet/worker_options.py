"""What Ray is asked for with the actor of a rollout worker, or of a rank of the trainer. Pure."""

from typing import Any

from rljob_api import RLJob
from rljob_runtime.devices import Devices
from rljob_runtime.fleet.shared_devices import SharedDevices
from rljob_runtime.site.actor_devices import ask_for_devices
from rljob_runtime.site.nodes import only_on
from rljob_runtime.site.site import RESOURCES

POOLS = {"fast": "fast_rollout", "heavy": "heavy_rollout"}
"""The pools' names as fields of the RLJob's model."""
BESIDE = "beside"
"""Ray's concurrency group for calls beside the one that a rank is at. Without a group, a rank takes one call
after the other."""


def worker_options(
    job: RLJob, pool: str, name: str, node: str, shared: SharedDevices | None
) -> dict[str, Any]:
    """Of the worker `name` of a pool ("fast" or "heavy"), on the Ray node with the id `node`; `shared`: the
    accelerators that workers share, None where each has its own."""
    workers = getattr(job.spec.pools, POOLS[pool])
    # Orders run beside one another and beside `wait_closed`, which is pending as long as the engine
    # lives. The Ray nodes of pods offer no CPUs, and Ray would set OMP_NUM_THREADS to 1 for an actor that
    # asks for none.
    options: dict[str, Any] = {
        "num_cpus": 0,
        "resources": {RESOURCES[pool]: 1},
        "scheduling_strategy": only_on(node),
        "runtime_env": {"env_vars": {"OMP_NUM_THREADS": str(workers.threads)}},
        "max_concurrency": 1000,
    }
    # The fleet gives the smallest free number to a worker, as the last part of its name.
    number = int(name.rpartition("-")[2])
    devices = None if shared is None else shared.of(pool, number)
    ask_for_devices(options, Devices.of(job.spec.accelerator), workers.accelerators_per_worker, devices)
    return options


def rank_options(job: RLJob, rank: int, node: str, shared: SharedDevices | None) -> dict[str, Any]:
    """Of a rank of the trainer on the Ray node with the id `node`; `shared` as in `worker_options`."""
    # The Ray nodes of pods offer no CPUs: a rank takes a unit of the pool's resource. Ray would set
    # OMP_NUM_THREADS to 1 for an actor that asks for no CPU.
    options: dict[str, Any] = {
        "num_cpus": 0,
        "resources": {"trainer": 1},
        "scheduling_strategy": only_on(node),
        "concurrency_groups": {BESIDE: 1},
        "runtime_env": {"env_vars": {"OMP_NUM_THREADS": str(job.spec.pools.trainer.threads)}},
    }
    devices = None if shared is None else shared.of("trainer", rank)
    ask_for_devices(options, Devices.of(job.spec.accelerator), 1, devices)
    return options
