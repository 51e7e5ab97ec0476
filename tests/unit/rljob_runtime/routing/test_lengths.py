"""Estimates of lengths: against numerical integration, recovered from lengths drawn from the model, and what
each kind of news does to them."""

import math
import random
import statistics
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.routing import lengths
from rljob_runtime.routing.lengths import Lengths, expected_total, truncated_mean
from tests.support.simulated.routed import group_of

CAP = 100_000


def integrate(weigh: Callable[[float], float], mean: float, sd: float, least: float) -> float:
    """The mean of `weigh(x)` for x normal, given that it is above `least`; by the rectangle rule."""
    start, steps = max(least, mean - 10 * sd), 40_000
    width = (max(mean, start) + 12 * sd - start) / steps
    above = total = 0.0
    for step in range(steps):
        x = start + (step + 0.5) * width
        # Relative to the density at the start: in the tail alone it vanishes.
        density = math.exp(((start - mean) ** 2 - (x - mean) ** 2) / (2 * sd * sd))
        above += density
        total += density * weigh(x)
    return total / above


PLACES = [-50.0, -7.0, -3.0, -1.0, 0.0, 1.0, 3.9, 4.1, 5.9, 6.1, 12.0, 29.0, 31.0, 40.0]
"""Where what is known lies, in standard deviations from the mean: those at which formulas change on both
sides."""


@pytest.mark.parametrize("z", PLACES)
@pytest.mark.parametrize("sd", [0.1, 0.5, 1.3])
def test_the_mean_of_what_is_longer_is_that_of_the_truncated_distribution(z: float, sd: float) -> None:
    found = truncated_mean(5.0, sd, 5.0 + z * sd)
    assert found == pytest.approx(integrate(lambda x: x, 5.0, sd, 5.0 + z * sd), abs=1e-4 * sd)


@pytest.mark.parametrize("z", PLACES)
@pytest.mark.parametrize("sd", [0.1, 0.5, 1.3])
def test_the_expected_length_is_the_mean_of_all_longer_ones(z: float, sd: float) -> None:
    mean = 8.0 - z * sd
    found = expected_total(mean, sd, round(math.exp(8.0)))
    exact = integrate(math.exp, mean, sd, math.log(round(math.exp(8.0))))
    assert found == pytest.approx(exact, rel=0.002 if z > 30 else 1e-4)


@pytest.mark.parametrize("tokens", [0, -1])
def test_of_a_response_that_has_not_begun_it_is_the_mean_of_all(tokens: int) -> None:
    assert expected_total(3.0, 0.5, tokens) == math.exp(3.125)


