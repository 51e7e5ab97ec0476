"""The oldest version that engines hold, as they come, load others and go."""

import pytest

from rljob_runtime.rollout.versions_held import VersionsHeld


@pytest.mark.parametrize(
    ("added", "removed", "oldest"),
    [
        ([], [], None),
        ([3], [], 3),
        ([3, 2, 4], [], 2),
        ([3, 2, 4], [2], 3),
        ([2, 2, 4], [2], 2),
        ([2, 2, 4], [2, 2], 4),
        ([2, 4], [4, 2], None),
    ],
)
def test_the_oldest(added: list[int], removed: list[int], oldest: int | None) -> None:
    held = VersionsHeld()
    for version in added:
        held.add(version)
    for version in removed:
        held.remove(version)
    assert held.oldest() == oldest
