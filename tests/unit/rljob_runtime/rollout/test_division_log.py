"""How work is divided by length, as events: what covers which time."""

import math

from rljob_runtime.rollout.division_log import DivisionLog
from rljob_runtime.routing.policy import Division
from tests.support.simulated.watched_rollout import NotedEvents


def divided(engines: int, cut: float) -> Division:
    return Division(frozenset(range(engines)), cut)


def test_an_event_covers_the_time_in_which_work_is_divided_alike() -> None:
    now = [0.0]
    events = NotedEvents(lambda: now[0])
    log = DivisionLog(events)
    seen = [
        (None, 0), (divided(0, math.inf), 0), (divided(2, 1000.0), 0), (divided(2, 1050.4), 0),
        (divided(2, 1200.0), 0), (divided(2, 1200.0), 1), (divided(1, 1200.0), 1), (None, 1), (None, 2),
    ]  # fmt: skip
    for second, (division, step) in enumerate(seen):
        now[0] = second
        log.look(division, step)
    now[0] = 20.0
    log.close()
    assert events.noted == [
        ("division", 1.0, 1.0, {"engines": 0, "cut": None}),
        ("division", 2.0, 2.0, {"engines": 2, "cut": 1000}),
        ("division", 4.0, 1.0, {"engines": 2, "cut": 1200}),
        ("division", 5.0, 1.0, {"engines": 2, "cut": 1200}),
        ("division", 6.0, 1.0, {"engines": 1, "cut": 1200}),
    ]


def test_what_was_seen_last_is_recorded_at_the_end_once() -> None:
    now = [3.0]
    events = NotedEvents(lambda: now[0])
    log = DivisionLog(events)
    log.look(divided(1, 0.0), 7)
    now[0] = 5.0
    log.close()
    log.close()
    assert events.noted == [("division", 3.0, 2.0, {"engines": 1, "cut": 0})]


def test_a_cut_that_drifts_by_little_each_time_is_recorded_in_the_end() -> None:
    now = [0.0]
    events = NotedEvents(lambda: now[0])
    log = DivisionLog(events)
    for second in range(101):
        now[0] = second
        log.look(divided(1, 1000 * 1.01**second), 0)
    cuts = [extra["cut"] for *_, extra in events.noted]
    assert cuts[:2] == [1000, round(1000 * 1.01**10)] and 9 <= len(cuts) <= 11
