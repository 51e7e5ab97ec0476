"""Whatever a step holds: as many responses are kept as were asked for, the extremes among them."""

import random
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.trace.record.sample_choice import Candidate, choose
from rljob_runtime.trace.record.thinning import thinned

REWARDS = st.none() | st.floats(-10, 10) | st.sampled_from([0.0, 1.0])
GROUPS = st.lists(st.lists(st.tuples(REWARDS, st.integers(0, 50)), min_size=1, max_size=9), max_size=9)


@given(GROUPS, st.integers(0, 90), st.integers(0, 5), st.sets(st.integers(0, 9)))
def test_what_is_kept(
    groups: list[list[tuple[float | None, int]]], count: int, seed: int, followed: set[int]
) -> None:
    candidates = [
        Candidate(uid, uid % 4, index, reward, length)
        for uid, members in enumerate(groups)
        for index, (reward, length) in enumerate(members)
    ]
    chosen = choose(candidates, count, random.Random(seed), followed)
    assert len(chosen) == len(set(chosen)) == min(count, len(candidates))
    assert set(chosen) <= set(candidates)
    assert chosen == sorted(chosen, key=lambda each: (each.uid, each.place))
    rewards = [each.reward for each in candidates if each.reward is not None]
    kept = [each.reward for each in chosen if each.reward is not None]
    if rewards and count >= 1:
        assert max(kept) == max(rewards)
    if rewards and count >= 2:
        assert min(kept) == min(rewards)
    if candidates and count >= 3:
        assert max(each.length for each in chosen) == max(each.length for each in candidates)


@given(st.dictionaries(st.integers(0, 500), st.integers(1, 100)), st.integers(1, 2000), st.integers(0, 2000))
def test_what_stays_of_a_file(bytes_of: dict[int, int], wanted: int, more: int) -> None:
    stay = thinned(bytes_of, wanted, most=max(wanted, more))
    assert stay <= set(bytes_of)
    left = sum(bytes_of[step] for step in stay)
    assert left <= max(wanted, more)
    if sum(bytes_of.values()) <= wanted:
        assert stay == set(bytes_of)
    elif stay:
        assert max(bytes_of) in stay
        steps = sorted(bytes_of)
        places = [steps.index(step) for step in sorted(stay)]
        assert len({later - earlier for earlier, later in pairwise(places)}) <= 1
