"""Processes of reward workers: how they start and end, what they print, and what their functions start."""

import asyncio
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from rljob_runtime.own_functions import FunctionLoadError
from rljob_runtime.rewards import Score
from rljob_runtime.rewards.calls import FunctionCall
from rljob_runtime.rewards.frames import Setup
from rljob_runtime.rewards.pool import RewardPool, RewardPoolError
from rljob_runtime.rewards.process import Job, WorkerProcess
from rljob_runtime.short_files import DROPPED
from tests.support.runtime.reward_site import FUNCTIONS, children, running, sample, wait_gone


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "judge.py").write_text(FUNCTIONS)
    return tmp_path


@pytest.mark.parametrize(
    ("function", "message"),
    [("judge:pidd", r"Did you mean pid\?"), ("judje:pid", "there is no module judje")],
)
async def test_function_that_does_not_load(folder: Path, function: str, message: str) -> None:
    pool = RewardPool([FunctionCall(function)], search_path=[folder], workers=2, log=folder / "log")
    before = children()
    with pytest.raises(FunctionLoadError, match=message):
        await pool.start()
    await pool.close()
    assert children() <= before


async def test_function_that_no_longer_loads(folder: Path) -> None:
    async with running(folder) as pool:
        (folder / "judge.py").write_text("def other(sample): return 1\n")
        with pytest.raises(
            RewardPoolError, match=r"no reward worker can be started: .* has no function length"
        ):
            await pool.score([sample("exit"), sample()])


async def test_module_that_ends_its_process(folder: Path) -> None:
    (folder / "fatal.py").write_text("import os\nos._exit(9)\n")
    pool = RewardPool([FunctionCall("fatal:f")], search_path=[folder], log=folder / "log")
    before = children()
    with pytest.raises(RewardPoolError, match=r"ended at its start \(exit code 9\); 3 attempts failed"):
        await pool.start()
    await pool.close()
    assert children() <= before


@pytest.mark.parametrize("how", ["child", "session", "orphan"])
async def test_what_a_timed_out_function_started_is_killed(folder: Path, how: str) -> None:
    note = folder / "child"
    async with running(folder, "judge:with_child", arguments={"how": how}, timeout_seconds=1.0) as pool:
        # On a busy machine the limit may be over before there is a child.
        while not (note.exists() and note.read_text()):
            scores = await pool.score([sample(answer=str(note))])
            assert scores[0].failure == "timeout after 1 s"
        assert wait_gone(int(note.read_text()))


@pytest.mark.parametrize("how", ["child", "session", "orphan"])
async def test_what_a_function_started_ends_with_its_worker(folder: Path, how: str) -> None:
    note = folder / "child"
    async with running(folder, "judge:with_child", arguments={"how": how}) as pool:
        scores = await pool.score([sample("exit", answer=str(note))])
        assert scores[0].failure == "reward worker died (exit code 3)"
        assert wait_gone(int(note.read_text()))


async def test_a_process_that_starts_others_without_end_is_ended_with_them(folder: Path) -> None:
    """Each has a session of its own, and has ended before it can be asked for."""
    (folder / "judge.py").write_text(FLEEING)
    note = folder / "fled"
    async with running(folder, "judge:flees", timeout_seconds=2.0) as pool:
        await pool.score([sample(answer=str(note))])
    assert note.stat().st_size
    # Nothing of it writes any more.
    size = note.stat().st_size
    await asyncio.sleep(0.5)
    assert note.stat().st_size == size


FLEEING = """
import os, time

def flees(sample):
    if os.fork() == 0:
        while True:
            os.setsid()
            with open(sample.answer, "a") as file:
                file.write("x")
            time.sleep(0.001)
            # It ends itself where nothing else does.
            if os.fork() or os.path.getsize(sample.answer) > 60_000:
                os._exit(0)
    time.sleep(600)
"""


async def test_output_of_the_function_goes_to_the_log(folder: Path) -> None:
    async with running(folder) as pool:
        scores = await pool.score([sample("print"), sample("raise")])
        assert [score.failure is None for score in scores] == [True, False]
    log = (folder / "log").read_text()
    assert "from the reward" in log
    assert 'raise ValueError("two\\nlines")' in log


