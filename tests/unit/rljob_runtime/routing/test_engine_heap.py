"""The engine with the smallest share in use, rule by rule, and against a look at every engine."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.routing.engine_heap import EngineHeap

Load = tuple[int, int]
"""Requests on an engine, and its limit."""


def share(load: Load | None) -> float | None:
    """What the default policy scores an engine by; None where it has no room."""
    return None if load is None or load[0] >= load[1] else load[0] / load[1]


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
    heap = EngineHeap()
    for engine, load in enumerate(loads):
        heap.set(engine, share(load))
    assert heap.best() == chosen
    assert heap.best() == chosen, "choosing counts nothing"


def test_a_choice_follows_what_has_changed() -> None:
    heap = EngineHeap()
    for engine, load, chosen in [
        (0, (0, 2), 0),
        (1, (0, 2), 0),
        (0, (1, 2), 1),
        (1, (1, 2), 0),
        (0, (2, 2), 1),
        (1, (2, 2), None),
        (1, (1, 2), 1),
        (1, None, None),
        (1, (1, 2), 1),
        (0, (0, 2), 0),
    ]:
        heap.set(engine, share(load))
        assert heap.best() == chosen


loads = st.none() | st.builds(
    lambda limit, running: (min(running, limit), limit),
    st.sampled_from([1, 2, 3, 4, 8]),
    st.integers(0, 8),
)


@given(st.lists(st.tuples(st.integers(0, 5), loads), max_size=300))
def test_it_chooses_as_a_look_at_every_engine_does(changes: list[tuple[int, Load | None]]) -> None:
    heap, known = EngineHeap(), {}
    for engine, load in changes:
        heap.set(engine, share(load))
        known[engine] = load
        free = [
            (load[0] / load[1], number)
            for number, load in known.items()
            if load is not None and load[0] < load[1]
        ]
        assert heap.best() == min(free, default=(0.0, None))[1]


def test_it_still_does_after_many_changes() -> None:
    """So many that what does not hold any more is thrown away, many times over."""
    rng, heap = random.Random(0), EngineHeap()
    known = [(0, limit) for limit in (1, 2, 3, 4, 8, 8, 16)]
    for engine, load in enumerate(known):
        heap.set(engine, share(load))
    for _ in range(5000):
        engine = rng.randrange(len(known))
        known[engine] = (rng.randint(0, known[engine][1]), known[engine][1])
        heap.set(engine, share(known[engine]))
        free = [(load[0] / load[1], number) for number, load in enumerate(known) if load[0] < load[1]]
        assert heap.best() == min(free, default=(0.0, None))[1]


@pytest.mark.parametrize("engines", [1, 8, 1024])
def test_its_memory_grows_with_the_engines_and_not_with_the_requests(engines: int) -> None:
    heap = EngineHeap()
    for engine in range(engines):
        heap.set(engine, share((0, 4)))
    for turn in range(20 * engines + 2000):
        heap.set(turn % engines, share((turn // engines % 4, 4)))
    assert len(heap._heap) <= 3 * engines + 64


def test_a_load_that_has_not_changed_leaves_nothing_behind() -> None:
    heap = EngineHeap()
    for _ in range(10):
        heap.set(0, share((1, 4)))
    assert len(heap._heap) == 1


def test_what_few_engines_leave_behind_is_not_cleared_up_at_each_change() -> None:
    heap = EngineHeap()
    entries = heap._heap
    for turn in range(50):
        heap.set(0, share((turn % 3, 4)))
    assert heap._heap is entries


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
    heap, running, limit = EngineHeap(), [0] * engines, Limit(98)
    for engine in range(engines):
        heap.set(engine, share((0, limit)))
    compared = 0
    for turn in range(decisions):
        chosen = heap.best()
        assert chosen is not None
        running[chosen] += 1
        heap.set(chosen, share((running[chosen], limit)))
        ended = turn * 7 % engines
        if running[ended]:
            running[ended] -= 1
            heap.set(ended, share((running[ended], limit)))
    assert compared / decisions < 100
