"""The rollout workers as Ray actors, each on the node that the fleet has chosen for it."""

import itertools
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from rljob_api import RLJob
from rljob_runtime.data.tokenizer import TextTokenizer
from rljob_runtime.engines.factory import EngineSpec
from rljob_runtime.engines.fetching import FetchSpec
from rljob_runtime.engines.protocol import Engine, EngineDied
from rljob_runtime.engines.remote import RemoteEngine
from rljob_runtime.engines.rollout_worker import start_worker
from rljob_runtime.engines.sampling import sampling_of
from rljob_runtime.fleet.shared_devices import SharedDevices
from rljob_runtime.fleet.worker_options import POOLS, worker_options
from rljob_runtime.fleet.worker_spec import WorkerSpec
from rljob_runtime.groups.responses import response_seed
from rljob_runtime.net.keys import Keyring, client_keys, server_keys
from rljob_runtime.site.nodes import RayNode
from rljob_runtime.site.own_start import OnStart, of_one_start
from rljob_runtime.site.process_log import log_file
from rljob_runtime.site.scratch import Scratch, temporary
from rljob_runtime.trace.record.event_log import EventLog
from rljob_runtime.trace.record.event_ranks import EventRanks
from rljob_runtime.trace.record.worker_start import record_start
from rljob_runtime.weights.route import WeightRoute

_FACTORY = "rljob_runtime.engines.factory:make"
"""Import path of what makes the engine in the worker's process."""
_MARGIN_SECONDS = 60.0
"""By which the engine's own deadlines are later than those of the fleet and of weight updates, whose messages
name the field to raise."""
_FETCHING_FACTORY = "rljob_runtime.engines.fetching:make"
"""The same where the model or weight versions come over the network."""


class RolloutWorkers:
    """Implements the fleet's `Workers`: each start of a worker is a new process with the job's initial
    weights."""

    def __init__(
        self,
        job: RLJob,
        tokenizer: TextTokenizer,
        shared: SharedDevices | None,
        run_folder: Path | None,
        events_folder: Path | None,
        ranks: EventRanks,
        route: WeightRoute,
        keyring: Keyring,
        early: Mapping[str, Any],
        step: Callable[[], int],
        on_start: OnStart,
    ) -> None:
        """`shared`: the accelerators that workers share, None where each has its own; `run_folder`: where
        they log, on one machine; None in a cluster; `early`: actors of `early_worker` that were begun for the
        first start of the workers of these names; `step`: the one that is being trained, which labels
        events; `on_start`: whom to tell where the time of a start went."""
        self._early = dict(early)
        self._step = step
        self._on_start = on_start
        self._shared = shared
        self._job = job
        self._json = job.model_dump_json(by_alias=True, exclude_none=True)
        self._run_folder = run_folder
        self._events_folder = events_folder
        self._ranks = ranks
        self._route = route
        self._sampling = sampling_of(job, tokenizer.stop_ids)
        self._server_keys, self._client_keys = keyring.pair("engines")
        # For the workers' sockets on one machine.
        self._sockets: Scratch | None = temporary("workers") if run_folder is not None else None
        self._starts = itertools.count()
        self._specs: dict[str, WorkerSpec] = {}

    def spec(self, name: str, pool: str) -> WorkerSpec:
        """The worker of a name; the same one each time."""
        if name not in self._specs:
            limit = self._job.spec.training.rollout.max_running_requests
            events = EventLog(self._events_folder, self._ranks.of(name), name, pool)
            log = None if self._run_folder is None else log_file(self._run_folder, name)
            self._specs[name] = WorkerSpec(name, pool, limit, events, self._devices(pool), log)
        return self._specs[name]

    async def make(self, worker: WorkerSpec, node: RayNode) -> Engine:
        """Start a worker and its engine on a node. Raises `EngineDied`."""
        import ray
        from ray.exceptions import RayError

        # Of all workers, so that no two starts share a socket, a seed or a folder for what is fetched.
        number = next(self._starts)
        factory, arguments = self._engine(worker, number)
        # Port 0: the worker takes a free one, and tells which.
        address = f"tcp://{node.address}:0"
        if self._sockets is not None:
            address = f"ipc://{self._sockets.path / f'{worker.name}-{number}'}"
        asked = worker.events.clock()
        sampled = self._job.spec.accelerator if self._events_folder is not None else None
        what = factory, arguments, worker.name, address, self._server_keys, sampled, worker.log
        actor = early = self._early.pop(worker.name, None)
        if early is None:
            options = worker_options(self._job, worker.pool, worker.name, node.id, self._shared)
            actor = start_worker(*what, **options)
        try:
            timeouts = self._job.spec.training.timeouts
            engine = RemoteEngine(
                worker.name,
                actor,
                client_keys(self._client_keys),
                start_seconds=timeouts.start_seconds + _MARGIN_SECONDS,
                control_seconds=timeouts.weight_update_seconds + _MARGIN_SECONDS,
                on_usage=partial(self._used, worker.events),
            )
            if early is not None:
                await engine.begin(*what)
            # The initial weights are version 0.
            await engine.start(0)
            parts = of_one_start(engine.start_parts, asked)
            record_start(worker.events, self._step(), parts)
            self._on_start(worker.name, worker.pool, parts)
        except RayError as error:
            ray.kill(actor)
            raise EngineDied(f"engine {worker.name}: {str(error).splitlines()[0]}") from error
        # Also when the start is cancelled: the actor would keep its accelerators.
        except BaseException:
            ray.kill(actor)
            raise
        return engine

    def close(self) -> None:
        """Remove the workers' sockets."""
        if self._sockets is not None:
            self._sockets.close()

    def _used(self, events: EventLog, seconds: float, values: Mapping[str, float]) -> None:
        events.add("usage", self._step(), events.clock() - seconds, seconds, **values)

    def _engine(self, worker: WorkerSpec, number: int) -> tuple[str, dict[str, Any]]:
        """The factory of a worker's engine and its arguments."""
        spec = EngineSpec(
            job=self._json,
            pool=POOLS[worker.pool],
            model_folder=str(self._route.model_folder),
            sampling=self._sampling,
            seed=response_seed(self._job.spec.training.seed, number, 0),
        )
        arguments: dict[str, Any] = {"spec": msgspec.msgpack.encode(spec)}
        route = self._route
        if not route.fetches:
            return _FACTORY, arguments
        run_id = f"{self._job.metadata.name}-{os.getpid()}-{worker.name}-{number}"
        fetch = FetchSpec(run_id, server_keys(route.server_keys).public, route.client_keys, route.model)
        return _FETCHING_FACTORY, {**arguments, "fetch": msgspec.msgpack.encode(fetch)}

    def _devices(self, pool: str) -> int:
        workers = getattr(self._job.spec.pools, POOLS[pool])
        return 1 if self._job.spec.accelerator == "cpu" else int(workers.accelerators_per_worker)
