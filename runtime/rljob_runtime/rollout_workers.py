"""The rollout workers as Ray actors, one for each replica of the two rollout pools."""

import itertools
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from rljob_api import RLJob
from rljob_runtime.data.tokenizer import TextTokenizer
from rljob_runtime.devices import Devices
from rljob_runtime.engines.factory import EngineSpec
from rljob_runtime.engines.protocol import Engine, EngineDied
from rljob_runtime.engines.remote import RemoteEngine
from rljob_runtime.engines.worker import start_worker
from rljob_runtime.fleet import Seat
from rljob_runtime.job_plan import sampling_of
from rljob_runtime.queue.auth import new_keys
from rljob_runtime.responses import response_seed
from rljob_runtime.trace.events import EventLog

_POOLS = {"fast": "fast_rollout", "heavy": "heavy_rollout"}
_FACTORY = "rljob_runtime.engines.factory:make"


class RolloutWorkers:
    """Starts workers; each start of a seat is a new process with the job's initial weights."""

    def __init__(self, job: RLJob, model_folder: Path, tokenizer: TextTokenizer, device_share: float) -> None:
        """`device_share`: the part of each accelerator that a worker asks for."""
        self._device_share = device_share
        self._job = job
        self._json = job.model_dump_json(by_alias=True, exclude_none=True)
        self._model_folder = model_folder
        self._sampling = sampling_of(job, tokenizer.stop_ids)
        self._server_keys, self._client_keys = new_keys()
        self._sockets = tempfile.TemporaryDirectory(prefix="rljob-")
        self._starts = itertools.count()

    def seats(self, events_folder: Path | None, first_rank: int) -> list[Seat]:
        """One seat for each replica; event ranks count from `first_rank`."""
        limit = self._job.spec.training.rollout.max_running_requests
        names = [
            (f"{pool}-{index}", pool)
            for pool, field in _POOLS.items()
            for index in range(getattr(self._job.spec.pools, field).replicas)
        ]
        return [
            Seat(name, pool, limit, EventLog(events_folder, rank, name, pool), self._devices(pool))
            for rank, (name, pool) in enumerate(names, start=first_rank)
        ]

    async def make(self, seat: Seat) -> Engine:
        """Start a worker and its engine. Raises `EngineDied`."""
        from ray.exceptions import RayError

        number = next(self._starts)
        spec = EngineSpec(
            job=self._json,
            pool=_POOLS[seat.pool],
            model_folder=str(self._model_folder),
            sampling=self._sampling,
            seed=response_seed(self._job.spec.training.seed, number, 0),
        )
        address = f"ipc://{Path(self._sockets.name) / f'{seat.name}-{number}'}"
        try:
            actor = start_worker(
                _FACTORY, {"spec": msgspec.msgpack.encode(spec)}, seat.name, address, self._server_keys,
                **self._options(seat),
            )  # fmt: skip
            engine = RemoteEngine(seat.name, actor, self._client_keys)
            await engine.start(0)
        except RayError as error:
            raise EngineDied(f"engine {seat.name}: {str(error).splitlines()[0]}") from error
        return engine

    def close(self) -> None:
        """Remove the workers' sockets."""
        self._sockets.cleanup()

    def _devices(self, pool: str) -> int:
        workers = getattr(self._job.spec.pools, _POOLS[pool])
        return 1 if self._job.spec.accelerator == "cpu" else int(workers.accelerators_per_worker)

    def _options(self, seat: Seat) -> dict[str, Any]:
        pool, kind = getattr(self._job.spec.pools, _POOLS[seat.pool]), Devices.of(self._job.spec.accelerator)
        options: dict[str, Any] = {
            "num_cpus": 0,
            "resources": {_POOLS[seat.pool]: 1},
            "runtime_env": {"env_vars": {"OMP_NUM_THREADS": str(pool.cpus_per_worker)}},
            "max_concurrency": 1000,
        }
        if kind.ray_resource == "GPU":
            options["num_gpus"] = pool.accelerators_per_worker * self._device_share
        elif kind.ray_resource is not None:
            options["resources"][kind.ray_resource] = pool.accelerators_per_worker * self._device_share
        return options
