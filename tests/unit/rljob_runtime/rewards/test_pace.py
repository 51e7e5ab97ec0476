"""What is said of a reward that is slow, from how long it took when it was tried."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from rljob_runtime.rewards.pace import near_limit, slow_step, usual_seconds


@pytest.mark.parametrize(
    ("measured", "seconds"),
    [
        ([], None),
        # The first call may load what later ones have.
        ([5.0], None),
        ([5.0, 0.1], 0.1),
        ([5.0, 0.1, 0.3], 0.1),
        ([5.0, 0.1, 0.3, 4.0], 0.3),
    ],
)
def test_usual_seconds(measured: list[float], seconds: float | None) -> None:
    assert usual_seconds(measured) == seconds


@pytest.mark.parametrize(
    ("seconds", "samples", "workers", "words"),
    [
        (0.0, 512, 1, None),
        (0.05, 512, 1, None),
        (
            0.4,
            512,
            1,
            "the reward took 0.4 s for a response when it was tried: with 1 worker the 512 responses of a "
            "step take 3 min to score. Set it to 7 for 29 s; each needs a CPU, unless it waits for a server",
        ),
        (0.4, 512, 7, None),
        (
            0.4,
            512,
            4,
            "the reward took 0.4 s for a response when it was tried: with 4 workers the 512 responses of a "
            "step take 51 s to score. Set it to 7 for 29 s; each needs a CPU, unless it waits for a server",
        ),
        # As many as there may be, and that is not enough.
        (
            20.0,
            1024,
            1,
            "the reward took 20 s for a response when it was tried: with 1 worker the 1,024 responses of a "
            "step take 341 min to score. Set it to 256 for 80 s; each needs a CPU, unless it waits for a "
            "server",
        ),
        (
            20.0,
            1024,
            256,
            "the reward took 20 s for a response when it was tried: with 256 workers the 1,024 responses of "
            "a step take 80 s to score, and more workers would not change that: make the function faster",
        ),
        # More workers than responses are of no use.
        (
            40.0,
            8,
            16,
            "the reward took 40 s for a response when it was tried: with 16 workers the 8 responses of a "
            "step take 40 s to score, and more workers would not change that: make the function faster",
        ),
    ],
)
def test_a_step(seconds: float, samples: int, workers: int, words: str | None) -> None:
    assert slow_step(seconds, samples, workers) == words


@given(seconds=some.floats(1e-4, 100), samples=some.integers(1, 10_000), workers=some.integers(1, 256))
def test_what_is_advised_is_allowed_and_the_last_word(seconds: float, samples: int, workers: int) -> None:
    said = slow_step(seconds, samples, workers)
    if said is None or "make the function faster" in said:
        return
    advised = int(said.split("Set it to ")[1].split(" ")[0])
    assert workers < advised <= min(256, samples)
    again = slow_step(seconds, samples, advised)
    assert again is None or "make the function faster" in again


@pytest.mark.parametrize(
    ("seconds", "limit", "words"),
    [
        (0.0, 10.0, None),
        (1.9, 10.0, None),
        (
            2.0,
            10.0,
            "is 10 s, and the reward took 2 s for a made-up response when it was tried: a response that "
            "takes longer than the limit has no reward. Set it to 20 or more, or make the function faster",
        ),
        (2.0, 20.0, None),
    ],
)
def test_the_time_limit(seconds: float, limit: float, words: str | None) -> None:
    assert near_limit(seconds, limit) == words


@given(seconds=some.floats(1e-3, 300), limit=some.floats(0.1, 3600))
def test_the_limit_that_is_advised_is_enough(seconds: float, limit: float) -> None:
    said = near_limit(seconds, limit)
    if said is not None:
        advised = int(said.split("Set it to ")[1].split(" ")[0])
        assert advised > seconds and near_limit(seconds, advised) is None
