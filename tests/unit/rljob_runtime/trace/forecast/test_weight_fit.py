"""The way of weight versions, by the events of a run."""

import pytest

from rljob_runtime.trace.forecast.weight_fit import WeightFit, fit_weights

Times = list[tuple[float, float]]

FOUR: Times = [(0.0, 8.0), (100.0, 1.0), (200.0, 2.0), (300.0, 6.0)]
"""Published in 8, 1, 2 and 6 s."""


@pytest.mark.parametrize(
    ("published", "pauses", "starts", "found"),
    [
        ([], [], [], None),
        ([], [5.0], [], None),
        (FOUR, [], [], None),
        # Of engines that pause together the first one counts; the first version warms up.
        (FOUR, [20.0, 104.0, 105.0, 207.0, 314.0], [], WeightFit(2.0, 5.0, 3)),
        # So does the first one after each start.
        (FOUR, [20.0, 104.0, 207.0, 314.0], [-5.0, 150.0], WeightFit(3.5, 5.5, 2)),
        # A start after all versions.
        (FOUR, [20.0, 104.0, 207.0, 314.0], [500.0], WeightFit(2.0, 5.0, 3)),
        # The second was never loaded: a trainer was lost, or no engine was there.
        (FOUR, [20.0, 207.0, 314.0], [], WeightFit(4.0, 6.5, 2)),
        # There is only one.
        ([(0.0, 8.0)], [20.0], [0.0], WeightFit(8.0, 12.0, 1)),
        # A pause before a version was published is for none.
        ([(0.0, 8.0)], [-3.0, 7.0], [], None),
        # In whatever order they are read.
        (FOUR[::-1], [314.0, 207.0, 104.0, 20.0], [], WeightFit(2.0, 5.0, 3)),
    ],
)
def test_the_way_of_versions(
    published: Times, pauses: list[float], starts: list[float], found: WeightFit | None
) -> None:
    assert fit_weights(published, pauses, starts) == found
