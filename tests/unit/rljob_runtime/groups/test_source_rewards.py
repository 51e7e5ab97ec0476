"""Rewards of a step by source."""

import numpy as np

from rljob_runtime.groups.source_rewards import source_rewards
from rljob_runtime.samples import Group, Sample


def group(row: int, *rewards: float | None) -> Group:
    none = np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.float32)
    samples = tuple(
        Sample(
            *none, (), "stop", 0.0 if reward is None else reward, None if reward is not None else "timeout"
        )
        for reward in rewards
    )
    return Group(row, 0, row, none[0], samples, 0)


def test_means_and_pass_rates() -> None:
    groups = [group(0, 1.0, 0.0), group(1, 0.5, 1.0), group(7, None, 0.25), group(8, None)]
    found = source_rewards(groups, lambda row: "math" if row < 5 else "code", pass_reward=0.5)
    assert found == {
        "source_groups": {"math": 2, "code": 2},
        "source_reward": {"math": 2.5 / 4, "code": 0.25},
        "source_pass_rate": {"math": 0.75, "code": 0.0},
    }


def test_a_source_without_any_reward_has_no_mean() -> None:
    found = source_rewards([group(0, None, None)], lambda row: "math", pass_reward=1.0)
    assert found == {"source_groups": {"math": 1}, "source_reward": {}, "source_pass_rate": {}}
