"""How fast a job goes: what counts in its rates, and what does not."""

import pytest

from rljob_runtime.driver.rates import RateWindow, Reading


def reading(
    time: float, steps: int, trained: float = 0.0, idle: float = 0.0, there: float | None = None
) -> Reading:
    """A step has 100 tokens. `there`: seconds that engines were there; by default one, all the time."""
    return Reading(time, steps, 100 * steps, trained, {"fast": (time if there is None else there, idle)})


def window(begins: float, *steps: Reading) -> RateWindow:
    found = RateWindow()
    found.begin(reading(begins, 0))
    for step in steps:
        found.step_done(step)
    return found


@pytest.mark.parametrize(
    ("times", "steps_per_second"),
    [
        ([], 0.0),
        ([123.0], 0.5),
        ([123.0, 125.0], 0.5),
        ([141.0, 143.0], 0.5),
        ([123.0, *(123.0 + 2 * n for n in range(1, 40))], 0.5),
        ([123.0, *(123.0 + 30 * n for n in range(1, 10)), 394.0, 395.0], 3 / 32),
        ([123.0, 323.0, 523.0], 1 / 200),
    ],
    ids=["no step", "the first alone", "two", "a slow first one", "steady", "newest minute", "long steps"],
)
def test_steps_per_second(times: list[float], steps_per_second: float) -> None:
    """Training begins at 121 s."""
    found = window(121.0, *(reading(time, step + 1) for step, time in enumerate(times))).rates()
    assert found.steps_per_second == pytest.approx(steps_per_second)
    assert found.tokens_per_second == pytest.approx(100 * steps_per_second)


@pytest.mark.parametrize(
    ("times", "steady"),
    [([], False), ([130.0], False), ([130.0, 131.0], True), ([182.0], True)],
    ids=["no step", "a short first step", "two", "a long first step"],
)
def test_the_time_of_later_steps_is_told_from_more_than_a_warm_up(times: list[float], steady: bool) -> None:
    found = window(121.0, *(reading(time, step + 1) for step, time in enumerate(times)))
    assert found.rates().steady is steady


def test_busy_shares_are_of_the_time_in_the_window() -> None:
    steps = [reading(130.0, 1, 1.0, 5.0), reading(140.0, 2, 3.5, 7.0), reading(150.0, 3, 8.5, 8.0)]
    assert window(100.0, *steps[:1]).rates().busy == pytest.approx({"fast": 25 / 30, "trainer": 1 / 30})
    assert window(100.0, *steps).rates().busy == pytest.approx({"fast": 17 / 20, "trainer": 7.5 / 20})


def test_a_pool_whose_size_changes_has_the_share_of_the_time_that_its_engines_had() -> None:
    """One engine, idle for half of the time; from 20 s on a second one that is never idle."""
    found = window(0.0, reading(10.0, 1, idle=5.0), reading(20.0, 2, idle=10.0))
    assert found.rates().busy["fast"] == pytest.approx(0.5)
    found.step_done(reading(30.0, 3, idle=15.0, there=40.0))
    assert found.rates().busy["fast"] == pytest.approx(1 - 10 / 30)


def test_a_pool_that_had_no_engine_has_no_share() -> None:
    """It goes after 10 s."""
    steps = [reading(5.0, 1), reading(15.0, 2, there=10.0), reading(100.0, 3, there=10.0)]
    assert set(window(0.0, *steps[:2]).rates().busy) == {"fast", "trainer"}
    assert set(window(0.0, *steps).rates().busy) == {"trainer"}


def test_within_a_step_shares_are_of_the_newest_whole_step_and_the_time_since() -> None:
    """Steps of 200 s, in half of which the trainer is at it and the engine idle. After the third one nothing
    is trained, and the engine is busy."""
    found = window(0.0, *(reading(200.0 * n, n, 100.0 * n, 100.0 * n) for n in (1, 2, 3)))
    seconds, busy = found.busy(reading(800.0, 3, 300.0, 300.0))
    assert seconds == 400.0
    assert busy == pytest.approx({"fast": 0.75, "trainer": 0.25})
    assert RateWindow().busy(reading(10.0, 0)) == (0.0, {})


def test_an_interruption_counts_in_no_rate() -> None:
    found = window(0.0, *(reading(2.0 * step, step) for step in range(1, 10)))
    found.begin(reading(118.0, 9))
    assert found.rates().steps_per_second == 0.0
    found.step_done(reading(122.0, 10))
    assert found.rates().steps_per_second == 0.25
    found.step_done(reading(124.0, 11))
    assert found.rates().steps_per_second == 0.5
