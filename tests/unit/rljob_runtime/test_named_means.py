"""Means of rewards, which show nothing of how numbers are rounded."""

from collections.abc import Sequence

import pytest

from rljob_runtime.named_means import mean, means_by_name


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([0.5], 0.5),
        ([0.25, 0.75], 0.5),
        ([-0.0, 0.0], 0.0),
        # What is left of these is 2.8e-17, and none of them is what it is written as.
        ([0.1, 0.2, -0.3], 0.0),
        ([0.98 - 0.02 * 49, 0.0], 0.0),
        (1000 * [0.7, -0.1, -0.6], 0.0),
        ([1e6 + 0.1, -1e6 - 0.2, 0.1], 0.0),
        # These are small, and mean it.
        ([1e-18], 1e-18),
        ([3e-9, -1e-9], 1e-9),
        ([1.0, -1.0 + 1e-12], 5e-13),
        # A metric may be any finite number.
        ([1.7e308, 1.7e308], 1.7e308),
        ([1.7e308, 1.7e308, -1.7e308], 1.7e308 / 3),
    ],
)
def test_a_mean(values: Sequence[float], found: float) -> None:
    assert mean(values) == pytest.approx(found, rel=1e-3, abs=0.0)


def test_means_of_parts_are_means_too() -> None:
    parts: list[dict[str, float | None]] = [{"b": 0.1, "a": 1.0}, {"b": 0.2, "a": None}, {"b": -0.3}]
    assert means_by_name(parts) == {"a": 1.0, "b": 0.0}
