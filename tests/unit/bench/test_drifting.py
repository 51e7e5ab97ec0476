"""How the lengths of a drifting job change from step to step."""

import math

import numpy as np
import pytest

from tests.bench.drifting import KINDS, Drift
from tests.bench.routing_random import DRIFTING, WORKLOADS, draw

DRAWN = [draw(seed) for seed in range(WORKLOADS, WORKLOADS + DRIFTING)]


@pytest.mark.parametrize(
    ("kind", "drifted"),
    [
        ("halved", [[40, 400], [20, 200], [10, 100]]),
        ("doubled", [[10, 100], [20, 200], [40, 400]]),
        ("inverted", [[40, 400], [250, 25], [40, 400]]),
    ],
)
def test_each_step_has_other_lengths(kind: str, drifted: list[list[int]]) -> None:
    drift = Drift(kind, sync_seconds=1.0, waits=None)
    lengths = np.repeat([[40, 400]], 6, axis=0)
    found = drift.lengths(lengths, steps=3, mu=math.log(100), cap=400)
    assert found.tolist() == [step for step in drifted for _ in range(2)], "two groups to a step"


def test_none_is_shorter_than_a_token_or_longer_than_the_cap() -> None:
    drift = Drift("inverted", sync_seconds=1.0, waits=None)
    found = drift.lengths(np.array([[1, 1], [1, 9000]]), steps=2, mu=math.log(50), cap=1000)
    assert found.tolist() == [[1, 1], [1000, 1]]


def test_workloads_have_every_drift_with_and_without_tools_and_every_bound() -> None:
    found = {(each.drift.kind, each.drift.waits is None) for each in DRAWN if each.drift is not None}
    assert found == {(kind, without) for kind in KINDS for without in (True, False)}
    assert {each.bound for each in DRAWN} == {0, 1, 2}
