"""Estimates that are kept: the same as made anew, as long as nothing has changed."""

import pytest

from rljob_runtime.routing.estimates import Estimates
from rljob_runtime.routing.lengths import Lengths
from tests.support.simulated.routed import group_of


def test_what_remains_is_the_total_less_what_is_there() -> None:
    estimates = Estimates(Lengths(10_000))
    (request,) = group_of(running=[50]).requests.values()
    assert estimates.remaining(request) == pytest.approx(estimates.total(request) - 50)
    assert estimates.remaining(request) > 0


def test_a_response_that_has_outgrown_its_group_makes_the_estimate_anew() -> None:
    estimates = Estimates(Lengths(10_000))
    group = group_of(running=[50, 60])
    before = estimates.total(group.requests[0])
    group.requests[1].tokens = 9000
    assert estimates.total(group.requests[0]) == before, "kept until somebody tells"
    assert estimates.peek(group.requests[0]) == before
    assert list(estimates.outgrown(group.requests.values())) == [group]
    assert estimates.total(group.requests[0]) > before
    assert list(estimates.outgrown([group.requests[0]])) == [], "the shorter one changes nothing"


def test_a_response_that_was_never_asked_about_has_outgrown_nothing_and_counts_all_the_same() -> None:
    group = group_of(running=[0])
    assert list(Estimates(Lengths(10_000)).outgrown(group.requests.values())) == [group]


def test_of_a_response_without_a_token_it_is_certain_what_most_of_its_siblings_had() -> None:
    estimates = Estimates(Lengths(10_000))
    for finished in ([20, 2000, 30, 1500], [1000, 40, 25, 1800]):
        for count in range(1, 5):
            estimates.finished(group_of(finished[:count]))
    new, running = group_of([20, 2000], running=[0, 50]).requests.values()
    assert estimates.surely_remaining(new) < 0.3 * estimates.remaining(new)
    assert estimates.surely_remaining(running) == estimates.remaining(running)
