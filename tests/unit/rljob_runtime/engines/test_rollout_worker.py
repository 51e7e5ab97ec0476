"""Both ends of an engine's connection, without Ray and without a network."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq
import zmq.asyncio

from rljob_runtime.engines import channel, rollout_worker
from rljob_runtime.engines.fake import FakeTiming
from rljob_runtime.engines.protocol import EngineDied, FinishedText, PauseMode, Request
from rljob_runtime.engines.remote import RemoteEngine
from rljob_runtime.engines.rollout_worker import RolloutWorker
from rljob_runtime.net.auth import dial, new_keys
from rljob_runtime.samples import Generation
from rljob_runtime.simulate.virtual_loop import run_virtual
from rljob_runtime.site import process_log
from rljob_runtime.site.process_use import UseSampler

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
        self.stages, self.start_parts = False, ()

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
    monkeypatch.setattr(process_log, "begin", lambda *_: None)
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
    monkeypatch.setattr(process_log, "begin", lambda *_: None)

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


def test_a_pause_that_comes_with_requests_takes_them_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were read in the same turn of the loop, too: they would wait for the pause's end."""
    monkeypatch.setattr(process_log, "begin", lambda *_: None)

    async def main() -> int:
        factory = "rljob_runtime.engines.fake:FakeEngine"
        worker = RolloutWorker(factory, {"length_of": lambda _: 5}, "fast-0", "ipc://none", new_keys()[0])
        worker._send = lambda *_: None  # type: ignore[method-assign,assignment]
        await worker.start(0)
        asked = tuple(Request(name, np.zeros(3, np.int32), 9, 0) for name in ("a", "b"))
        worker._take(b"client", channel.Submit(asked))
        async with asyncio.timeout(10):
            return await worker.pause("abort", begun=2)

    assert run_virtual(main()) == 2


@pytest.mark.parametrize(("started", "heard"), [(True, [(b"prompt", b"response")]), (False, [])])
def test_what_finished_elsewhere_reaches_an_engine_that_is_up(
    monkeypatch: pytest.MonkeyPatch, started: bool, heard: list[FinishedText]
) -> None:
    """By the message that the driver's end sends, once, and to nobody where there is no connection."""
    monkeypatch.setattr(process_log, "begin", lambda *_: None)
    frames: list[bytes] = []
    remote = RemoteEngine("fast-0", None, new_keys()[1])
    remote.learn([(b"prompt", b"lost")])
    remote._socket = SimpleNamespace(send_multipart=frames.extend)  # type: ignore[assignment]
    remote.learn([(b"prompt", b"response")])

    async def main() -> list[FinishedText]:
        worker = RolloutWorker(
            "rljob_runtime.engines.fake:FakeEngine", {"length_of": len}, "fast-0", "ipc://none", new_keys()[0]
        )
        told: list[FinishedText] = []
        monkeypatch.setattr(worker._engine, "learn", told.extend)
        if started:
            await worker.start(0)
        worker._take(b"client", channel.decode_to_worker(frames).body)
        return told

    assert asyncio.run(main()) == heard


async def test_progress_is_sent_again_only_when_the_last_was_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(process_log, "begin", lambda *_: None)
    server_keys, client_keys = new_keys()
    engine = {"length_of": lambda request: 10**6, "timing": FakeTiming(step_seconds=0.001)}
    worker = RolloutWorker(
        "rljob_runtime.engines.fake:FakeEngine", engine, "fast-0", f"ipc://{tmp_path}/w/s", server_keys
    )
    endpoint = await worker.open()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(ended, worker)
        dealer = stack.enter_context(stack.enter_context(zmq.asyncio.Context()).socket(zmq.DEALER))
        token = dial(dealer, endpoint, client_keys)

        async def say(body: channel.Order) -> None:
            await dealer.send_multipart([channel.encode_message(channel.ToWorker(token, body))])

        async def hear() -> Any:
            async with asyncio.timeout(10):
                return channel.decode_from_worker(await dealer.recv_multipart())

        # Before the engine is up, as may happen on a connection that was made anew.
        await say(channel.Watch(0.01))
        while worker._watcher is None:  # noqa: ASYNC110 - the worker says nothing to this
            await asyncio.sleep(0.001)
        await worker.start(0)
        await say(channel.Submit((Request("r", np.arange(5, dtype=np.int32), 10**6, 0),)))
        first = await hear()
        assert not await dealer.poll(100), "the first was not confirmed, and nine more are due by now"
        await say(channel.ProgressRead())
        second = await hear()
        # What a connection before had to confirm is forgotten.
        await say(channel.Watch(0.01))
        third = await hear()
        counts = [message.tokens["r"] for message in (first, second, third)]
        assert counts == sorted(counts)
        assert counts[1] >= counts[0] + 90, "not a report that was kept back"


