"""The sum over an upper envelope of lines, against adding up step by step."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.simulate.attention import envelope_sum

LINES = st.lists(st.tuples(st.integers(0, 500), st.integers(0, 40)), min_size=1, max_size=12)


@given(LINES, st.integers(1, 120))
def test_closed_form_is_the_sum_of_the_largest(lines: list[tuple[int, int]], steps: int) -> None:
    kv, growth = (np.array(column, dtype=np.int64) for column in zip(*lines, strict=True))
    slow = sum(int((kv + step * growth).max()) for step in range(steps))
    assert envelope_sum(kv, growth, steps) == slow