async def test_of_what_is_printed_the_newest_is_kept(folder: Path) -> None:
    log = folder / "log"
    async with running(folder, log_bytes=10_000) as pool:
        # The second one is printed by a worker that has had the file open all the time.
        for response in ("print much", "print"):
            assert [each.failure for each in await pool.score([sample(response)])] == [None]
            async with asyncio.timeout(30):
                while log.stat().st_size > 20_000:  # noqa: ASYNC110 - a file that is written gives no event
                    await asyncio.sleep(0.05)
    lines = log.read_bytes().splitlines()
    assert lines[0] == DROPPED.rstrip() and lines[-2:] == [b"line 99999", b"from the reward"]


class Dying:
    """A process that takes its time to end after it was killed."""

    def __init__(self) -> None:
        self.killed = False
        self.gone = asyncio.Event()

    async def wait(self) -> int:
        await self.gone.wait()
        return -9

    def kill(self) -> None:
        self.killed = True


async def test_a_stop_that_is_cancelled_waits_for_the_process_all_the_same() -> None:
    """As that of a second worker is, when both cannot have their function and the first says so."""
    worker = WorkerProcess(60.0, lambda _: None)
    worker._process = process = Dying()
    stopping = asyncio.create_task(worker.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert process.killed and not stopping.done()
    process.gone.set()
    with pytest.raises(asyncio.CancelledError):
        await stopping


async def test_a_start_that_is_cancelled_at_any_moment_leaves_no_process(folder: Path) -> None:
    """As that of a second worker is, when the first cannot have its function."""
    before = children()
    for turns in range(12):
        worker = WorkerProcess(60.0, lambda _: None)
        setup = Setup((FunctionCall("judge:pid"),), (str(folder),))
        start = asyncio.ensure_future(worker.start(setup, folder / "log", None, 60.0))
        for _ in range(turns):
            await asyncio.sleep(0)
        start.cancel()
        await asyncio.wait([start], timeout=60.0)
        assert start.cancelled()
        assert children() <= before, f"cancelled after {turns} turns of the loop"


async def test_what_was_answered_counts_though_a_sample_is_written_to_a_process_that_is_gone(
    folder: Path,
) -> None:
    """Such a write fails, and asyncio then reads no more of the socket."""
    before, scores = children(), dict[int, Score]()
    worker = WorkerProcess(60.0, lambda _: None)
    await worker.start(Setup((FunctionCall("judge:length"),), (str(folder),)), folder / "log", None, 60.0)
    [pid] = children() - before
    first, second, deadly, late = (
        Job(number, sample(response, tokens=number), partial(scores.__setitem__, number))
        for number, response in enumerate(["", "", "exit", ""])
    )
    # The loop does not run meanwhile, and reads nothing.
    worker.give([first, second, deadly])
    assert wait_gone(pid)
    worker.give([late])
    assert await worker.ended() == [late]
    assert {number: score.failure for number, score in scores.items()} == {
        0: None, 1: None, 2: "reward worker died (exit code 3)",
    }  # fmt: skip
    assert worker.room == 0


PARENT = """
import asyncio, sys
from pathlib import Path
import numpy as np
from rljob_runtime.rewards import RewardInput
from rljob_runtime.rewards.calls import FunctionCall
from rljob_runtime.rewards.pool import RewardPool

async def main():
    pool = RewardPool([FunctionCall("judge:pid")], search_path=[Path(sys.argv[1])])
    call = FunctionCall("judge:with_child", {"how": "session"})
    hang = RewardPool([call], search_path=[Path(sys.argv[1])], timeout_seconds=600)
    await pool.start()
    await hang.start()
    a = np.zeros(1, np.int32)
    sample = RewardInput("", "", sys.argv[1] + "/child", a, a, True)
    asyncio.create_task(hang.score([sample]))
    print(int((await pool.score([sample]))[0].value), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_workers_die_with_a_killed_parent(folder: Path) -> None:
    """Both an idle worker and one that is at a sample, with the process of a new session that it started."""
    note = folder / "child"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", PARENT, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        assert int(parent.stdout.readline()) > 0
        listed = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(parent.pid)], capture_output=True, text=True
        )
        workers = [int(pid) for pid in listed.stdout.split()]
        while not (note.exists() and note.read_text()):
            time.sleep(0.02)
        parent.kill()
    assert len(workers) == 2
    assert all(wait_gone(pid) for pid in [*workers, int(note.read_text())])
