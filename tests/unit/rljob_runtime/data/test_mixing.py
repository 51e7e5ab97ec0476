"""The order of several sources: shares, evenness, and that nothing but sizes and weights matters."""

from collections import Counter

import pytest

from rljob_runtime.data.mixing import Mix, Place, quotas


@pytest.mark.parametrize(
    ("rows", "weights", "expected"),
    [
        ([30, 10], None, (30, 10)),
        ([3, 5, 7, 11], None, (3, 5, 7, 11)),
        ([30, 10], [1.0, 1.0], (20, 20)),
        ([30, 10], [0.1, 0.3], (10, 30)),
        # Of 10: 3.33 each; the remainders are equal, and the first gets what is left.
        ([4, 3, 3], [1.0, 1.0, 1.0], (4, 3, 3)),
        ([1, 9], [2.0, 1.0], (7, 3)),
        # One at least, though its share is less: the epoch has one more then.
        ([50, 50], [1.0, 1e-6], (100, 1)),
        ([8], None, (8,)),
        ([8], [3.0], (8,)),
    ],
)
def test_shares_of_an_epoch(rows: list[int], weights: list[float] | None, expected: tuple[int, ...]) -> None:
    assert quotas(rows, weights) == expected


def test_without_weights_an_epoch_has_each_prompt_once() -> None:
    mix = Mix([5, 3])
    for epoch in range(3):
        seen = [mix.at(position) for position in range(epoch * 8, epoch * 8 + 8)]
        assert {at.epoch for at in seen} == {epoch}
        assert Counter((at.source, at.place) for at in seen) == Counter(
            {(source, place): 1 for source, size in enumerate((5, 3)) for place in range(size)}
        )


def test_a_source_goes_on_where_the_epoch_before_left_it() -> None:
    mix = Mix([6, 2], [1.0, 1.0])
    second = [mix.at(position) for position in range(24) if mix.at(position).source == 1]
    assert second == [Place(1, number // 2, number % 2) for number in range(12)]
    first = [mix.at(position) for position in range(24) if mix.at(position).source == 0]
    assert first == [Place(0, number // 6, number % 6) for number in range(12)]


@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0), (5.0, 2.0, 1.0), (90.0, 9.0, 1.0)])
def test_every_stretch_has_its_shares(weights: tuple[float, ...]) -> None:
    mix = Mix([400, 300, 100], weights)
    order = [mix.at(position).source for position in range(2 * mix.rows)]
    for start in range(0, mix.rows, 7):
        for length in (1, 8, 64, 500):
            found = Counter(order[start : start + length])
            for source, quota in enumerate(mix.quotas):
                # Within a prompt for each of the two other sources.
                assert abs(found[source] - length * quota / mix.rows) <= 2


def test_sources_of_an_epoch_are_mixed_evenly() -> None:
    assert [Mix([4, 2]).at(position).source for position in range(6)] == [0, 1, 0, 0, 1, 0]
