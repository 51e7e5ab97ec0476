"""While it is not known what moves cost, one at a time is made."""

from collections.abc import Callable

import pytest

from rljob_runtime.routing.book import RequestState
from rljob_runtime.routing.cost import StepCost
from rljob_runtime.routing.requests import Move, RequestKey
from rljob_runtime.routing.trials import Trials
from tests.support.simulated.routed import COST, Engines

ASSUMED = COST._replace(assumed=True)
TO_ONE, TO_TWO, NOWHERE = (Move(RequestKey(uid, 0), engine) for uid, engine in enumerate((1, 2, None)))


def site(cost: StepCost) -> Engines:
    """Three requests on the first of three engines; the third one is of the heavy pool."""
    found = Engines([[100] * 3, [], []], cost=cost)
    found.engines[2].shape = found.engines[2].shape._replace(pool="heavy")
    return found


@pytest.mark.parametrize(
    ("cost", "told", "made"),
    [
        (COST, [TO_ONE, TO_ONE, TO_TWO], [TO_ONE, TO_ONE, TO_TWO]),
        (ASSUMED, [TO_ONE, TO_ONE, NOWHERE], [TO_ONE, NOWHERE]),
        (ASSUMED, [TO_ONE, TO_TWO, TO_ONE, TO_TWO], [TO_ONE, TO_TWO]),
        (ASSUMED._replace(per_copied_token=1e-6), [TO_ONE, TO_ONE], [TO_ONE, TO_ONE]),
        (ASSUMED, [], []),
    ],
    ids=["known", "assumed, those that only leave go", "assumed, for each pool", "copied", "none"],
)
def test_of_one_plan(cost: StepCost, told: list[Move], made: list[Move]) -> None:
    assert Trials().allowed(told, site(cost).book) == made


def _leaves(found: Engines, request: RequestState) -> None:
    found.book.move(request, found.engines[1], False)


def _has_left(found: Engines, request: RequestState) -> None:
    _leaves(found, request)
    found.book.interrupted(request, 5)


def _is_prefilled(found: Engines, request: RequestState) -> None:
    _has_left(found, request)
    found.book.place(request, found.engines[1])


def _has_a_token(found: Engines, request: RequestState) -> None:
    _is_prefilled(found, request)
    found.book.progress({request.key: 6})


def _has_ended(found: Engines, request: RequestState) -> None:
    found.book.finished(request, 9)


def _is_given_up(found: Engines, request: RequestState) -> None:
    found.book.cancel(request.key.uid)


def _was_not_told_to_leave(found: Engines, request: RequestState) -> None:
    assert found.engines[0].running[request.key] is request


@pytest.mark.parametrize(
    ("happens", "next_one"),
    [
        (_leaves, False),
        (_has_left, False),
        (_is_prefilled, False),
        (_has_a_token, True),
        (_has_ended, True),
        (_is_given_up, True),
        (_was_not_told_to_leave, True),
    ],
)
def test_the_next_one_when_the_last_one_has_a_token(
    happens: Callable[[Engines, RequestState], None], next_one: bool
) -> None:
    found, trials = site(ASSUMED), Trials()
    assert trials.allowed([TO_ONE], found.book) == [TO_ONE]
    happens(found, found.book.request(TO_ONE.request))
    other = Move(RequestKey(1, 0), 1)
    assert trials.allowed([other], found.book) == [other] * next_one
    found.engines[1].shape = found.engines[1].shape._replace(cost=COST)
    assert trials.allowed([other, other], found.book) == [other, other]


def test_moves_that_only_tell_are_few_for_each_pool() -> None:
    found, trials = site(ASSUMED), Trials()
    made = [len(trials.telling([TO_ONE], found.book)) for _ in range(12)]
    assert made == [1] * 8 + [0] * 4
    assert trials.telling([TO_TWO, NOWHERE], found.book) == [TO_TWO]


def test_none_that_only_tells_while_another_is_under_way() -> None:
    found, trials = site(ASSUMED), Trials()
    assert trials.allowed([TO_ONE], found.book) == [TO_ONE]
    request = found.book.groups[0].requests[0]
    _leaves(found, request)
    assert trials.telling([TO_ONE], found.book) == []
    found.book.interrupted(request, 5)
    found.book.place(request, found.engines[1])
    found.book.progress({request.key: 6})
    assert trials.telling([TO_ONE], found.book) == [TO_ONE]
