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
from rljob_runtime.routing.book import GroupState, RequestState
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


# By the hazards of all


def begun(known: Lengths, lengths: list[list[int]], tokens: int, first: int = 0) -> list[GroupState]:
    """Groups with rows of their own, whose responses have ended or run with so many tokens. `first`: uid of
    the first one."""
    groups = []
    for uid, each in enumerate(lengths, first):
        groups.append(group := group_of(running=[0] * len(each), row=uid, uid=uid))
        known.began(group, len(groups))
    ends = sorted((length, uid) for uid, each in enumerate(lengths) for length in each if length <= tokens)
    for length, uid in ends:
        groups[uid].finished.append(length)
        groups[uid].requests.popitem()
        known.finished(groups[uid])
    for group in groups:
        for request in group.requests.values():
            request.tokens = tokens
    known.fit_hazards()
    return groups


def uniform(groups: int = 64, siblings: float = 0.0) -> list[list[int]]:
    """Lengths up to 4,096; of each group within a part of it, the smaller the more they are `siblings`."""
    random_ = random.Random(0)
    starts = [random_.random() for _ in range(groups)]
    mixed = [[siblings * start + (1 - siblings) * random_.random() for _ in range(8)] for start in starts]
    return [[1 + int(4095 * each) for each in group] for group in mixed]


def peaks(groups: int = 64, other: float = 0.2, samples: int = 2, seed: int = 0) -> list[list[int]]:
    """Lengths of about 300 or 2,000 tokens, to within a few percent. A prompt has the ones or the others,
    but for a part of its responses, `other`."""
    random_ = random.Random(seed)

    def one(long: bool) -> int:
        return round((2000 if long else 300) * random_.uniform(0.97, 1.03))

    prompts = [random_.random() < 0.5 for _ in range(groups)]
    return [[one(long != (random_.random() < other)) for _ in range(samples)] for long in prompts]


def one_of(groups: list[GroupState]) -> tuple[GroupState, RequestState]:
    group = next(group for group in groups if group.requests)
    return group, next(iter(group.requests.values()))


def test_of_a_uniform_length_hardly_anything_is_expected_near_its_end() -> None:
    known = Lengths(CAP)
    group, request = one_of(begun(known, uniform(), 3700))
    assert 3701 <= known.total_of(request, *known.group(group)) < 4096 + 200
    assert expected_total(*known.group(group), 3700) > 5000, "as lognormal ones it would go on for long"


@pytest.mark.parametrize("tokens", [1600, 1930])
@pytest.mark.parametrize("other", [0.1, 0.2])
@pytest.mark.parametrize("samples", [2, 8])
def test_of_two_peaks_nothing_is_expected_beyond_the_second(tokens: int, other: float, samples: int) -> None:
    """Also where siblings are alike; as lognormal ones the longest would go on for long."""
    known = Lengths(CAP)
    begun(known, peaks(other=other, samples=samples), CAP)
    groups = begun(known, peaks(other=other, samples=samples, seed=1), tokens, first=1000)
    assert known.alike
    running = [(group, request) for group in groups for request in group.requests.values()]
    found = [known.total_of(request, *known.group(group), known.most(group)) for group, request in running]
    assert max(found) < 2000 * 1.1
    assert max(expected_total(*known.group(group), tokens) for group, _ in running) > 2000 * 1.2


def test_where_siblings_are_alike_they_tell_more_than_all_others() -> None:
    """A response like its siblings is as long as they, whatever all others are."""
    known = Lengths(CAP)
    begun(known, peaks(other=0.0), CAP)
    for sibling in (300, 2000):
        group = group_of([sibling], running=[100], row=ROW)
        (request,) = group.requests.values()
        mean, sd = known.group(group)
        found = known.total_of(request, mean, sd, known.most(group))
        assert found == pytest.approx(expected_total(mean, sd, 100)) == pytest.approx(sibling, rel=0.05)


MOST = {
    "nothing is known but of others": ([], [0], (300 + 2000) / 2),
    "a short one has ended": ([300], [0], 2000),
    "a long one has ended": ([2000], [0], 2040),
    "a long one runs": ([300], [1500, 0], 2000),
    "longer than all": ([300], [3000, 0], 3060),
}
"""Lengths of complete responses, tokens of others, and what the longest of the group is expected to have."""


