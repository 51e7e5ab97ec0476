"""What is expected of lengths by the hazards of all responses, and by the longest of other groups."""

import math
import random
from collections.abc import Callable

import pytest

from rljob_runtime.routing.book import GroupState, RequestState
from rljob_runtime.routing.lengths import Lengths, expected_total
from tests.support.simulated.routed import group_of

CAP = 100_000
ROW = -1


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
