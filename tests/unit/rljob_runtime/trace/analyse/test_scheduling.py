"""What engines for long responses did, moves and their reasons, and how work was divided."""

import math

import pytest

from rljob_runtime.trace.analyse.requests import RequestBook
from rljob_runtime.trace.analyse.scheduling import FAST, HEAVY, LONG, SchedulingBook, kind_of_engine
from rljob_runtime.trace.record.event_log import Event
from tests.support.runtime.events import event, generated


def booked(*steps: list[Event]) -> SchedulingBook:
    requests, book = RequestBook(), SchedulingBook()
    for step, events in enumerate(steps):
        book.add_step(step, events, requests.add_step(step, events))
    return book


def stay(
    request: str, start: float, end: float, worker: str, tokens: int, left: str = "", for_long: bool = False
) -> Event:
    made = generated(request, start, end, "abort" if left else "stop", worker, tokens)
    made.extra |= {"left": left} if left else {}
    made.extra |= {"for_long": True} if for_long else {}
    return made


@pytest.mark.parametrize(
    ("pool", "for_long", "kind"),
    [("heavy", True, HEAVY), ("heavy", False, HEAVY), ("fast", True, LONG), ("fast", False, FAST)],
)
def test_what_an_engine_is_for(pool: str, for_long: bool, kind: str) -> None:
    assert kind_of_engine(pool, for_long) == kind


def test_a_response_that_moves_counts_on_both_engines_and_ends_on_one() -> None:
    book = booked(
        [stay("0.0#1", 0.0, 2.0, "fast-0", 20, "long"), stay("0.1#2", 0.0, 3.0, "fast-1", 30)],
        [stay("0.0#3", 2.5, 6.5, "heavy-0", 80)],
    )
    fast, heavy = book.shares[FAST], book.shares[HEAVY]
    assert (fast.tokens, fast.seconds, fast.moved_in, fast.moved_out) == (50, 5.0, 0, 1)
    assert (heavy.tokens, heavy.seconds, heavy.moved_in, heavy.moved_out) == (80, 4.0, 1, 0)
    assert (fast.lengths.count, fast.lengths.largest, heavy.lengths.count, heavy.lengths.largest) == (
        1, 30, 1, 100,
    )  # fmt: skip
    (moves,) = book.moves.values()
    assert list(book.moves) == [("long", FAST, HEAVY)]
    assert (moves.tokens.mean, moves.pauses.mean) == (20, 0.5)
    assert book.moves_by_step == {"long": {1: 1}} and book.moved == 1


def test_each_move_has_its_own_reason_and_the_tokens_of_all_stays_before() -> None:
    book = booked(
        [
            stay("0.0#1", 0.0, 2.0, "fast-0", 20, "levelled"),
            stay("0.0#2", 2.0, 3.0, "fast-1", 10, "lost"),
            stay("0.0#3", 3.0, 4.0, "heavy-0", 5, "stolen"),
            stay("0.0#4", 4.0, 5.0, "fast-1", 5),
        ]
    )
    assert {key: moves.tokens.mean for key, moves in book.moves.items()} == {
        ("levelled", FAST, FAST): 20, ("lost", FAST, HEAVY): 30, ("stolen", HEAVY, FAST): 35,
    }  # fmt: skip
    fast, heavy = book.shares[FAST], book.shares[HEAVY]
    assert (fast.moved_in, fast.moved_out, heavy.moved_in, heavy.moved_out) == (1, 1, 1, 1)


def test_a_response_that_begins_anew_carries_nothing() -> None:
    """Its tokens were dropped when it left, as routing by probes does it."""
    left, went_on = stay("0.0#1", 0.0, 2.0, "fast-0", 20, "tripped"), stay("0.0#2", 2.0, 9.0, "heavy-0", 50)
    left.extra["length"], went_on.extra["length"] = 20, 50
    book = booked([left, went_on])
    assert book.moves["tripped", FAST, HEAVY].tokens.mean == 0
    assert book.shares[HEAVY].lengths.largest == 50


def test_what_goes_on_on_the_same_engine_did_not_move() -> None:
    book = booked([stay("0.0#1", 0.0, 2.0, "fast-0", 20, "update"), stay("0.0#2", 2.0, 3.0, "fast-0", 1)])
    assert book.moved == 0 and not book.moves and book.shares[FAST].tokens == 21


def test_engines_that_are_for_long_responses_for_a_while_count_apart() -> None:
    book = booked(
        [
            stay("0.0#1", 0.0, 2.0, "fast-0", 20, "long"),
            stay("0.0#2", 2.0, 3.0, "fast-1", 9, for_long=True),
            stay("0.1#2", 3.0, 4.0, "fast-1", 7),
        ]
    )
    assert {kind: share.tokens for kind, share in book.shares.items()} == {FAST: 27, LONG: 9}
    assert list(book.moves) == [("long", FAST, LONG)]


def test_a_run_of_before_reasons_were_recorded_has_moves_without_one() -> None:
    first = generated("7.2#0", 10.0, 12.0, "abort", "fast-0")
    assert list(booked([first, generated("7.2#9", 13.0, 14.0, worker="heavy-0")]).moves) == [
        ("", FAST, HEAVY)
    ]


def test_how_work_was_divided_is_a_mean_over_time() -> None:
    def division(start: float, end: float, engines: int, cut: int | None) -> Event:
        return event("division", start, end, "driver", engines=engines, cut=cut)

    book = booked(
        [division(0, 1, 2, 100), division(1, 4, 1, 400), division(4, 8, 0, None)],
        [division(8, 9, 1, None)],
        [division(9, 10, 1, 0)],
    )
    first, second, third = (book.divisions[step] for step in range(3))
    assert (first.seconds, first.mean_engines) == (8.0, 5 / 8)
    assert first.mean_cut == pytest.approx(math.exp((math.log(100) + 3 * math.log(400)) / 4))
    assert (second.mean_engines, second.mean_cut) == (1.0, None), "none counts as long"
    assert third.mean_cut == pytest.approx(1.0), "all count as long"
