"""Every epoch is a permutation, and all places are about equally likely for each row."""

from itertools import chain

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_runtime.data.shuffle import mix, mix_many, permutation


@settings(deadline=None)
@given(seed=st.integers(0, 2**31 - 1), epoch=st.integers(0, 10**6), rows=st.integers(1, 3000))
def test_each_row_once(seed: int, epoch: int, rows: int) -> None:
    assert np.array_equal(np.sort(permutation(seed, epoch, rows)), np.arange(rows))


@given(key=st.integers(0, 2**64 - 1), index=st.integers(0, 500))
def test_the_two_forms_of_the_generator_agree(key: int, index: int) -> None:
    assert int(mix_many(key, index + 1)[index]) == mix(key, index)


def test_places_are_uniform() -> None:
    """A chi-square test per seed: 4000 epochs of 8 rows, 49 degrees of freedom; 85.4 is the 0.1 % point."""
    for seed in range(4):
        counts = np.zeros((8, 8))
        for epoch in range(4000):
            counts[np.arange(8), permutation(seed, epoch, 8)] += 1
        assert ((counts - 500) ** 2 / 500).sum() < 85.4


def test_seeds_and_epochs_do_not_meet() -> None:
    """No two of 50 x 50 (seed, epoch) pairs have the same order."""
    orders = chain.from_iterable(
        (permutation(seed, epoch, 32).tobytes() for epoch in range(50)) for seed in range(50)
    )
    assert len(set(orders)) == 2500
