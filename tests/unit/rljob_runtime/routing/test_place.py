"""Least-loaded placement, rule by rule, and against a policy that looks at every engine."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.routing.place import EngineLoad, LeastLoaded

CASES = {
    "no engine": ([], None),
    "the one with less to do": ([(2, 8), (1, 8)], 1),
    "among equals the one that came first": ([(1, 8), (1, 8), (1, 8)], 0),
    "by share, not by number: half of 4 is more than a quarter of 16": ([(2, 4), (4, 16)], 1),
    "equal shares of different limits are equal": ([(2, 8), (1, 4)], 0),
    "idle ones first, whatever their limit": ([(1, 64), (0, 1)], 1),
    "a full one gets nothing": ([(4, 4), (7, 8)], 1),
    "none has room": ([(4, 4), (8, 8)], None),
    "one that takes no requests gets none": ([None, (7, 8)], 1),
    "nobody takes requests": ([None, None], None),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_choice(case: str) -> None:
    loads, chosen = CASES[case]
    policy = LeastLoaded()
    for engine, load in enumerate(loads):
        policy.changed(engine, None if load is None else EngineLoad(*load))
    assert policy.choose() == chosen
    assert policy.choose() == chosen, "choosing counts nothing"


def test_a_choice_follows_what_has_changed() -> None:
    policy = LeastLoaded()
    for engine, load, chosen in [
        (0, EngineLoad(0, 2), 0),
        (1, EngineLoad(0, 2), 0),
        (0, EngineLoad(1, 2), 1),
        (1, EngineLoad(1, 2), 0),
        (0, EngineLoad(2, 2), 1),
        (1, EngineLoad(2, 2), None),
        (1, EngineLoad(1, 2), 1),
        (1, None, None),
        (1, EngineLoad(1, 2), 1),
        (0, EngineLoad(0, 2), 0),
    ]:
        policy.changed(engine, load)
        assert policy.choose() == chosen


loads = st.none() | st.builds(
    lambda limit, running: EngineLoad(min(running, limit), limit),
    st.sampled_from([1, 2, 3, 4, 8]),
    st.integers(0, 8),
)


@given(st.lists(st.tuples(st.integers(0, 5), loads), max_size=300))
def test_it_chooses_as_a_look_at_every_engine_does(changes: list[tuple[int, EngineLoad | None]]) -> None:
    policy, known = LeastLoaded(), {}
    for engine, load in changes:
        policy.changed(engine, load)
        known[engine] = load
        free = [
            (load.running / load.limit, number)
            for number, load in known.items()
            if load is not None and load.running < load.limit
        ]
        assert policy.choose() == min(free, default=(0.0, None))[1]


def test_it_still_does_after_many_changes() -> None:
    """So many that what does not hold any more is thrown away, many times over."""
    rng, policy = random.Random(0), LeastLoaded()
    known = [EngineLoad(0, limit) for limit in (1, 2, 3, 4, 8, 8, 16)]
    for engine, load in enumerate(known):
        policy.changed(engine, load)
    for _ in range(5000):
        engine = rng.randrange(len(known))
        known[engine] = EngineLoad(rng.randint(0, known[engine].limit), known[engine].limit)
        policy.changed(engine, known[engine])
        free = [
            (load.running / load.limit, number)
            for number, load in enumerate(known)
            if load.running < load.limit
        ]
        assert policy.choose() == min(free, default=(0.0, None))[1]


@pytest.mark.parametrize("engines", [1, 8, 1024])
def test_its_memory_grows_with_the_engines_and_not_with_the_requests(engines: int) -> None:
    policy = LeastLoaded()
    for engine in range(engines):
        policy.changed(engine, EngineLoad(0, 4))
    for turn in range(20 * engines + 2000):
        policy.changed(turn % engines, EngineLoad(turn // engines % 4, 4))
    assert len(policy._heap) <= 3 * engines + 64


def test_a_load_that_has_not_changed_leaves_nothing_behind() -> None:
    policy = LeastLoaded()
    for _ in range(10):
        policy.changed(0, EngineLoad(1, 4))
    assert len(policy._heap) == 1


def test_what_few_engines_leave_behind_is_not_cleared_up_at_each_change() -> None:
    policy = LeastLoaded()
    heap = policy._heap
    for turn in range(50):
        policy.changed(0, EngineLoad(turn % 3, 4))
    assert policy._heap is heap


def test_a_decision_looks_at_few_engines_however_many_there_are() -> None:
    """Counted in loads that are compared: a decision among 1,024 engines takes about ten times log2 of that
    at most, on average, where a look at each takes 1,024."""
    compared = 0

    class Counted(float):
        def __lt__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return float(self) < other  # type: ignore[operator]

    class Limit(int):
        def __rtruediv__(self, other: float) -> float:
            return Counted(other / int(self))

    engines, decisions = 1024, 5000
    policy, running, limit = LeastLoaded(), [0] * engines, Limit(98)
    for engine in range(engines):
        policy.changed(engine, EngineLoad(0, limit))
    compared = 0
    for turn in range(decisions):
        chosen = policy.choose()
        assert chosen is not None
        running[chosen] += 1
        policy.changed(chosen, EngineLoad(running[chosen], limit))
        ended = turn * 7 % engines
        if running[ended]:
            running[ended] -= 1
            policy.changed(ended, EngineLoad(running[ended], limit))
    assert compared / decisions < 100