@pytest.mark.parametrize(("finished", "running", "most"), MOST.values(), ids=MOST)
def test_the_longest_of_a_group_by_the_longest_of_others(
    finished: list[int], running: list[int], most: float
) -> None:
    known = Lengths(CAP)
    begun(known, [[250, 300]] * 20 + [[300, 2000]] * 4 + [[2000, 1900]] * 16, CAP)
    assert known.alike
    assert known.most(group_of(finished, running, row=ROW)) == pytest.approx(most)


@pytest.mark.parametrize(
    ("now", "most"),
    [
        pytest.param(lambda before: before, 2040, id="where they tell anything"),
        pytest.param(lambda before: 600_000 // before, 1150, id="not where they tell the contrary"),
    ],
)
def test_what_a_row_had_in_earlier_epochs_counts_as_what_a_sibling_has(
    now: Callable[[int], int], most: float
) -> None:
    """Rows had 300 or 2,000 tokens; in this epoch most of them have come again, and one that had 2,000 has
    not begun."""
    known = Lengths(CAP)
    before = [300, 2000] * 20
    begun(known, [[each] * 2 for each in before], CAP)
    for uid, each in enumerate([*before[:-1], *before[:-1]], 100):
        row = (uid - 100) % 39
        group = group_of(row=row, uid=uid)
        known.began(group, 1)
        for _ in range(2):
            group.finished.append(now(each))
            known.finished(group)
    known.fit_hazards()
    assert known.alike
    assert known.most(group_of([], [0], row=39)) == pytest.approx(most, rel=0.03)


def test_where_siblings_tell_little_groups_say_nothing_of_their_longest() -> None:
    known = Lengths(CAP)
    group, _ = one_of(begun(known, uniform(), 3700))
    assert known.most(group) == math.inf
    assert Lengths(CAP).most(group) == math.inf, "nor before anything has ended"


def test_hazards_never_raise_what_is_expected() -> None:
    """A tenth of the responses is much longer than the others, which have all ended."""
    known, random_ = Lengths(CAP), random.Random(0)
    kinds = [
        [90_000 if random_.random() < 0.1 else random_.randint(1, 900) for _ in range(8)] for _ in range(64)
    ]
    begun(known, kinds, 90_000)
    (request,) = group_of(running=[901]).requests.values()
    assert known.total_of(request, 5.0, 0.5) == expected_total(5.0, 0.5, 901)


def test_of_many_groups_under_way_every_second_or_third_is_looked_at_in_the_order_of_dispatch() -> None:
    known = Lengths(CAP)
    for uid in range(2000):
        known.began(group_of(uid=uid), 600)
    kept = [group.request.uid for group in known._cohort]
    assert kept == list(range(1998 - 3 * 511, 2000, 3))


@pytest.mark.parametrize("tokens", [0, 1])
def test_where_all_responses_are_hardly_a_token_one_is_expected(tokens: int) -> None:
    known = Lengths(CAP)
    begun(known, [[tokens] * 8] * 8, tokens)
    (request,) = group_of(running=[0]).requests.values()
    assert known.total_of(request, 5.0, 0.5) == 1.0


def test_before_a_response_has_ended_hazards_say_nothing() -> None:
    known = Lengths(CAP)
    known.fit_hazards()
    (request,) = group_of(running=[5]).requests.values()
    assert known.total_of(request, 5.0, 0.5) == expected_total(5.0, 0.5, 5)


@pytest.mark.parametrize(
    ("now", "long", "short"),
    [
        pytest.param(lambda before: before, 3970, 1010, id="as before"),
        pytest.param(lambda before: before / 2, 3970, 1000, id="all half as long"),
        pytest.param(lambda before: 4_000_000 / before, 2100, 2100, id="the other way round"),
        pytest.param(lambda before: 2000, 2390, 1670, id="all alike"),
    ],
)
def test_earlier_epochs_count_as_far_as_they_tell_groups_apart(
    now: Callable[[int], float], long: int, short: int
) -> None:
    """Rows gave 1,000 or 4,000 tokens in an earlier epoch. In this one most of them have come again;
    two that have not begin."""
    known = Lengths(CAP)
    before = {row: 4000 if row % 2 else 1000 for row in range(100)}
    for row, tokens in before.items():
        for _ in range(4):
            known.finished(group_of([tokens], row=row))
    for row in range(80):
        for count in range(1, 5):
            known.finished(group_of([round(now(before[row]))] * count, row=row))
    found = [math.exp(known.group(group_of([], [0], row=row))[0]) for row in (99, 98)]
    assert found == pytest.approx([long, short], rel=0.05)
