"""Makes the parts of a job, and takes them down: the one place that knows how they are connected.

Guarantees: nothing heavy starts before data, tokenizer and model are there; whatever happens, each part that
was made is ended, in the reverse order. Rollout workers, which take the longest, begin to start as soon as
they can; ranks are started later, by the parts themselves.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from rljob_runtime.devices import Devices
from rljob_runtime.driver.activity import JobActivity
from rljob_runtime.driver.export import keep_model_files
from rljob_runtime.driver.job_inputs import Assembly, JobInputs
from rljob_runtime.driver.model_folder import engine_model
from rljob_runtime.driver.parts import Parts
from rljob_runtime.driver.sample_parts import SampleParts, sample_parts
from rljob_runtime.driver.stop import StopRequest
from rljob_runtime.driver.trainer_start import TrainerStart
from rljob_runtime.driver.worker_parts import WorkerParts, worker_parts
from rljob_runtime.fleet.shared_devices import shared_devices
from rljob_runtime.queue.service import QueueService
from rljob_runtime.rewards.calls import calls_of
from rljob_runtime.rewards.pool import RewardPool
from rljob_runtime.rollout.pool import EnginePool
from rljob_runtime.short_files import keep_short, shorten_all
from rljob_runtime.site import one_machine as local_ray
from rljob_runtime.site.actor_devices import visible_ids
from rljob_runtime.site.process_log import logs_in
from rljob_runtime.site.process_use import ProcessUse, UseSampler
from rljob_runtime.site.site import Site
from rljob_runtime.trace.record.event_log import EventLog
from rljob_runtime.weights.route import WeightRoute, open_route

log = logging.getLogger(__name__)


@asynccontextmanager
async def assembled(
    inputs: JobInputs, site: Site, stop: StopRequest, say: Callable[[str], None]
) -> AsyncIterator[Parts]:
    """The parts of a job at `site`; they are ended when the context is left. `say` tells a person, in one
    line."""
    job = inputs.job
    devices = visible_ids(Devices.of(job.spec.accelerator), local_ray.devices())
    shared = shared_devices(job, devices, inputs.options.share)
    events = EventLog(inputs.events_folder, 0, "driver", "driver")
    async with AsyncExitStack() as stack:
        # Entered first and left last: it waits for the tasks that the parts have started, which end with the
        # parts. A task that fails cancels the body of this context, and so ends the job.
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        assembly = Assembly(inputs, site, stop, events, stack, tasks.create_task, say)
        if site.one_machine:
            # Runs when all processes that write them have ended.
            stack.callback(_shorten_logs, inputs.options.folder)
        route = await _route(assembly, shared is not None)
        made: list[Parts] = []
        queue = _queue(assembly, made)
        rewards = _rewards(assembly)
        workers = worker_parts(assembly, queue, route, shared)
        _sample_use(assembly, workers.pool)
        if site.one_machine:
            keeper = assembly.spawn(_keep_logs_short(inputs.options.folder))
            stack.callback(keeper.cancel)
        # Runs after `fleet.close`: what engines did last is written too.
        stack.callback(_end_records, made)
        # Ends before the trainer does, whose weights a worker that is just starting would miss.
        stack.push_async_callback(workers.fleet.close)
        # Engines take the longest to start, and wait for nothing of what follows.
        workers.fleet.adjust()
        await queue.start()
        await rewards.start()
        parts = _parts(assembly, queue, rewards, workers, sample_parts(assembly, queue, rewards, workers))
        made.append(parts)
        yield parts


def _parts(
    assembly: Assembly,
    queue: QueueService,
    rewards: RewardPool,
    workers: WorkerParts,
    samples: SampleParts,
) -> Parts:
    """All of them as one value."""
    inputs, site, say = assembly.inputs, assembly.site, assembly.say
    trainer, placement = workers.trainer, workers.placement
    return Parts(
        site=site,
        stop=assembly.stop,
        events=assembly.events,
        lengths=samples.lengths,
        pool=workers.pool,
        queue=queue,
        outbox=samples.outbox,
        rollouter=samples.rollouter,
        rewards=samples.rewards,
        trainer=trainer,
        placement=placement,
        start_trainer=TrainerStart(trainer, placement, inputs.checkpoints, site.one_machine, say),
        says=samples.says,
        sync=workers.sync,
        delivery=workers.delivery,
        fleet=workers.fleet,
        activity=JobActivity(
            workers.pool, workers.fleet, samples.rollouter, partial(_scored, inputs, rewards)
        ),
        spawn=assembly.spawn,
        say=say,
        evaluations=samples.evaluations,
        curriculum=samples.curriculum,
        starts=workers.starts,
    )


async def _route(assembly: Assembly, shared: bool) -> WeightRoute:
    """The way of the weights from the trainer to the engines, once the initial model is there; `shared`:
    whether workers share accelerators."""
    inputs, site = assembly.inputs, assembly.site
    job, options = inputs.job, inputs.options
    # In threads: a large model takes long to write, and the loop has signals to answer meanwhile.
    with inputs.start.part("model"):
        model_folder = await asyncio.to_thread(engine_model, job, options, inputs.tokenizer)
    adapter = job.spec.training.adapter
    await asyncio.to_thread(keep_model_files, model_folder, inputs.tokenizer, options.folder, adapter)
    address = None if site.one_machine else site.address
    route = await asyncio.to_thread(
        open_route, job, model_folder, options.folder, address, site.keyring, shared
    )
    assembly.stack.callback(route.close)
    return route


def _queue(assembly: Assembly, made: Sequence[Parts]) -> QueueService:
    """The queue, to be started. A host that takes the place of a lost one gets the groups again that wait in
    the outbox of the parts, once they are `made`."""
    site = assembly.site

    async def refill() -> None:
        for parts in made:
            count = await parts.outbox.refill()
            assembly.say(f"the queue host was lost and is back; {count} waiting groups were put again")

    queue = QueueService(
        assembly.inputs.settings.capacity_samples, site.home, None if site.one_machine else site.address,
        site.keyring, assembly.spawn, refill,
    )  # fmt: skip
    assembly.stack.push_async_callback(queue.close)
    return queue


def _rewards(assembly: Assembly) -> RewardPool:
    """The reward functions in worker processes, to be started."""
    inputs = assembly.inputs
    training = inputs.job.spec.training
    rewards = RewardPool(
        calls_of(training.reward),
        timeout_seconds=training.reward.timeout_seconds,
        workers=training.reward.workers,
        search_path=[inputs.options.manifest_folder],
        log=inputs.rewards_log,
        host=inputs.options.reward_host,
    )
    assembly.stack.push_async_callback(rewards.close)
    return rewards


async def _keep_logs_short(folder: Path) -> None:
    """Until cancelled, keep what engines and ranks write to the run's folder within its bounds."""
    try:
        await keep_short(partial(logs_in, folder))
    except OSError as error:
        log.warning("the logs of engines and ranks are not kept short any more: %s", error)


