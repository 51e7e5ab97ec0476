"""The room that checkpoints take beside those that are there: against what a writer holds at any time."""

import random

import pytest

from rljob_runtime.manifest.checkpoint_room import room_needed


@pytest.mark.parametrize(
    ("keep", "there", "room"),
    [
        (2, [], 30),
        (2, [10], 20),
        (2, [10, 10], 10),
        (1, [10], 10),
        # An interrupted writer, or a `keep` that was lowered, has left more than are kept.
        (2, [10, 10, 10, 10], 10),
        (1, [10, 10, 10], 10),
        # Larger ones make no more room than they take until they go.
        (2, [15], 20),
        (2, [15, 15], 10),
        # Smaller ones, of which something was removed, make less.
        (2, [4, 4], 22),
        (1, [0], 20),
    ],
)
def test_room(keep: int, there: list[int], room: int) -> None:
    assert room_needed(10, keep, there) == room


def test_it_is_the_most_that_is_ever_written_beside_what_was_there() -> None:
    draw = random.Random(0)
    for _ in range(300):
        keep, each = draw.randint(1, 5), draw.randint(1, 20)
        there = [draw.randint(0, 30) for _ in range(draw.randint(0, 7))]
        held, most = list(there), 0
        for _ in range(12):
            # A new one is whole before any goes.
            held.append(each)
            most = max(most, sum(held) - sum(there))
            held = held[-keep:]
        assert room_needed(each, keep, there) == most
