"""The queue's host is replaced, as often as its budget allows, whether it was lost or did not start."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayActorError

from rljob_runtime.net.auth import Endpoint
from rljob_runtime.net.keys import Keyring
from rljob_runtime.queue import service as queue_service
from rljob_runtime.queue.service import QueueService
from rljob_runtime.restarts import GivenUp
from rljob_runtime.simulate.virtual_loop import run_virtual


class Client:
    """Does nothing."""

    def __init__(self, *_: object, **__: object) -> None: ...

    async def open(self) -> None: ...
    async def close(self) -> None: ...
    async def stats(self, timeout: float) -> None: ...


class Hosts:
    """Hosts that are made up, each with its fate."""

    def __init__(self, fates: list[str]) -> None:
        self.fates = fates
        self.started = 0
        self.killed = 0
        self.back = 0

    def start(self, *_: object, **__: object) -> Any:
        fate = self.fates[self.started]
        self.started += 1

        async def endpoint() -> Endpoint:
            if fate == "hangs":
                await asyncio.sleep(1e9)
            if fate == "raises":
                raise RayActorError()
            return Endpoint("ipc://made-up", "key")

        async def wait_stopped() -> str | None:
            await asyncio.sleep(1.0 if fate == "dies" else 1e9)
            return "it was killed"

        async def stop() -> None: ...

        calls = {"endpoint": endpoint, "wait_stopped": wait_stopped, "stop": stop}
        return SimpleNamespace(**{name: SimpleNamespace(remote=call) for name, call in calls.items()})

    def kill(self, _: object) -> None:
        self.killed += 1

    async def on_back(self) -> None:
        self.back += 1


def run(monkeypatch: pytest.MonkeyPatch, fates: list[str]) -> tuple[Hosts, GivenUp | None]:
    """What became of a queue whose hosts have these fates, and what it ended with."""
    import ray

    hosts = Hosts(fates)
    monkeypatch.setattr(queue_service, "start_host", hosts.start)
    monkeypatch.setattr(queue_service, "only_on", lambda node: node)
    monkeypatch.setattr(queue_service, "AsyncQueueClient", Client)
    monkeypatch.setattr(ray, "kill", hosts.kill)
    ended: list[GivenUp] = []

    async def use(on_back: Callable[[], Awaitable[None]]) -> None:
        async with asyncio.TaskGroup() as tasks:
            service = QueueService(8, "node", None, Keyring(), tasks.create_task, on_back)
            await service.start()
            await asyncio.sleep(5_000)
            await service.close()

    async def main() -> None:
        try:
            await use(hosts.on_back)
        except* GivenUp as group:
            ended.extend(error for error in group.exceptions if isinstance(error, GivenUp))

    run_virtual(main())
    return hosts, ended[0] if ended else None


@pytest.mark.parametrize("failed", ["hangs", "raises"])
@pytest.mark.parametrize("times", [1, 2])
def test_a_replacement_that_does_not_start_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, failed: str, times: int
) -> None:
    hosts, error = run(monkeypatch, ["dies", *[failed] * times, "serves"])
    assert error is None
    assert (hosts.started, hosts.killed, hosts.back) == (2 + times, times, 1)


def test_the_first_start_is_tried_again_too(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts, error = run(monkeypatch, ["hangs", "raises", "serves"])
    assert error is None
    assert (hosts.started, hosts.back) == (3, 0)


@pytest.mark.parametrize(
    "fates", [["dies", "hangs", "raises", "hangs"], ["dies"] * 4, ["hangs"] * 4], ids=str
)
def test_four_failures_in_a_row_end_the_job(monkeypatch: pytest.MonkeyPatch, fates: list[str]) -> None:
    _, error = run(monkeypatch, fates)
    assert error is not None and str(error).startswith("the queue host failed 4 times in a row")