def _shorten_logs(folder: Path) -> None:
    """Once more, of what was written since the last look."""
    try:
        shorten_all(partial(logs_in, folder))
    except OSError as error:
        log.warning("the logs of engines and ranks could not be kept short: %s", error)


def _sample_use(assembly: Assembly, pool: EnginePool) -> None:
    """Record what the driver takes of the machine, where the job records events. Of the driver alone: on one
    machine the other workers are its children, and tell themselves."""
    if assembly.inputs.events_folder is None:
        return
    sampler = UseSampler(
        ProcessUse(children=False),
        lambda began, seconds, values: assembly.events.add("usage", pool.step, began, seconds, **values),
    )
    sampler.start()
    assembly.stack.callback(sampler.stop)


def _end_records(made: Sequence[Parts]) -> None:
    """Write what the job recorded, if it got as far as having all of its parts."""
    for parts in made:
        parts.flush_records()
        log.info("at the end: %s", parts.rollouter.counts)


def _scored(inputs: JobInputs, rewards: RewardPool) -> int:
    """How often a reward function or a served teacher was done with a response, or the teacher was probed,
    which has a deadline of its own."""
    taught = inputs.teacher.ended + inputs.teacher.probes if inputs.teacher is not None else 0
    return rewards.counters.submitted - rewards.counters.pending + taught
