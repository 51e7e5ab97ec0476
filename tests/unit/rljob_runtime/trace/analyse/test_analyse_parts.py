"""The parts of the analysis: unions of intervals, distributions, windows, requests, use of time."""

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.trace.analyse.cover import GAP, Cover
from rljob_runtime.trace.analyse.requests import SLOWEST, RequestBook
from rljob_runtime.trace.analyse.sketch import ACCURACY, Sketch, exact_curve
from rljob_runtime.trace.analyse.step_detail import BINS, SEGMENTS, DetailBook, merge, running
from rljob_runtime.trace.analyse.usage import KINDS, WorkerUse, event_shares, pool_uses, role_of
from rljob_runtime.trace.analyse.windows import (
    Window,
    choose_steps,
    find_anomalies,
    lost_seconds,
    superseded,
    windows_from_events,
    windows_from_metrics,
)
from rljob_runtime.trace.record.event_log import Event
from rljob_runtime.trace.record.metrics_log import Metrics
from rljob_runtime.trace.record.start_log import Cause, Start


def event(
    name: str, start: float, end: float, worker: str = "fast-0", step: int = 0, **extra: object
) -> Event:
    return Event(name, start, end - start, step, worker, worker.split("-")[0], dict(extra))


def generated(
    request: str, start: float, end: float, finish: str = "stop", worker: str = "fast-0", tokens: int = 10
) -> Event:
    uid = int(request.split(".")[0])
    return event("generate", start, end, worker, uid=uid, request=request, tokens=tokens, finish=finish)


Intervals = st.lists(
    st.tuples(st.integers(0, 200), st.integers(1, 50)).map(lambda pair: (pair[0], pair[0] + pair[1])),
    max_size=40,
)


@given(Intervals, st.integers(0, 250), st.integers(0, 250))
def test_a_cover_is_the_union_of_its_intervals_in_any_order(
    intervals: list[tuple[int, int]], a: int, b: int
) -> None:
    start, end = min(a, b), max(a, b)
    cover = Cover()
    for first, last in intervals:
        cover.add(first, last)
    inside = {second for first, last in intervals for second in range(first, last)}
    assert cover.within(start, end) == len(inside.intersection(range(start, end)))


def test_a_pause_that_nobody_can_see_is_covered() -> None:
    cover = Cover()
    cover.add(0, 1)
    cover.add(1 + GAP / 2, 2)
    assert len(cover) == 1 and cover.within(0, 2) == 2


@given(
    st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=300),
    st.sampled_from([0.0, 0.25, 0.5, 0.9, 0.99, 1.0]),
)
def test_quantiles_are_right_to_the_accuracy(values: list[float], share: float) -> None:
    exact = sorted(values)[int(share * (len(values) - 1) + 1e-9)]
    assert Sketch(values).quantile(share) == pytest.approx(exact, rel=2 * ACCURACY)


@given(st.lists(st.floats(0, 1e4), min_size=1, max_size=300))
def test_curves_rise_from_0_to_1(values: list[float]) -> None:
    for curve in (Sketch(values).curve(), exact_curve(values)):
        assert curve == sorted(curve)
        assert (curve[0][1], curve[-1][1]) == (0.0, 1.0)
        assert curve[-1][0] == max(values)
        assert len(curve) <= 303


def test_nothing_has_no_distribution() -> None:
    assert (Sketch().quantile(0.5), Sketch().mean, Sketch().curve(), exact_curve([])) == (0.0, 0.0, [], [])


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


def windows(*seconds: float) -> list[Window]:
    found, at = [], 0.0
    for step, length in enumerate(seconds):
        found.append(Window(step, at, at + length))
        at += length
    return found


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


def test_attempts_become_one_request_across_engines_and_steps() -> None:
    book = RequestBook()
    first = generated("7.2#0", 10.0, 12.0, "abort", "fast-0", tokens=20)
    second = generated("7.2#9", 13.0, 14.0, "length", "heavy-0", tokens=5)
    assert book.add_step(0, [first]) == []
    (request,) = book.add_step(1, [second])
    assert (request.name, request.uid, request.step, request.finish) == ("7.2", 7, 1, "length")
    assert (request.start, request.seconds, request.generating, request.length) == (10.0, 4.0, 3.0, 25)
    assert book.by_attempts[2].count == 1 and book.of_attempt[2].mean == 1.0
    assert book.seconds_by_finish["length"] == 3.0


def test_a_slow_request_knows_what_its_group_went_through() -> None:
    book = RequestBook()
    book.add_step(0, [generated("3.0#1", 0.0, 5.0)])
    after = [event("reward", 5.0, 5.5, "driver", uid=3), event("queue_wait", 6.0, 9.0, "driver", uid=3)]
    book.add_step(1, [*after, event("reward", 5.0, 9.0, "driver", uid=4)])
    assert book.slowest()[0].stages == {"reward": 0.5, "queue_wait": 3.0}


