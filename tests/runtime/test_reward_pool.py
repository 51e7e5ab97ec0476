"""Reward functions in real worker processes: each sample ends once, whatever the function does."""

import asyncio
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest

from rljob_runtime.own_functions import FunctionLoadError
from rljob_runtime.rewards import RewardInput, Score
from rljob_runtime.rewards.calls import FunctionCall
from rljob_runtime.rewards.frames import Setup
from rljob_runtime.rewards.pool import RewardPool, RewardPoolError
from rljob_runtime.rewards.printed import DROPPED
from rljob_runtime.rewards.process import Job, WorkerProcess

FUNCTIONS = '''
import contextlib, ctypes, os, pathlib, stat, subprocess, sys, time

def pid(sample):
    return os.getpid()

def length(sample):
    """Does what the response begins with; else gives its number of tokens."""
    with open(sample.answer, "a") as file:
        file.write(sample.prompt + "\\n")
    what = sample.response
    if what == "raise":
        raise ValueError("two\\nlines")
    if what == "hang":
        while True:
            pass
    if what == "exit":
        os._exit(3)
    if what == "sys.exit":
        sys.exit(4)
    if what == "crash":
        ctypes.string_at(0)
    if what == "nan":
        return float("nan")
    if what == "text":
        return "high"
    if what == "none":
        return None
    if what == "huge":
        return 10**400
    if what == "garbage":
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            with contextlib.suppress(OSError):  # the descriptor of the listing itself is closed by now
                if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                    os.write(descriptor, bytes([4, 0, 0, 0]) + b"evil")
    if what == "print much":
        for number in range(100_000):
            print("line", number)
    if what == "print":
        print("from the reward")
    if what == "bool":
        return True
    if what == "parts":
        parts = {"tokens": len(sample.response_tokens)}
        return {"parts": parts, "metrics": {"level": sample.fields.get("level")}}
    return len(sample.response_tokens)

def slow(sample, seconds):
    time.sleep(seconds)
    return 1.0

calls = 0

def meet(sample, workers):
    """Waits until all workers have been called as often as this one."""
    global calls
    calls += 1
    folder = pathlib.Path(__file__).parent
    (folder / f"call-{calls}-{os.getpid()}").touch()
    while len(list(folder.glob(f"call-{calls}-*"))) < workers:
        time.sleep(0.01)
    return 1.0

def with_child(sample):
    child = subprocess.Popen(["sleep", "600"])
    with open(sample.answer, "w") as file:
        file.write(str(child.pid))
    child.wait()
'''


def sample(response: str = "", prompt: str = "", tokens: int = 3, answer: str = "/dev/null") -> RewardInput:
    return RewardInput(
        prompt=prompt,
        response=response,
        answer=answer,
        prompt_tokens=np.zeros(2, np.int32),
        response_tokens=np.zeros(tokens, np.int32),
        finished=True,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "judge.py").write_text(FUNCTIONS)
    return tmp_path


@asynccontextmanager
async def running(folder: Path, function: str = "judge:length", **options: Any) -> AsyncIterator[RewardPool]:
    """A started pool that leaves no process behind and whose counters sum."""
    options = {"timeout_seconds": 60.0, "log": folder / "log", **options}
    pool = RewardPool([FunctionCall(function, options.pop("arguments", {}))], search_path=[folder], **options)
    before = children()
    await pool.start()
    try:
        yield pool
    finally:
        await pool.close()
    assert pool.counters.pending == 0
    assert children() <= before


def children() -> set[int]:
    """Processes that this one started and that run."""
    listed = subprocess.run(
        ["ps", "-o", "pid=,comm=", "--ppid", str(os.getpid())], capture_output=True, text=True
    )
    return {int(line.split()[0]) for line in listed.stdout.splitlines() if line.split()[1] != "ps"}


