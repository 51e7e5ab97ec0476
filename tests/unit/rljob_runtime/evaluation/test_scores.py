"""mean@n and pass@k."""

import itertools
import math

import pytest

from rljob_runtime.evaluation.scores import GradedResponse, pass_at_k, score_set, shown_ks


@pytest.mark.parametrize("n", range(1, 8))
def test_pass_at_k_is_the_share_of_the_choices_of_k_responses_with_one_that_passes(n: int) -> None:
    for passed, k in itertools.product(range(n + 1), range(1, n + 1)):
        outcomes = [True] * passed + [False] * (n - passed)
        choices = list(itertools.combinations(outcomes, k))
        share = sum(any(choice) for choice in choices) / len(choices)
        assert pass_at_k(n, passed, k) == pytest.approx(share, abs=1e-12)


def test_pass_at_k_of_many_responses() -> None:
    exact = 1 - math.comb(1000 - 3, 100) / math.comb(1000, 100)
    assert pass_at_k(1000, 3, 100) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("k", [0, 5])
def test_k_above_the_number_of_responses_is_refused(k: int) -> None:
    with pytest.raises(ValueError, match=f"k is {k}; it must be from 1 to 4"):
        pass_at_k(4, 2, k)


@pytest.mark.parametrize(
    ("responses", "expected"),
    [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (8, [1, 2, 4, 8]), (9, [1, 2, 4, 8, 9])],
)
def test_which_k_are_told(responses: int, expected: list[int]) -> None:
    assert shown_ks(responses) == expected


def graded(*rewards: float | None) -> list[GradedResponse]:
    return [GradedResponse(reward, 10) for reward in rewards]


def test_a_set() -> None:
    found = score_set([graded(1.0, 0.0), graded(0.0, 0.0), graded(1.0, 1.5), graded(0.5, None)], 1.0)
    assert (found.prompts, found.responses, found.failed) == (4, 8, 1)
    assert found.mean == pytest.approx(4.0 / 7)
    assert found.pass_at == {1: pytest.approx(3 / 8), 2: pytest.approx(2 / 4)}
    assert (found.response_length_mean, found.cut_off, found.unpinned) == (10.0, 0.0, 0)


def test_without_any_reward_nothing_passes() -> None:
    found = score_set([graded(None)], 0.0)
    assert (found.mean, found.pass_at, found.failed) == (None, {1: 0.0}, 1)


def test_parts_and_metrics_are_means_over_the_responses_that_have_them() -> None:
    whole = GradedResponse(1.2, 4, parts={"right": 1.0, "form": 0.2}, metrics={"words": 3, "depth": None})
    half = GradedResponse(0.2, 4, parts={"right": 0.0, "form": 0.2}, metrics={"words": 5, "depth": 2})
    found = score_set([[whole, half, GradedResponse(None, 4, failure="timeout")]], 1.0)
    assert found.parts == {"right": 0.5, "form": pytest.approx(0.2)}
    assert found.metrics == {"words": 4.0, "depth": 2.0}
    never = GradedResponse(1.0, 4, metrics={"depth": None})
    assert score_set([[never]], 1.0).metrics == {}
    assert score_set([graded(1.0)], 1.0).parts == {}


def test_lengths_and_pins() -> None:
    responses = [GradedResponse(1.0, 4), GradedResponse(1.0, 8, cut_off=True, pinned=False)]
    found = score_set([responses], 1.0)
    assert (found.response_length_mean, found.cut_off, found.unpinned) == (6.0, 0.5, 1)
