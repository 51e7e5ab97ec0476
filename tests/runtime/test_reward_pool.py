"""Reward functions in real worker processes: each sample ends once, whatever the function does."""

import asyncio
import os
import random
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import psutil
import pytest

from rljob_runtime.rewards.calls import FunctionCall
from rljob_runtime.rewards.pool import RewardPool, RewardPoolError
from tests.support.runtime.reward_site import FUNCTIONS, children, running, sample, wait_gone


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "judge.py").write_text(FUNCTIONS)
    return tmp_path


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


async def test_numbers_of_all_kinds(folder: Path) -> None:
    async with running(folder) as pool:
        assert (await pool.score([sample("bool")]))[0].value == 1.0


async def test_parts_and_further_fields_cross_the_socket(folder: Path) -> None:
    plain = sample("parts", tokens=3)
    samples = [msgspec.structs.replace(plain, fields={"level": level}) for level in (7, None, "high")]
    async with running(folder) as pool:
        first, none, text = await pool.score(samples)
        assert (first.value, first.parts, first.metrics) == (3.0, {"tokens": 3.0}, {"level": 7.0})
        assert (none.metrics, none.complaints) == ({"level": None}, {})
        assert (text.value, text.metrics) == (3.0, {})
        assert text.complaints == {"metrics.level": "returned str, not a number"}
        assert (pool.counters.scored, pool.counters.values_failed) == (3, 1)


async def test_a_part_that_is_missing_is_logged_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    plain = sample("parts", tokens=3)
    samples = [msgspec.structs.replace(plain, fields={"level": level}) for level in (7, *["high"] * 9)]
    with caplog.at_level("WARNING"):
        async with running(folder) as pool:
            await pool.score(samples)
            assert pool.counters.values_failed == 9
    assert [record.getMessage() for record in caplog.records if "counts without" in record.getMessage()] == [
        "a response's reward counts without metrics.level: returned str, not a number"
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
