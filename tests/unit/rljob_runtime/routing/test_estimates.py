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


def test_an_estimate_is_made_anew_where_a_group_has_outgrown_what_its_longest_was_expected_to_have() -> None:
    """Groups have had 300 or 2,000 tokens: one that runs is of the long ones as soon as it has more."""
    estimates = Estimates(Lengths(10_000))
    for row in range(40):
        tokens = 2000 if row % 2 else 300
        group = group_of(row=row)
        estimates.began(group, 1)
        for _ in range(2):
            group.finished.append(tokens)
            estimates.finished(group)
    estimates.fit_hazards()
    group = group_of([300], running=[299], row=100)
    (request,) = group.requests.values()
    assert estimates.total(request) < 350
    request.tokens = 1990
    assert list(estimates.outgrown([request])) == [group]
    assert estimates.total(request) == pytest.approx(2000, rel=0.02)
    request.tokens = 2040
    assert list(estimates.outgrown([request])) == [group], "though it has hardly grown"


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
