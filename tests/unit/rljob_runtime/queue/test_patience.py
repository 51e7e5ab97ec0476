"""A queue host that is being replaced is waited for."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from rljob_api import RLJob
from rljob_runtime.groups.ledger import Ledger
from rljob_runtime.net.auth import Endpoint, new_keys
from rljob_runtime.net.keys import Keyring
from rljob_runtime.queue import service as queue_service
from rljob_runtime.site import process_log
from rljob_runtime.trainer import rank as worker
from rljob_runtime.trainer import rank_actor as actor
from tests.support.jobs import job

LONG_ENOUGH = queue_service._RESTARTS * queue_service._START_SECONDS + 30


class Client:
    """Notes what it is made with, and how long its calls may take."""

    made: dict[str, Any]
    timeouts: dict[str, float]

    def __init__(self, endpoint: object, keys: object, name: str, **options: Any) -> None:
        type(self).made, type(self).timeouts = options, {}

    async def open(self) -> None: ...
    async def close(self) -> None: ...
    async def stats(self, timeout: float) -> None: ...

    async def reset(self, term: int, watermark: int, ahead: object, timeout: float = 60.0) -> None:
        self.timeouts["reset"] = timeout


class BlockingClient(Client):
    """The same for blocking code."""

    def get(self, uids: object, timeout: float) -> list[bytes]:
        self.timeouts["get"] = timeout
        return []

    def ack(self, uids: object, timeout: float = 60.0) -> None:
        self.timeouts["ack"] = timeout


def test_the_drivers_client_outlasts_the_start_of_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: object) -> None: ...

    monkeypatch.setattr(queue_service, "AsyncQueueClient", Client)
    for name in ("_start_host", "_stop_host", "_watch"):
        monkeypatch.setattr(queue_service.QueueService, name, nothing)

    async def main() -> None:
        service = queue_service.QueueService(
            8, "node", None, Keyring(), asyncio.get_running_loop().create_task, nothing
        )
        service.endpoint = SimpleNamespace()  # type: ignore[assignment]
        await service.start()
        await service.reset(Ledger())
        await service.close()

    asyncio.run(main())
    assert Client.made["patience_seconds"] >= LONG_ENOUGH
    assert Client.timeouts["reset"] >= LONG_ENOUGH


def test_the_trainers_client_does_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(process_log, "begin", lambda *_: None)
    monkeypatch.setattr(actor, "QueueClient", BlockingClient)
    made = SimpleNamespace(setup=lambda store, start: None, train_step=lambda *_: ())
    monkeypatch.setattr(worker, "TrainerWorker", lambda *_, **__: made)
    server, client = new_keys()
    spec = actor.TrainerSpec(
        job=RLJob.model_validate(job()).model_dump_json(by_alias=True),
        model_folder=str(tmp_path),
        model=None,
        code_folder=str(tmp_path),
        checkpoint_root=str(tmp_path),
        weights_root=str(tmp_path),
        serve=None,
        events_folder=None,
        events_rank=0,
        rank=0,
        world_size=1,
        total_updates=1,
        keep_versions=1,
        endpoint=Endpoint("ipc://none", server.public),
        keys=client,
    )
    rank = actor.TrainerActor(msgspec.msgpack.encode(spec))
    rank._store = object()
    rank.setup("")
    rank.step(0, 0, [])
    assert BlockingClient.made["patience_seconds"] >= LONG_ENOUGH
    assert min(BlockingClient.timeouts.values()) >= LONG_ENOUGH, BlockingClient.timeouts
