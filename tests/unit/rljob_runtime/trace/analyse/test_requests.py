"""Requests, put together from their attempts."""

import random
import statistics

import pytest

from rljob_runtime.trace.analyse.requests import SLOWEST, RequestBook
from tests.support.runtime.events import event, generated


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


def test_a_response_whose_group_was_given_up_is_no_request_and_may_come_again() -> None:
    book = RequestBook()
    begun = [generated("7.2#0", 0.0, 2.0, "abort"), generated("7.2#1", 2.0, 5.0, "cancelled")]
    assert book.add_step(0, begun) == [] and book.seconds.count == 0
    (request,) = book.add_step(1, [generated("7.2#9", 20.0, 22.0)])
    assert (request.start, request.seconds, len(request.attempts)) == (20.0, 2.0, 1)