def wait_gone(pid: int, seconds: float = 60.0) -> bool:
    """Whether the process ends within that time."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], seconds)[0])
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("response", "failure", "reason"),
    [
        ("raise", "error: ValueError: two lines", "error"),
        ("nan", "error: ValueError: returned nan, not a finite number", "error"),
        ("text", "error: RewardFormError: returned str 'high', not a number", "error"),
        ("none", "error: RewardFormError: returned None, not a number", "error"),
        ("huge", "error: OverflowError: int too large to convert to float", "error"),
        ("hang", "timeout after 2 s", "timeout"),
        ("exit", "reward worker died (exit code 3)", "reward worker died"),
        ("sys.exit", "reward worker died (exit code 4)", "reward worker died"),
        ("crash", "reward worker died (signal SIGSEGV)", "reward worker died"),
        ("garbage", "reward worker died (sent a malformed answer", "reward worker died"),
    ],
)
async def test_a_bad_sample_costs_itself_alone(
    folder: Path, response: str, failure: str, reason: str
) -> None:
    # The other samples have the same limit, on a machine that may be busy.
    async with running(folder, timeout_seconds=2.0 if response == "hang" else 60.0) as pool:
        batch = [sample(tokens=n) for n in range(20)]
        batch[7] = sample(response)
        scores = await pool.score(batch)
        assert scores[7].value == 0.0
        assert scores[7].failure is not None
        assert scores[7].failure.startswith(failure)
        assert "\n" not in scores[7].failure
        assert [(s.value, s.failure) for i, s in enumerate(scores) if i != 7] == [
            (float(n), None) for n in range(20) if n != 7
        ]
        assert pool.counters.failed == Counter({reason: 1})
        assert pool.counters.scored == 19


async def test_every_sample_runs_once_among_random_faults(folder: Path) -> None:
    """Eight concurrent batches on three workers; the function notes each call in a file."""
    choose = random.Random(5)
    faults = ["raise", "exit", "crash", "nan", "hang"]
    calls = folder / "calls"
    batches = [
        [
            sample(choose.choice(faults) if choose.random() < 0.04 else "", f"{b}.{i}", i, str(calls))
            for i in range(100)
        ]
        for b in range(8)
    ]
    async with running(folder, workers=3, timeout_seconds=2.0) as pool:
        results = await asyncio.gather(*(pool.score(batch) for batch in batches))
        for batch, scores in zip(batches, results, strict=True):
            for given, score in zip(batch, scores, strict=True):
                assert (score.failure is None) == (given.response == "")
                assert score.value == (len(given.response_tokens) if given.response == "" else 0)
        called = Counter(calls.read_text().split())
        assert called == Counter(given.prompt for batch in batches for given in batch)
        deadly = sum(given.response in ("exit", "crash", "hang") for batch in batches for given in batch)
        assert pool.counters.failed["timeout"] + pool.counters.failed["reward worker died"] == deadly > 5
        assert pool.counters.submitted == 800


async def test_time_limit_is_for_one_sample_not_for_the_wait(folder: Path) -> None:
    async with running(folder, "judge:slow", timeout_seconds=2.0, arguments={"seconds": 0.25}) as pool:
        scores = await pool.score([sample()] * 9)
        assert [score.failure for score in scores] == [None] * 9
        assert all(score.seconds >= 0.25 for score in scores)
        waited = [score.waited for score in scores]
        assert waited == sorted(waited) and waited[-1] >= 8 * 0.25


async def test_workers_share_slow_samples(folder: Path) -> None:
    """Each of them takes as long as some other worker has not begun as many."""
    async with running(folder, "judge:meet", workers=4, arguments={"workers": 4}) as pool:
        assert [score.failure for score in await pool.score([sample()] * 8)] == [None] * 8


async def test_cancelled_score_leaves_the_pool_usable(folder: Path) -> None:
    async with running(folder, "judge:slow", arguments={"seconds": 0.3}) as pool:
        cancelled = asyncio.create_task(pool.score([sample()] * 50))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(cancelled, 0.4)
        assert (await pool.score([sample()]))[0].value == 1.0
        assert pool.counters.failed["cancelled"] + pool.counters.scored == 51


async def test_close_ends_running_scores(folder: Path) -> None:
    async with running(folder) as pool:
        stuck = asyncio.create_task(pool.score([sample("hang")] * 3))
        await pool.score([])
        await asyncio.sleep(0)
        await pool.close()
        with pytest.raises(RewardPoolError, match="closed"):
            await stuck
        with pytest.raises(RewardPoolError, match="closed"):
            await pool.score([sample()])


async def test_idle_worker_that_dies_is_replaced(folder: Path) -> None:
    async with running(folder, "judge:pid") as pool:
        first = int((await pool.score([sample()]))[0].value)
        os.kill(first, signal.SIGKILL)
        assert wait_gone(first)
        second = await pool.score([sample()])
        if second[0].failure is not None:  # it was given to the dying worker before its end was noticed
            assert second[0].failure == "reward worker died (signal SIGKILL)"
            second = await pool.score([sample()])
        assert int(second[0].value) not in (0, first)
        assert pool.counters.worker_restarts == 1


async def test_what_a_timed_out_function_started_is_killed(folder: Path) -> None:
    note = folder / "child"
    async with running(folder, "judge:with_child", timeout_seconds=1.0) as pool:
        # On a busy machine the limit may be over before there is a child.
        while not (note.exists() and note.read_text()):
            scores = await pool.score([sample(answer=str(note))])
            assert scores[0].failure == "timeout after 1 s"
        assert wait_gone(int(note.read_text()))


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


async def test_numbers_of_all_kinds(folder: Path) -> None:
    async with running(folder) as pool:
        assert (await pool.score([sample("bool")]))[0].value == 1.0


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


async def test_parts_and_further_fields_cross_the_socket(folder: Path) -> None:
    plain = sample("parts", tokens=3)
    samples = [msgspec.structs.replace(plain, fields={"level": level}) for level in (7, None, "high")]
    async with running(folder) as pool:
        first, none, text = await pool.score(samples)
        assert (first.value, first.parts, first.metrics) == (3.0, {"tokens": 3.0}, {"level": 7.0})
        assert (none.metrics, none.complaints) == ({"level": None}, {})
        assert (text.value, text.metrics) == (3.0, {})
        assert text.complaints == {"metrics.level": "returned str 'high', not a number"}
        assert (pool.counters.scored, pool.counters.values_failed) == (3, 1)


async def test_a_part_that_is_missing_is_logged_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    plain = sample("parts", tokens=3)
    samples = [msgspec.structs.replace(plain, fields={"level": level}) for level in (7, *["high"] * 9)]
    with caplog.at_level("WARNING"):
        async with running(folder) as pool:
            await pool.score(samples)
            assert pool.counters.values_failed == 9
    assert [record.getMessage() for record in caplog.records if "counts without" in record.getMessage()] == [
        "a response's reward counts without metrics.level: returned str 'high', not a number"
    ]


async def test_several_functions_are_one_reward(folder: Path) -> None:
    calls = [
        FunctionCall("judge:length", name="long", weight=0.5),
        FunctionCall("judge:slow", {"seconds": 0.0}, "quick", -1.0),
    ]
    pool = RewardPool(calls, search_path=[folder], timeout_seconds=60.0, log=folder / "log")
    await pool.start()
    try:
        whole, failed = await pool.score([sample("parts", tokens=4), sample("raise")])
    finally:
        await pool.close()
    assert (whole.value, whole.parts) == (1.0, {"long": 4.0, "long/tokens": 4.0, "quick": 1.0})
    assert failed.failure == "error: ValueError: two lines (judge.py:13, in length) [reward long]"
    assert (failed.value, failed.parts) == (0.0, {})


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


MATH = """
from rljob_runtime.rewards.math import math_answer

