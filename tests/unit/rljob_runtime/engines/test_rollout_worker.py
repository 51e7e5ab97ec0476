"""Both ends of an engine's connection, without Ray and without a network."""

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rljob_runtime.engines import channel, rollout_worker
from rljob_runtime.engines.protocol import EngineDied, PauseMode
from rljob_runtime.engines.remote import RemoteEngine
from rljob_runtime.engines.rollout_worker import RolloutWorker
from rljob_runtime.net.auth import new_keys
from rljob_runtime.samples import Generation
from rljob_runtime.simulate.virtual_loop import run_virtual
from rljob_runtime.site import process_log

CONTROL_SECONDS = 600.0


@pytest.mark.parametrize(
    ("mode", "seconds", "alive"),
    [
        ("wait", 10 * CONTROL_SECONDS, True),
        ("keep", CONTROL_SECONDS - 1, True),
        ("keep", CONTROL_SECONDS + 1, False),
        ("abort", CONTROL_SECONDS + 1, False),
    ],
)
def test_only_a_drain_may_take_long(mode: PauseMode, seconds: float, alive: bool) -> None:
    async def pause(mode: PauseMode, begun: int) -> int:
        await asyncio.sleep(seconds)
        return 0

    async def main() -> bool:
        actor = SimpleNamespace(pause=SimpleNamespace(remote=pause))
        engine = RemoteEngine("fast-0", actor, new_keys()[1], control_seconds=CONTROL_SECONDS)
        try:
            await engine.pause(mode)
        except EngineDied as error:
            assert str(error) == "engine fast-0: pause took longer than 600 s"
            return False
        return True

    assert run_virtual(main()) is alive


class SlowToStart:
    """An engine that knows nothing of requests before it is up, and then fails at each abort."""

    def __init__(self, name: str) -> None:
        self.aborted: list[str] = []

    async def start(self, version: int) -> None:
        pass

    async def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)
        raise AttributeError("'NoneType' object has no attribute 'abort'")


@pytest.mark.parametrize(
    ("started", "why"),
    [(False, None), (True, "engine fast-0: AttributeError: 'NoneType' object has no attribute 'abort'")],
)
def test_an_abort_that_fails_ends_a_worker_only_when_its_engine_is_up(
    monkeypatch: pytest.MonkeyPatch, started: bool, why: str | None
) -> None:
    monkeypatch.setattr(process_log, "begin", lambda: None)
    monkeypatch.setattr(rollout_worker, "load_factory", lambda path: SlowToStart)

    async def main() -> None:
        worker = RolloutWorker("made:up", {}, "fast-0", "ipc://none", new_keys()[0])
        worker._closed = asyncio.get_running_loop().create_future()
        if started:
            await worker.start(0)
        worker._take(b"client", channel.Abort(("r1", "r2")))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert worker._engine.aborted == ["r1", "r2"]  # type: ignore[attr-defined]
        assert (worker._closed.result() if worker._closed.done() else None) == why

    asyncio.run(main())


def generation(name: str) -> Generation:
    return Generation(name, np.zeros(0, np.int32), np.zeros(0, np.float32), (), "stop")


@pytest.mark.parametrize(
    ("known", "sent"), [(("a", "b"), [["a", "b"]]), (("b",), [["b"]]), ((), [])], ids=["all", "one", "none"]
)
def test_results_that_the_client_has_by_now_are_not_sent(
    monkeypatch: pytest.MonkeyPatch, known: tuple[str, ...], sent: list[Any]
) -> None:
    monkeypatch.setattr(process_log, "begin", lambda: None)

    async def main() -> list[list[str]]:
        worker = RolloutWorker(
            "rljob_runtime.engines.fake:FakeEngine", {"length_of": len}, "fast-0", "ipc://none", new_keys()[0]
        )
        messages: list[list[str]] = []
        worker._send = lambda _, message: messages.append([each.request_id for each in message.generations])  # type: ignore[method-assign,assignment,union-attr]
        for name in ("a", "b"):
            worker._results[name] = generation(name)
            worker._running[name] = b"client"
            worker._post(name)
        for name in {"a", "b"} - set(known):
            del worker._results[name]
        await asyncio.sleep(0)
        return messages

    assert asyncio.run(main()) == sent
