"""Unions of time intervals."""

from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.trace.analyse.cover import GAP, Cover

Intervals = st.lists(
    st.tuples(st.integers(0, 200), st.integers(1, 50)).map(lambda pair: (pair[0], pair[0] + pair[1])),
    max_size=40,
)


@given(Intervals, st.integers(0, 250), st.integers(0, 250))
def test_a_cover_is_the_union_of_its_intervals_in_any_order(
    intervals: list[tuple[int, int]], a: int, b: int
) -> None:
    start, end = min(a, b), max(a, b)
    cover = Cover()
    for first, last in intervals:
        cover.add(first, last)
    inside = {second for first, last in intervals for second in range(first, last)}
    assert cover.within(start, end) == len(inside.intersection(range(start, end)))


def test_a_pause_that_nobody_can_see_is_covered() -> None:
    cover = Cover()
    cover.add(0, 1)
    cover.add(1 + GAP / 2, 2)
    assert len(cover) == 1 and cover.within(0, 2) == 2