def judge(sample):
    return math_answer(sample, timeout_seconds=1 if "sum" in sample.response else 60)
"""
SLOW = r"\boxed{\sum_{k=1}^{100000} \frac{1}{k^2+1}}"


async def test_math_in_a_worker(folder: Path) -> None:
    """The function's own time limit, a signal, ends a comparison and not the worker, which judges on. Only
    the comparison that would take minutes has a short one: the others may be slow on a busy machine."""
    (folder / "mathematics.py").write_text(MATH)
    responses = [r"\boxed{5}", r"\boxed{6}", SLOW, r"\boxed{5.0}"]
    async with running(folder, "mathematics:judge", timeout_seconds=90.0) as pool:
        scores = await pool.score([sample(response, answer="5") for response in responses])
        assert [score.value for score in scores] == [1.0, 0.0, 0.0, 1.0]
        assert [score.failure is None for score in scores] == [True, True, False, True]
        assert pool.counters.worker_restarts == 0


async def test_math_that_takes_too_long_says_so(folder: Path) -> None:
    arguments = {"timeout_seconds": 1}
    function = "rljob_runtime.rewards.math:math_answer"
    async with running(folder, function, arguments=arguments, timeout_seconds=90.0) as pool:
        (score,) = await pool.score([sample(SLOW, answer="5")])
        assert (score.value, score.failure) == (0.0, "error: TimeoutError: math-verify took longer than 1 s")
        assert pool.counters.worker_restarts == 0


PARENT = """
import asyncio, sys
from pathlib import Path
import numpy as np
from rljob_runtime.rewards import RewardInput
from rljob_runtime.rewards.calls import FunctionCall
from rljob_runtime.rewards.pool import RewardPool

