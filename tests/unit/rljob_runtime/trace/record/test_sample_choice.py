"""Which responses of a step are kept, by rewards, lengths and groups."""

import random

import pytest

from rljob_runtime.trace.record.sample_choice import Candidate, choose

Place = tuple[int, int]


def step(groups: int, size: int) -> list[Candidate]:
    """Rewards and lengths that are all different, and fall with the group: response (uid, index)."""
    return [
        Candidate(uid, 100 + uid, index, 1.0 - (uid * size + index) / 1000, 50 + (uid * 7 + index * 3) % 40)
        for uid in range(groups)
        for index in range(size)
    ]


def places(chosen: list[Candidate]) -> list[Place]:
    return [(each.uid, each.place) for each in chosen]


def rewarded(*rewards: float | None) -> list[Candidate]:
    """Groups of one response each, which are ever longer."""
    return [Candidate(uid, uid, 0, reward, uid) for uid, reward in enumerate(rewards)]


@pytest.mark.parametrize(
    ("candidates", "count", "expected"),
    [
        ([], 8, []),
        (step(2, 2), 4, [(0, 0), (0, 1), (1, 0), (1, 1)]),
        (step(2, 2), 9, [(0, 0), (0, 1), (1, 0), (1, 1)]),
        (step(2, 2), 0, []),
        # The best one, then the worst, then the longest.
        (rewarded(0.5, 0.9, 0.1, 0.5), 1, [(1, 0)]),
        (rewarded(0.5, 0.9, 0.1, 0.5), 2, [(1, 0), (2, 0)]),
        (rewarded(0.5, 0.9, 0.1, 0.5), 3, [(1, 0), (2, 0), (3, 0)]),
        # One without a reward is neither the best nor the worst, but may be the longest.
        (rewarded(0.5, 0.9, 0.1, 0.5, None), 3, [(1, 0), (2, 0), (4, 0)]),
        (rewarded(None, -5.0, -6.0, None), 2, [(1, 0), (2, 0)]),
        (rewarded(None, None, None), 1, [(2, 0)]),
    ],
)
def test_the_extremes_come_first(candidates: list[Candidate], count: int, expected: list[Place]) -> None:
    assert places(choose(candidates, count, random.Random(0))) == expected


@pytest.mark.parametrize("seed", range(5))
def test_groups_are_whole_where_they_fit(seed: int) -> None:
    chosen = choose(step(20, 4), 16, random.Random(seed))
    sizes = [sum(each.uid == uid for each in chosen) for uid in range(20)]
    assert sizes.count(4) == 4 and sizes.count(0) == 16
    assert sizes[0] == 4 and sizes[19] == 4, "those of the best and of the worst response"


@pytest.mark.parametrize("seed", range(5))
def test_a_group_that_does_not_fit_gives_as_many_as_there_is_room_for(seed: int) -> None:
    candidates = step(6, 64)
    chosen = choose(candidates, 32, random.Random(seed))
    longest = max(candidates, key=lambda each: each.length)
    by_group = {uid: sum(each.uid == uid for each in chosen) for uid in range(6)}
    groups = {uid for uid, count in by_group.items() if count}
    assert groups <= {0, 5} | {each.uid for each in candidates if each.length == longest.length}
    assert len(chosen) == 32 and by_group[0] >= 30 - 1, "siblings of the best one"


def test_a_followed_prompt_is_among_them_and_leaves_room_for_others() -> None:
    followed = {100 + uid for uid in range(3, 13)}
    with_it = [{each.uid for each in choose(step(20, 4), 24, random.Random(s), followed)} for s in range(50)]
    assert all(groups & set(range(3, 13)) for groups in with_it)
    assert {uid for groups in with_it for uid in groups} == set(range(20)), "others are drawn as well"
    without = [{each.uid for each in choose(step(20, 4), 24, random.Random(s))} for s in range(50)]
    rare = {112}
    again = [{each.uid for each in choose(step(20, 4), 24, random.Random(s), rare)} for s in range(50)]
    assert all(12 in groups for groups in again) and not all(12 in groups for groups in without)


def test_the_seed_decides_and_nothing_else() -> None:
    candidates = step(20, 4)
    drawn = [places(choose(candidates, 20, random.Random(seed))) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert places(choose(candidates[::-1], 20, random.Random(1))) == drawn[0], "not their order"


def test_among_equals_any_may_be_the_best() -> None:
    equal = [Candidate(uid, uid, 0, 1.0, 5) for uid in range(8)]
    assert {choose(equal, 1, random.Random(seed))[0].uid for seed in range(100)} == set(range(8))