def test_only_the_slowest_are_kept() -> None:
    book, rng = RequestBook(), random.Random(0)
    durations = [rng.random() for _ in range(500)]
    for index, seconds in enumerate(durations):
        book.add_step(0, [generated(f"{index}.0#1", 0.0, seconds)])
    kept = [request.seconds for request in book.slowest()]
    assert kept == pytest.approx(sorted(durations, reverse=True)[:SLOWEST])
    assert book.seconds.count == 500
    assert book.by_step[0].seconds.quantile(0.5) == pytest.approx(statistics.median(durations), rel=0.03)


@pytest.mark.parametrize(
    ("events", "split"),
    [
        ([], {"idle": 10.0}),
        ([("generate", 0, 4), ("generate", 2, 6)], {"work": 6.0, "idle": 4.0}),
        ([("generate", 0, 8), ("weight_load", 3, 5)], {"work": 6.0, "sync": 2.0, "idle": 2.0}),
        ([("weight_pause", 8, 9), ("weight_load", 9, 12)], {"sync": 2.0, "idle": 8.0}),
        ([("idle", 0, 5), ("queue_wait", 0, 9), ("admission_wait", 0, 9), ("reward", 0, 9)], {"idle": 10.0}),
        ([("get", 0, 1), ("forward", 1, 2), ("backward", 2, 4), ("checkpoint", 4, 9)],
         {"move": 1.0, "work": 3.0, "save": 5.0, "idle": 1.0}),
    ],
    ids=["nothing", "overlap", "stands still", "beyond the end", "waiting", "trainer"],
)  # fmt: skip
def test_a_workers_time_is_split_without_rest(
    events: list[tuple[str, float, float]], split: dict[str, float]
) -> None:
    use = WorkerUse("fast-0", "fast", first=0.0)
    use.add([event(name, start, end) for name, start, end in events])
    assert use.split(0.0, 10.0) == pytest.approx(dict.fromkeys(KINDS, 0.0) | split)


@pytest.mark.parametrize(
    ("split", "totals", "shares"),
    [
        ({"work": 0.6, "idle": 0.4}, {"forward": 10.0, "backward": 20.0, "idle": 99.0},
         {"forward": 0.2, "backward": 0.4, "idle": 0.4}),
        ({"work": 0.5, "sync": 0.1, "idle": 0.4}, {"generate": 1000.0, "weight_load": 3.0, "idle": 1.0},
         {"generate": 0.5, "weight_load": 0.1, "idle": 0.4}),
        ({"move": 0.01}, {"put": 5.0, "reward": 500.0}, {"put": 0.01}),
        ({}, {"forward": 0.0}, {"forward": 0.0}),
    ],
    ids=["by seconds", "at once", "no worker's time", "nothing"],
)  # fmt: skip
def test_events_divide_the_time_of_their_kind(
    split: dict[str, float], totals: dict[str, float], shares: dict[str, float]
) -> None:
    assert event_shares(dict.fromkeys(KINDS, 0.0) | split, totals) == pytest.approx(shares)


def test_a_worker_that_joins_late_is_not_idle_before() -> None:
    use = WorkerUse("fast-1", "fast")
    use.add([event("generate", 8.0, 10.0)])
    assert use.split(0.0, 10.0)["idle"] == 0.0
    assert sum(use.split(0.0, 5.0).values()) == 0.0


def test_pools_know_their_roles_and_shares() -> None:
    trainer, engine = WorkerUse("trainer-0", "trainer"), WorkerUse("fast-0", "fast")
    trainer.add([event("optimizer", 0.0, 1.0, "trainer-0")])
    engine.add([event("generate", 0.0, 3.0)])
    pools = pool_uses([engine, trainer], windows(2.0, 2.0))
    assert [(pool.pool, pool.role) for pool in pools] == [("trainer", "trainer"), ("fast", "engine")]
    assert [pool.overall["work"] for pool in pools] == pytest.approx([0.25, 0.75])
    assert [share["work"] for share in pools[1].by_step] == pytest.approx([1.0, 0.5])
    assert role_of({"reward", "put"}) == "other"


def test_segments_are_joined_with_their_like_and_bounded() -> None:
    window = Window(0, 0.0, 100.0)
    events = [
        event("forward", 0, 10),
        event("forward", 10.05, 20),
        event("backward", 20, 30),
        event("get", 40, 40.01),
    ]
    assert merge(window, events) == [("forward", 0.0, 0.2), ("backward", 0.2, 0.3)]
    many = [event("reward", index * 0.2, index * 0.2 + 0.07) for index in range(500)]
    assert len(merge(window, many)) == SEGMENTS


def test_running_requests_are_counted_per_part_of_the_window() -> None:
    window = Window(0, 0.0, float(BINS))
    found = running(window, [event("generate", 0, 2), event("generate", 1, 1.5), event("generate", -5, 1000)])
    assert found[:3] == pytest.approx([2.0, 2.5, 1.0]) and found[-1] == pytest.approx(1.0)
    assert running(window, []) == []


def test_a_long_event_appears_in_every_step_that_it_runs_through() -> None:
    book = DetailBook(windows(10, 10, 10), [0, 1, 2])
    book.add_step(2, [event("generate", 5.0, 25.0)], [])
    busy = [detail.rows[0].running for detail in book.details()]
    assert [sum(row) / BINS for row in busy] == pytest.approx([0.5, 1.0, 0.5])
