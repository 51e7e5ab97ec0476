"""The workers of a job on one machine, begun while it is not known yet whether the job is right.

Guarantees: such a worker has what is asked for with a worker of its name later; a job that is refused ends
them with its Ray. A machine with fewer cores than workers begins rollout workers alone, and with fewer than
those none; the trainer's ranks are begun all or not at all.
"""

import os
from collections.abc import Iterator
from typing import Any

from rljob_api import RLJob
from rljob_runtime.devices import Devices
from rljob_runtime.engines.early_worker import start_early_worker
from rljob_runtime.fleet.shared_devices import shared_devices
from rljob_runtime.fleet.worker_options import POOLS, rank_options, worker_options
from rljob_runtime.site import one_machine as local_ray
from rljob_runtime.site.actor_devices import visible_ids
from rljob_runtime.trainer.early_rank import start_early_rank


def early_names(job: RLJob, cores: int) -> Iterator[tuple[str, str]]:
    """Pool and name of each worker that is begun early on a machine with so many cores. Pure."""
    pools = {pool: getattr(job.spec.pools, field).replicas for pool, field in POOLS.items()}
    # The engine on torch imports nothing that the driver's own start does not wait for as well.
    if job.spec.training.rollout.engine.torch is not None:
        return
    # Each keeps a core busy with imports, which the check of the job and the driver need, too.
    pools["trainer"] = job.spec.trainer_ranks
    if cores < sum(pools.values()):
        del pools["trainer"]
    if cores < sum(pools.values()):
        return
    for pool, count in pools.items():
        for number in range(count):
            yield pool, f"{pool}-{number}"


def begin_early_workers(job: RLJob, share: bool) -> dict[str, Any]:
    """Begin them on the Ray that was started; their actors, by name. `share` as in
    `shared_devices`."""
    import ray

    kind = Devices.of(job.spec.accelerator)
    shared = shared_devices(job, visible_ids(kind, local_ray.devices()), share)
    node: str = ray.get_runtime_context().get_node_id()
    found = {}
    for pool, name in early_names(job, len(os.sched_getaffinity(0))):
        if pool == "trainer":
            rank = int(name.rpartition("-")[2])
            found[name] = start_early_rank(rank, **rank_options(job, rank, node, shared))
            continue
        threads = getattr(job.spec.pools, POOLS[pool]).threads
        options = worker_options(job, pool, name, node, shared)
        found[name] = start_early_worker(
            job.spec.accelerator, job.spec.training.model.dtype, threads, **options
        )
    return found