@given(st.floats(-2, 12), st.floats(0.1, 3), st.integers(1, 10**7))
def test_more_tokens_never_lower_the_expectation_and_it_is_above_them(
    mean: float, sd: float, tokens: int
) -> None:
    here, further = expected_total(mean, sd, tokens), expected_total(mean, sd, tokens + 1 + tokens // 100)
    assert tokens < here and here <= further * (1 + 1e-9)


def see(known: Lengths, tokens: list[int], row: int = 0) -> None:
    """A whole group ends."""
    for count in range(1, len(tokens) + 1):
        known.finished(group_of(tokens[:count], row=row))


def drawn(groups: int, between: float, within: float, samples: int = 8, seed: int = 0) -> Lengths:
    """What is known after so many groups, each with a row of its own."""
    random_, known = random.Random(seed), Lengths(CAP)
    for row in range(1, groups + 1):
        mean = random_.gauss(6.0, between)
        see(known, [round(math.exp(random_.gauss(mean, within))) for _ in range(samples)], row)
    return known


@pytest.mark.parametrize(("between", "within"), [(0.6, 0.3), (0.3, 0.6), (0.0, 0.5), (0.8, 0.2)])
@pytest.mark.parametrize("samples", [2, 8])
def test_the_deviations_that_lengths_were_drawn_with_are_found_again(
    between: float, within: float, samples: int
) -> None:
    known = drawn(3000 // samples, between, within, samples)
    assert known.mean == pytest.approx(6.0, abs=0.1)
    assert known.sd == pytest.approx(math.hypot(between, within), rel=0.12)
    assert known.sd_within == pytest.approx(within, rel=0.12)


def test_a_length_is_known_once_a_response_has_ended() -> None:
    lengths = Lengths(1000)
    assert not lengths.known
    see(lengths, [100])
    assert lengths.known


def test_before_anything_has_ended_it_guesses() -> None:
    known = Lengths(1000)
    assert (known.mean, known.sd, known.sd_within) == (math.log(1000) - 1.5, 1.0, 0.7)
    assert Lengths(1).mean == math.log(2) - 1.5, "a response of one token has no other length"


def test_deviations_are_guessed_until_eight_are_seen() -> None:
    known = Lengths(CAP)
    for row in range(7):
        see(known, [100 * (row + 1)], row)
    assert (known.sd, known.sd_within) == (1.0, 0.7)
    see(known, [800], 7)
    logs = [math.log(100 * each) for each in range(1, 9)]
    assert known.mean == pytest.approx(statistics.mean(logs))
    assert known.sd == pytest.approx(statistics.pstdev(logs))
    assert known.sd_within == pytest.approx(0.7 * known.sd), "no group has had two"


@pytest.mark.parametrize("tokens", [0, 1])
@pytest.mark.parametrize("first", [True, False])
def test_an_empty_response_counts_as_one_of_a_token(tokens: int, first: bool) -> None:
    """In groups with one of 2 tokens, whichever of the two ends first; others have two of equal lengths."""
    known = Lengths(CAP)
    for row in range(0, 8, 2):
        see(known, [tokens, 2] if first else [2, tokens], row)
        see(known, [10_000, 10_000], row + 1)
    assert known.mean == pytest.approx((math.log(2) + 2 * math.log(10_000)) / 4)
    assert known.sd_within == pytest.approx(math.log(2) / 2)


def test_no_length_is_known_before_its_end() -> None:
    known = Lengths(CAP)
    for row in range(4):
        see(known, [100, 100, 100], row)
    assert known.sd == known.sd_within == 0.1


def test_only_the_newest_lengths_count_and_nothing_of_the_others_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However long a job runs: sums that are only added to and subtracted from would keep what rounding has
    left of every length."""
    monkeypatch.setattr(lengths, "_WINDOW", 16)
    random_, known = random.Random(1), Lengths(CAP)
    for row in range(16 * 500):
        see(known, [random_.choice((1, 10**300))], row)
    for row in range(32):
        see(known, [1000], row)
    assert known.mean == math.log(1000)
    assert known.sd == 0.1
    assert known._logs._sum == math.fsum(known._logs._values)
    assert known._logs._squares == pytest.approx(16 * math.log(1000) ** 2, rel=1e-15)


# A group's estimate


@pytest.fixture(scope="module")
def known() -> Lengths:
    return drawn(300, 0.6, 0.3)


ROW = -1
"""A row without history."""


def test_of_a_new_group_is_known_what_is_known_of_all(known: Lengths) -> None:
    mean, sd = known.group(group_of(running=[0, 0], row=ROW))
    assert mean == pytest.approx(known.mean)
    assert sd == pytest.approx(known.sd, rel=0.01)


def test_each_response_that_ends_changes_what_is_known_of_all_new_groups() -> None:
    seen, group = drawn(30, 0.6, 0.3), group_of(running=[0], row=ROW)
    before, _ = seen.group(group)
    see(seen, [CAP] * 8, row=-2)
    after, _ = seen.group(group)
    assert before < after == pytest.approx(seen.mean)


@pytest.mark.parametrize("tokens", [20, 5000])
def test_each_finished_sibling_moves_the_mean_towards_it_and_makes_it_surer(
    known: Lengths, tokens: int
) -> None:
    found = [known.group(group_of([tokens] * count, [0], row=ROW)) for count in range(9)]
    distances = [abs(mean - math.log(tokens)) for mean, _ in found]
    deviations = [sd for _, sd in found]
    assert distances == sorted(distances, reverse=True) and distances[8] < 0.1 * distances[0]
    assert deviations == sorted(deviations, reverse=True)
    assert deviations[8] > known.sd_within


def test_the_mean_is_the_posterior_of_the_two_variances(known: Lengths) -> None:
    within, between = known.sd_within**2, known.sd**2 - known.sd_within**2
    logs = [math.log(800), math.log(1200)]
    precision = 1 / between + 2 / within
    mean, sd = known.group(group_of([800, 1200], [0], row=ROW))
    assert mean == pytest.approx((known.mean / between + sum(logs) / within) / precision)
    assert sd == pytest.approx(math.sqrt(within + 1 / precision))


@given(st.lists(st.integers(1, 50_000), max_size=4), st.lists(st.integers(0, 50_000), max_size=4))
def test_running_siblings_only_ever_raise_the_mean(finished: list[int], running: list[int]) -> None:
    known = Lengths(CAP)
    without, sd = known.group(group_of(finished, [0] * len(running), row=ROW))
    found, surer = known.group(group_of(finished, running, row=ROW))
    longer = [tokens for tokens in running if tokens > 1 and math.log(tokens) > without]
    assert found > without if longer else found == without
    assert surer < sd if longer else surer == sd


def test_a_running_sibling_counts_as_the_mean_of_what_is_longer_than_it(known: Lengths) -> None:
    within, between = known.sd_within, known.sd**2 - known.sd_within**2
    tail = truncated_mean(known.mean, within, math.log(3000))
    assert tail > math.log(3000)
    mean, _ = known.group(group_of(running=[3000, 5, 0], row=ROW))
    assert mean == pytest.approx((known.mean / between + tail / within**2) / (1 / between + 1 / within**2))


def test_an_earlier_epoch_counts_half(known: Lengths) -> None:
    """Two responses then count as one of today."""
    before = Lengths(CAP)
    before.__dict__.update({**known.__dict__, "_rows": known._rows.copy()})
    before._rows[1000] = (math.log(4000), 2)
    assert before.group(group_of(running=[0], row=1000)) == pytest.approx(
        known.group(group_of([4000], [0], row=ROW))
    )


@pytest.mark.parametrize(("shorter", "longer"), [(0, 1), (1, 2)])
def test_responses_of_hardly_a_token_are_told_apart_but_for_empty_ones(
    known: Lengths, shorter: int, longer: int
) -> None:
    """An empty one has no logarithm, and counts as one token."""
    means = [known.group(group_of(finished=[tokens]))[0] for tokens in (shorter, longer)]
    assert (means[0] < means[1]) is (shorter == 1)


def test_a_groups_own_responses_are_no_history(known: Lengths) -> None:
    """They are kept for the row's next epoch as soon as they end, and count once."""
    fresh = drawn(300, 0.6, 0.3)
    fresh.finished(group_of([900], [0, 0], row=1000))
    fresh.finished(group_of([900, 500], [0], row=1000))
    group = group_of([900, 500], [0], row=1000)
    assert fresh._history(group) is None
    assert fresh.group(group) == pytest.approx(fresh.group(group_of([900, 500], [0], row=ROW)))


@pytest.mark.parametrize("tokens", [0, 1, 9000])
def test_history_is_what_the_row_gave_before_this_group(tokens: int) -> None:
    known = Lengths(CAP)
    see(known, [100, 400], row=5)
    known.finished(group_of([tokens], [0], row=5))
    history = known._history(group_of([tokens], [0], row=5))
    assert history == pytest.approx((math.log(200), 2))
    assert known._history(group_of([], [0], row=6)) is None


def test_rows_are_forgotten_the_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lengths, "_ROWS", 3)
    known = Lengths(CAP)
    for row in (1, 2, 3, 1, 4):
        see(known, [100], row)
    assert list(known._rows) == [3, 1, 4]


# A response's estimate


@pytest.mark.parametrize(
    ("tokens", "mean", "total"),
    [
        (0, 5.0, math.exp(5.005)),
        (0, 50.0, 1000.0),
        (990, 2.0, 990 * 48.98 / 48.88),
        (1000, 5.0, 1000.0),
        (5, -3.0, 6.0),
    ],
    ids=["not begun", "never above the cap", "in the tail", "at the cap", "at least one more"],
)
def test_a_responses_total(tokens: int, mean: float, total: float) -> None:
    (request,) = group_of(running=[tokens]).requests.values()
    assert Lengths(1000).total_of(request, mean, 0.1) == pytest.approx(total, rel=1e-4)
