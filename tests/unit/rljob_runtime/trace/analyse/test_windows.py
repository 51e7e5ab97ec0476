"""Which time belongs to which step, and which steps stand out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.trace.analyse.windows import (
    Window,
    choose_steps,
    find_anomalies,
    lost_seconds,
    superseded,
    windows_from_events,
    windows_from_metrics,
)
from rljob_runtime.trace.record.metrics_log import Metrics
from rljob_runtime.trace.record.start_log import Cause, Start
from tests.support.runtime.events import windows


def rows(*times: float) -> list[dict[str, object]]:
    return [{"step": step, "time": time, "step_seconds": 2.0} for step, time in enumerate(times)]


def again(step: int, time: float, cause: Cause = "resumed") -> Start:
    return Start(time, step, cause)


@pytest.mark.parametrize(
    ("metrics", "starts", "windows", "lost"),
    [
        (Metrics(), [], [], 0),
        (Metrics(rows(12.0, 15.0)), [], [(10, 12), (12, 15)], 0),
        (Metrics(rows(12.0, 15.0)), [again(0, 7.0, "new")], [(7, 12), (12, 15)], 0),
        (Metrics(rows(12.0, 15.0, 40.0)), [again(2, 30.0)], [(10, 12), (12, 15), (30, 40)], 15),
        (Metrics(rows(12.0, 35.0)), [again(1, 20.0), again(1, 30.0)], [(10, 12), (30, 35)], 18),
        (Metrics(rows(12.0, 15.0, 40.0)), [again(2, 30.0, "trainer resized")],
         [(10, 12), (12, 15), (30, 40)], 15),
        (Metrics([{"step": 0, "time": 5.0}]), [], [(5, 5)], 0),
    ],
    ids=["none", "two", "a known beginning", "restart", "two restarts", "resized", "no duration"],
)  # fmt: skip
def test_windows(
    metrics: Metrics, starts: list[Start], windows: list[tuple[float, float]], lost: float
) -> None:
    found = windows_from_metrics(metrics, starts)
    assert [(window.start, window.end) for window in found] == windows
    assert lost_seconds(found) == lost


def test_windows_without_metrics_follow_the_events() -> None:
    found = windows_from_events({1: (11.0, 14.0), 0: (8.0, 12.0)})
    assert found == [Window(0, 8.0, 12.0), Window(1, 12.0, 14.0)]


@pytest.mark.parametrize(
    ("step", "end", "gone"), [(4, 9.0, True), (4, 11.0, False), (3, 9.0, False), (5, 9.9, True)]
)
def test_what_a_restart_threw_away(step: int, end: float, gone: bool) -> None:
    for cause in ("resumed", "trainer lost"):
        assert superseded([again(4, 10.0, cause)], step, end) is gone  # type: ignore[arg-type]
    for cause in ("new", "trainer resized"):
        assert not superseded([again(4, 10.0, cause)], step, end)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seconds", "odd"),
    [
        ([1.0] * 30 + [5.0] + [1.0] * 30, [30]),
        ([1.0] * 30 + [1.3] + [1.0] * 30, []),
        ([1.0 + 0.1 * (step % 7) for step in range(60)], []),
        ([1.0 + 0.1 * step for step in range(200)], []),
        ([9.0, *[1.0] * 30], [0]),
        ([1.0, 9.0, 1.0], []),
        ([1.0] * 20 + [4.0] + [1.0] * 9 + [8.0] + [1.0] * 9, [30, 20]),
    ],
    ids=["spike", "small", "noise", "drift", "first", "too few", "worst first"],
)
def test_steps_that_stand_out(seconds: list[float], odd: list[int]) -> None:
    assert [anomaly.step for anomaly in find_anomalies(windows(*seconds))] == odd


@given(st.integers(1, 400), st.integers(3, 40), st.sets(st.integers(0, 399), max_size=60))
def test_chosen_steps_fit_the_limit_and_hold_first_last_and_the_oddest(
    count: int, limit: int, odd: set[int]
) -> None:
    seconds = [50.0 if step in odd else 1.0 for step in range(count)]
    anomalies = find_anomalies(windows(*seconds))
    chosen = choose_steps(windows(*seconds), anomalies, limit)
    assert len(chosen) <= limit and chosen == sorted(set(chosen))
    assert {0, count - 1} <= set(chosen)
    assert {anomaly.step for anomaly in anomalies[: limit // 3]} <= set(chosen)
