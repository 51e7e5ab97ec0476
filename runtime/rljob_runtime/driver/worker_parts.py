"""Makes the parts that have processes on accelerators, ranks and engines, and those that bring weights from
one to the other.

Guarantees: nothing is started here. What is made is ended with the assembly's stack, but for the fleet, which
the caller starts and ends.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from rljob_api import RLJob
from rljob_runtime.driver.job_inputs import Assembly
from rljob_runtime.driver.placement import RankPlacement
from rljob_runtime.driver.ranks import RayTrainer
from rljob_runtime.driver.weight_delivery import WeightDelivery
from rljob_runtime.fleet.fleet import Fleet
from rljob_runtime.fleet.member import FleetTimes
from rljob_runtime.fleet.shared_devices import SharedDevices
from rljob_runtime.fleet.workers import RolloutWorkers
from rljob_runtime.queue.service import QueueService
from rljob_runtime.rollout.pool import EnginePool
from rljob_runtime.rollout.weight_sync import EngineSync, Pull, Push
from rljob_runtime.routing.choose import policy_of
from rljob_runtime.site.own_start import StartPart
from rljob_runtime.trace.analyse.worker_starts import WorkerStart
from rljob_runtime.trace.record.event_ranks import EventRanks
from rljob_runtime.weights.route import WeightRoute


@dataclass(frozen=True)
class WorkerParts:
    """The parts of `Parts` with these names."""

    pool: EnginePool
    trainer: RayTrainer
    placement: RankPlacement
    sync: Push | Pull
    delivery: WeightDelivery
    fleet: Fleet
    starts: dict[str, WorkerStart]


def worker_parts(
    assembly: Assembly, queue: QueueService, route: WeightRoute, shared: SharedDevices | None
) -> WorkerParts:
    """Ranks, engines, and the way of weights between them; `shared`: the accelerators that they share, None
    where each has its own."""
    inputs, site, stop, spawn = assembly.inputs, assembly.site, assembly.stop, assembly.spawn
    job, settings, timeouts = inputs.job, inputs.settings, inputs.job.spec.training.timeouts
    # The pool and the fleet know each other: an engine's death is the fleet's to answer.
    pool = EnginePool(time.monotonic, lambda slot, why: fleet.lost(slot, why), policy_of(job.spec))
    event_ranks = EventRanks()
    starts: dict[str, WorkerStart] = {}

    def started(worker: str, pool: str, found: Sequence[StartPart]) -> None:
        if found:
            starts[worker] = WorkerStart(worker, pool, tuple(found))

    logs = inputs.options.folder if site.one_machine else None
    early_ranks = {name: actor for name, actor in site.early.items() if name.startswith("trainer-")}
    trainer = RayTrainer(
        job, settings, inputs.options, queue, inputs.events_folder, event_ranks, route, shared, started, logs,
        early_ranks,
    )  # fmt: skip
    assembly.stack.push_async_callback(trainer.close)
    placement = RankPlacement(
        site, settings.trainer_ranks // job.spec.pools.trainer.replicas,
        job.spec.run_policy.start_deadline_seconds, lambda: stop.asked,
    )  # fmt: skip
    engines = EngineSync(pool, timeouts.weight_update_seconds, timeouts.stall_seconds)
    sync = Push(engines, settings.in_flight) if settings.in_flight else Pull(engines, spawn)
    delivery = WeightDelivery(trainer, sync, pool, settings.bound)
    workers = RolloutWorkers(
        job, inputs.tokenizer, shared, logs, inputs.events_folder, event_ranks, route,
        site.keyring, site.early, lambda: pool.step, started,
    )  # fmt: skip
    assembly.stack.callback(workers.close)
    fleet = Fleet(
        workers, pool, sync, delivery.send_again, delivery.may_join, site, spawn, assembly.say,
        _fleet_times(job), time.monotonic,
    )  # fmt: skip
    return WorkerParts(pool, trainer, placement, sync, delivery, fleet, starts)


def _fleet_times(job: RLJob) -> FleetTimes:
    timeouts = job.spec.training.timeouts
    return FleetTimes(
        pods=job.spec.run_policy.start_deadline_seconds,
        start=timeouts.start_seconds,
        load=timeouts.weight_update_seconds,
    )
