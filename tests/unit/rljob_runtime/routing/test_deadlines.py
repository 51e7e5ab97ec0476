"""Which deadline the next training step waits for."""

from collections.abc import Sequence

import pytest

from rljob_runtime.routing.deadlines import Deadlines
from rljob_runtime.routing.requests import GroupRequest


def groups(deadlines: Sequence[int]) -> list[GroupRequest]:
    return [GroupRequest(uid, uid, 10, 4, deadline) for uid, deadline in enumerate(deadlines)]


@pytest.mark.parametrize(
    ("begun", "ended", "urgent"),
    [
        ([], [], None),
        ([3, 3], [], None),
        ([3, 3, 4], [], 3),
        ([3, 3, 4], [0], 3),
        ([3, 3, 4], [0, 1], None),
        ([3, 4, 5], [0], 4),
        ([4, 3], [], 3),
    ],
)
def test_the_nearest_deadline_is_urgent_where_another_one_is_beside_it(
    begun: list[int], ended: list[int], urgent: int | None
) -> None:
    found = Deadlines()
    asked = groups(begun)
    for group in asked:
        found.began(group)
    for place in ended:
        found.ended(asked[place])
    assert found.urgent == urgent
