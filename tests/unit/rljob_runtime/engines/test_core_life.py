"""What is awaited of an engine core ends when it does."""

import asyncio
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from rljob_runtime.engines import core_life
from rljob_runtime.engines.core_life import CoreLife
from rljob_runtime.engines.protocol import EngineDied


class CoreDied(Exception):
    """As vLLM says it."""


class Core(SimpleNamespace):
    """What `CoreLife` knows of a core; its process ends when `ending` is closed."""

    def __init__(self) -> None:
        watched, ending = socket.socketpair()
        process = SimpleNamespace(sentinel=watched, pid=7, exitcode=-9)
        super().__init__(processes=[process], ending=ending, dead_error=CoreDied, stopped=0)
        self.words = ""

    def stop_outputs(self) -> None:
        self.stopped += 1

    def last_words(self) -> str:
        return self.words


@pytest.fixture
def core() -> Iterator[Any]:
    made = Core()
    with made.processes[0].sentinel, made.ending:
        yield made


@pytest.fixture
async def life(core: Any) -> CoreLife:
    made = CoreLife("fast-0", lambda: None)
    made.begin()
    made.watch(core)
    return made


async def forever(seen: list[str]) -> None:
    try:
        await asyncio.get_running_loop().create_future()
    except asyncio.CancelledError:
        seen.append("cancelled")
        raise


async def test_what_ends_in_time_is_returned(life: CoreLife):
    assert await life.guard(asyncio.sleep(0, "done")) == "done"
    assert not life.over


async def test_an_error_of_the_work_is_its_own(life: CoreLife):
    async def work() -> None:
        raise ValueError("no such folder")

    with pytest.raises(ValueError, match="no such folder"):
        await life.guard(work())
    assert not life.over


async def test_vllms_word_for_a_dead_core_is_ours(life: CoreLife, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(core_life, "_END_SECONDS", 0.01)

    async def work() -> None:
        raise CoreDied

    with pytest.raises(EngineDied, match="engine fast-0: the engine core ended"):
        await life.guard(work())
    assert life.over


async def test_what_was_raised_in_a_core_is_told_also_where_it_says_that_it_is_dead_before_it_ends(
    life: CoreLife, core: Any
):
    core.words = "OutOfMemoryError: CUDA out of memory"

    async def work() -> None:
        asyncio.get_running_loop().call_soon(core.ending.close)
        raise CoreDied

    ended = r"its engine core \(process 7\) ended with exit code -9: OutOfMemoryError: CUDA out of memory"
    with pytest.raises(EngineDied, match=ended):
        await life.guard(work())


async def test_the_end_of_its_process_ends_all_that_waits(life: CoreLife, core: Any):
    seen: list[str] = []
    waiting = [asyncio.create_task(life.guard(forever(seen))) for _ in range(3)]
    await asyncio.sleep(0)
    core.ending.close()
    for ended in await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 10):
        assert isinstance(ended, EngineDied)
        assert str(ended) == "engine fast-0: its engine core (process 7) ended with exit code -9"
    await asyncio.sleep(0)
    assert seen == ["cancelled"] * 3
    assert core.stopped == 1


async def test_the_first_cause_is_told(life: CoreLife):
    life.end("it was closed")
    life.end("the engine core ended")
    with pytest.raises(EngineDied, match="engine fast-0: it was closed"):
        life.check()
    with pytest.raises(EngineDied, match="it was closed"):
        await life.guard(asyncio.sleep(0))


async def test_whoever_is_cancelled_takes_the_work_along(life: CoreLife):
    seen: list[str] = []
    waiting = asyncio.create_task(life.guard(forever(seen)))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await asyncio.sleep(0)
    assert seen == ["cancelled"] and not life.over


async def test_a_core_that_is_ended_on_purpose_is_not_watched(life: CoreLife, core: Any):
    life.unwatch(core)
    core.ending.close()
    await asyncio.sleep(0.01)
    assert not life.over and core.stopped == 0
