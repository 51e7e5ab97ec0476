"""Mathematics judged in a worker: the function has a time limit of its own, beside the pool's."""

from pathlib import Path

from tests.support.runtime.reward_site import running, sample

MATH = """
import sys
from rljob_runtime.rewards.math import math_answer

def judge(sample):
    before = set(sys.modules)
    score = math_answer(sample, timeout_seconds=1 if "sum" in sample.response else 60)
    if late := set(sys.modules) - before:
        raise ImportError(f"{sorted(late)} are loaded at a response")
    return score
"""
SLOW = r"\boxed{\sum_{k=1}^{100000} \frac{1}{k^2+1}}"


async def test_math_in_a_worker(tmp_path: Path) -> None:
    """The function's own time limit, a signal, ends a comparison and not the worker, which judges on. Only
    the comparison that would take minutes has a short one: the others may be slow on a busy machine. What
    the function needs is loaded with it, before any time limit counts."""
    (tmp_path / "mathematics.py").write_text(MATH)
    responses = [r"\boxed{5}", r"\boxed{6}", SLOW, r"\boxed{5.0}"]
    algebra = sample(r"\boxed{(y-2)^2}", answer="y^2-4y+4")
    async with running(tmp_path, "mathematics:judge", timeout_seconds=90.0) as pool:
        samples = [algebra, *(sample(response, answer="5") for response in responses)]
        scores = await pool.score(samples)
        assert [score.value for score in scores] == [1.0, 1.0, 0.0, 0.0, 1.0]
        assert [score.failure for score in scores[:3]] == [None, None, None]
        assert [score.failure is None for score in scores[3:]] == [False, True]
        assert pool.counters.worker_restarts == 0


async def test_math_that_takes_too_long_says_so(tmp_path: Path) -> None:
    arguments = {"timeout_seconds": 1}
    function = "rljob_runtime.rewards.math:math_answer"
    async with running(tmp_path, function, arguments=arguments, timeout_seconds=90.0) as pool:
        (score,) = await pool.score([sample(SLOW, answer="5")])
        assert (score.value, score.failure) == (0.0, "error: TimeoutError: math-verify took longer than 1 s")
        assert pool.counters.worker_restarts == 0
