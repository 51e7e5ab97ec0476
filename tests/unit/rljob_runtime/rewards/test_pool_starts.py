"""Reward workers that cannot be started again: whoever waits for a score learns of it."""

import asyncio
import os
from pathlib import Path

import pytest

from rljob_runtime.rewards import process
from rljob_runtime.rewards.calls import FunctionCall
from rljob_runtime.rewards.frames import Ready, frame
from rljob_runtime.rewards.pool import RewardPool, RewardPoolError
from rljob_runtime.short_files import DROPPED
from tests.support.runtime.reward_inputs import reward_input


class Worker:
    """A process that is ready at once and answers nothing."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = os.dup(descriptor)
        self.gone = asyncio.Event()
        os.write(self.descriptor, frame(Ready()))

    async def wait(self) -> int:
        await self.gone.wait()
        return -9

    def kill(self) -> None:
        if not self.gone.is_set():
            os.close(self.descriptor)
            self.gone.set()


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> list[Worker]:
    """Those that are started."""
    found: list[Worker] = []

    async def launch(descriptor: int, log: Path | None, host: Path | None) -> Worker:
        found.append(Worker(descriptor))
        return found[-1]

    monkeypatch.setattr(process, "launch", launch)
    return found


async def test_a_pool_that_is_closed_at_once_leaves_no_worker(workers: list[Worker]) -> None:
    pool = RewardPool([FunctionCall("rljob_runtime.rewards.tasks:copy")], workers=2)
    await pool.start()
    await pool.close()
    assert [worker.gone.is_set() for worker in workers] == [True, True]


async def test_a_worker_that_cannot_be_told_what_it_runs_is_ended(workers: list[Worker]) -> None:
    pool = RewardPool([FunctionCall("rljob_runtime.rewards.tasks:copy", {"half": "\ud800"})])
    with pytest.raises(UnicodeEncodeError):
        await pool.start()
    assert [worker.gone.is_set() for worker in workers] == [True]


async def test_what_was_printed_since_the_last_look_is_dropped_at_the_end(
    workers: list[Worker], tmp_path: Path
) -> None:
    log = tmp_path / "rewards.log"
    pool = RewardPool([FunctionCall("rljob_runtime.rewards.tasks:copy")], log=log, log_bytes=10)
    await pool.start()
    log.write_bytes(b"a line\n" * 10)
    await pool.close()
    assert log.read_bytes() == DROPPED + b"a line\n"


async def test_a_machine_that_starts_no_process_any_more_ends_the_scores(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    workers: list[Worker] = []

    async def launch(descriptor: int, log: Path | None, host: Path | None) -> Worker:
        if workers:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        workers.append(Worker(descriptor))
        return workers[0]

    monkeypatch.setattr(process, "launch", launch)
    pool = RewardPool([FunctionCall("rljob_runtime.rewards.tasks:copy")])
    await pool.start()
    scoring = asyncio.ensure_future(pool.score([reward_input(), reward_input()]))
    # The first sample is the one that the process dies at; the other one waits for the next process.
    await asyncio.sleep(0)
    workers[0].kill()
    async with asyncio.timeout(5):
        with pytest.raises(RewardPoolError, match=r"could not be started: .Errno 11"):
            await scoring
    assert "a reward worker could not be started" in caplog.text
    await pool.close()
    assert pool.counters.pending == 0
