"""What the bench of weight updates makes of how long a version took to be sent."""

from collections.abc import Sequence

import pytest

from tests.bench.step_clock import Flow
from tests.bench.weight_staging_rows import Kind, Sent, Update, after_first, report, sending


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


SWAPPED = Update(400.0, 0.0, 0.0, 0.0, 70.0, 0.8, 512, goes_on=12.0, flow=Flow(20.0, 24.0, 0.5))
STAGED = Update(400.0, 40.0, 4.0, 6.0, 90.0, 0.8, 1024, flow=Flow(20.0, 60.0, 14.0))
LOADED = Update(0.0, 40.0, 400.0, 6.0, 500.0, float("nan"), 1024)


@pytest.mark.parametrize(
    ("kinds", "stall"),
    [
        ({"staged": STAGED, "loaded": LOADED}, [("shm: stall: median", 50.0, 446.0)]),
        ({"staged": STAGED}, [("shm: stall: median", 50.0, None)]),
        (
            {"swapped": SWAPPED, "staged": STAGED},
            [
                ("shm, swapped: stall, no step under way: median", 0.5, 14.0),
                ("shm, swapped: from the call until it goes on with the version: median", 12.0, 50.0),
            ],
        ),
        (
            {"swapped": SWAPPED, "staged": STAGED, "loaded": LOADED},
            [
                ("shm, swapped: stall, no step under way: median", 0.5, 14.0),
                ("shm, swapped: from the call until it goes on with the version: median", 12.0, 50.0),
                ("shm: stall: median", 50.0, 446.0),
            ],
        ),
    ],
)
def test_each_kind_of_update_stands_beside_the_next(
    kinds: dict[Kind, Update], stall: list[tuple[str, float, float | None]]
) -> None:
    found = report("shm", {kind: [one] for kind, one in kinds.items()}, dict.fromkeys(kinds, 0.01), lost=0)
    names = {name for name, _, _ in stall}
    assert [(row.name, row.value, row.baseline) for row in found if row.name in names] == stall
    assert len({row.name for row in found}) == len(found), "no name is there twice"
    assert (found[-1].name, found[-1].value) == ("shm: responses lost", 0)
