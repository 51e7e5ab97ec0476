"""How actors get accelerators."""

import pytest

from rljob_runtime.devices import Accelerator, Devices
from rljob_runtime.site.actor_devices import ask_for_devices, visible_ids


@pytest.mark.parametrize(
    ("kind", "shared", "given"),
    [
        ("nvidia", None, {"num_gpus": 2}),
        ("nvidia", "1,0", {"runtime_env": {"env_vars": {"CUDA_VISIBLE_DEVICES": "1,0"}}}),
        ("ascend", None, {"resources": {"pool": 1, "NPU": 2}}),
        ("ascend", "3", {"runtime_env": {"env_vars": {"ASCEND_RT_VISIBLE_DEVICES": "3"}}}),
        ("cpu", None, {}),
    ],
)
def test_an_actor_asks_for_its_own_or_sees_shared_ones(kind: Accelerator, shared: str | None, given: dict):
    options = {"resources": {"pool": 1}, "runtime_env": {"env_vars": {}}}
    ask_for_devices(options, Devices.of(kind), 2, shared)
    assert options == {"resources": {"pool": 1}, "runtime_env": {"env_vars": {}}} | given


@pytest.mark.parametrize(
    ("listed", "count", "ids"),
    [
        (None, 2, ["0", "1"]),
        ("", 1, ["0"]),
        ("2, 5", 2, ["2", "5"]),
        ("GPU-1f,GPU-2a,7", 2, ["GPU-1f", "GPU-2a"]),
    ],
)
def test_ids_are_those_of_the_variable_or_numbers(listed: str | None, count: int, ids: list[str]):
    environment = {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}
    assert visible_ids(Devices.of("nvidia"), count, environment) == ids