async def main():
    pool = RewardPool([FunctionCall("judge:pid")], search_path=[Path(sys.argv[1])])
    hang = RewardPool([FunctionCall("judge:length")], search_path=[Path(sys.argv[1])], timeout_seconds=600)
    await pool.start()
    await hang.start()
    a = np.zeros(1, np.int32)
    sample = RewardInput("", "hang", sys.argv[1] + "/calls", a, a, True)
    asyncio.create_task(hang.score([sample]))
    print(int((await pool.score([sample]))[0].value), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_workers_die_with_a_killed_parent(folder: Path) -> None:
    """Both an idle worker and one in an endless loop."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", PARENT, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        assert int(parent.stdout.readline()) > 0
        listed = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(parent.pid)], capture_output=True, text=True
        )
        workers = [int(pid) for pid in listed.stdout.split()]
        parent.kill()
    assert len(workers) == 2
    assert all(wait_gone(pid) for pid in workers)


async def test_throughput_of_trivial_functions(folder: Path) -> None:
    """In time of the processors, which what else the machine does leaves alone; a sample takes less than
    20 µs of it."""
    before = children()
    async with running(folder, "rljob_runtime.rewards.tasks:copy") as pool:
        await pool.score([sample("abcd", "abcd")])
        (worker,) = children() - before
        begun = processor_seconds(worker)
        scores = await pool.score([sample("abcd", "abcd", tokens=200)] * 10_000)
        assert 10_000 / (processor_seconds(worker) - begun) > 5_000
        assert {score.value for score in scores} == {1.0}


def processor_seconds(worker: int) -> float:
    """What this process and a worker have had of the processors."""
    times = psutil.Process(worker).cpu_times()
    return time.process_time() + times.user + times.system


def test_event_loop_of_another_thread(folder: Path) -> None:
    """Where an asynchronous actor runs."""

    async def score() -> list[float]:
        async with running(folder, timeout_seconds=2.0) as pool:
            return [score.value for score in await pool.score([sample(tokens=4), sample("hang"), sample()])]

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(asyncio.run, score()).result(timeout=60) == [4.0, 0.0, 3.0]
