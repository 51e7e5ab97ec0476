"""What a reward worker's environment has, wherever it is started."""

import pytest

from rljob_runtime.rewards.launch import environment

OURS = {"OMP_NUM_THREADS": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}


@pytest.mark.parametrize(
    ("inherited", "found"),
    [
        ({}, OURS),
        ({"HOME": "/home/me"}, OURS | {"HOME": "/home/me"}),
        ({"OMP_NUM_THREADS": "4"}, OURS | {"OMP_NUM_THREADS": "4"}),
        # For a reward that computes on NPUs.
        ({"TORCH_DEVICE_BACKEND_AUTOLOAD": "1"}, OURS | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "1"}),
    ],
)
def test_what_is_inherited_counts(inherited: dict[str, str], found: dict[str, str]) -> None:
    assert environment(inherited) == found