async def test_who_watches_is_told_what_the_worker_uses(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(process_log, "begin", lambda *_: None)
    often = partial(UseSampler, between=lambda taken: 0.01)
    monkeypatch.setattr(rollout_worker, "UseSampler", often)
    server_keys, client_keys = new_keys()
    worker = RolloutWorker(
        "rljob_runtime.engines.fake:FakeEngine", {"length_of": len}, "fast-0", f"ipc://{tmp_path}/w/s",
        server_keys, sampled="cpu",
    )  # fmt: skip
    endpoint = await worker.open()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(ended, worker)
        dealer = stack.enter_context(stack.enter_context(zmq.asyncio.Context()).socket(zmq.DEALER))
        token = dial(dealer, endpoint, client_keys)
        # It is sampled from its start on, and nobody is told of that before somebody watches.
        await worker.start(0)
        await dealer.send_multipart([channel.encode_message(channel.ToWorker(token, channel.Watch(1.0)))])
        async with asyncio.timeout(10):
            told = channel.decode_from_worker(await dealer.recv_multipart())
    assert isinstance(told, channel.Usage)
    assert told.seconds >= 0
    assert {"cpu", "memory_mib", "running", "waiting"} == set(told.values)
    assert told.values["memory_mib"] > 10
    assert worker._sampler is not None
    worker._sampler._thread.join(10)
    assert not worker._sampler._thread.is_alive()


async def test_the_driver_hears_what_a_worker_uses() -> None:
    told: list[tuple[float, Mapping[str, float]]] = []
    frames: asyncio.Queue[bytes] = asyncio.Queue()

    class Connection:
        async def recv_multipart(self) -> list[bytes]:
            return [await frames.get()]

    engine = RemoteEngine(
        "fast-0", None, new_keys()[1], on_usage=lambda seconds, values: told.append((seconds, values))
    )
    for message in (channel.Usage(5.0, {"cpu": 1.5}), channel.Refused("that is enough")):
        frames.put_nowait(channel.encode_message(message))
    await engine._read(Connection())  # type: ignore[arg-type]
    assert told == [(5.0, {"cpu": 1.5})]


async def ended(worker: RolloutWorker) -> None:
    """End what a worker's process would take with it."""
    await worker.close()
    tasks = list(worker._tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert worker._gate is not None
    worker._gate.close()


@pytest.mark.parametrize("progress", [channel.Progress({"r": -1}), channel.Progress({"r": 1}, -1)])
def test_progress_that_cannot_be_is_refused(progress: channel.Progress) -> None:
    message = channel.encode_message(progress)
    with pytest.raises(msgspec.DecodeError, match="Expected `int` >= 0"):
        channel.decode_from_worker([message])


@pytest.mark.parametrize("seconds", [0.0, -1.0, 1e9, float("nan")])
def test_an_impossible_interval_is_refused(seconds: float) -> None:
    message = channel.encode_message(channel.ToWorker("", channel.Watch(seconds)))
    with pytest.raises(msgspec.DecodeError, match=r"Expected `float`"):
        channel.decode_to_worker([message])
