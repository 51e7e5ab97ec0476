"""What the bench of weight updates makes of how long a version took to be sent."""

from collections.abc import Sequence

import pytest

from tests.bench.weight_staging_rows import Sent, after_first, sending


@pytest.mark.parametrize(
    ("left", "found"),
    [
        # Bytes of each broadcast, and the second at which it was done.
        ([(100, 1.0), (300, 1.5)], (500.0, 0.75)),
        ([(100, 1.0), (200, 1.25), (100, 2.0)], (1000.0, 0.75)),
        ([(400, 1.0)], (0.0, 0.0)),
    ],
)
def test_sending_by_itself_is_what_follows_the_first_bucket(
    left: Sequence[tuple[int, float]], found: tuple[float, float]
):
    assert after_first(left, lambda first, last: 1e3 * (last - first)) == found


@pytest.mark.parametrize(
    ("share", "raw", "rows"),
    [
        # Medians of three; the second one has its part of the raw broadcast for a baseline.
        (0.75, 4.0, [("nccl: sending a version: median", 8.0, 4.0),
                     ("nccl: of it after the first bucket (75% of the bytes): median", 6.0, 3.0)]),
        (0.75, None, [("nccl: sending a version: median", 8.0, None),
                      ("nccl: of it after the first bucket (75% of the bytes): median", 6.0, None)]),
        # A small version is one bucket.
        (0.0, 4.0, [("nccl: sending a version: median", 8.0, 4.0)]),
    ],
)  # fmt: skip
def test_each_part_of_sending_stands_beside_as_much_of_a_raw_broadcast(
    share: float, raw: float | None, rows: list[tuple[str, float, float | None]]
):
    sent = [Sent(whole, whole - 2, share) for whole in (9.0, 8.0, 7.0)]
    found = sending("nccl", sent, raw)
    assert [(figure.name, figure.value, figure.baseline) for figure in found] == rows
    assert {figure.goal for figure in found} == {"1.3 x the baseline"}
