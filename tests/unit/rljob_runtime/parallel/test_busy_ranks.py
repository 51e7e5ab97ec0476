"""Ranks of a trainer that have something to train."""

from typing import Any

import pytest

from rljob_api import RLJob
from rljob_runtime.parallel.busy_ranks import busy_ranks
from tests.support.jobs import job


@pytest.mark.parametrize(
    ("ranks", "parallel", "busy"),
    [
        # An update has 8 samples.
        (1, {}, 1),
        (8, {}, 8),
        (9, {}, 8),
        (4096, {}, 8),
        (20, {"tensorParallel": 2}, 16),
        (6, {"tensorParallel": 2}, 6),
        (7, {"contextParallel": {"fixed": {"degree": 4}}}, 4),
        (35, {"contextParallel": {"fixed": {"degree": 4}}}, 32),
        (64, {"contextParallel": {"fixed": {"degree": 4}}}, 32),
        (64, {"contextParallel": {"fixed": {"degree": 4}}, "tensorParallel": 2}, 64),
        (64, {"contextParallel": {"hybrid": {"largestDegree": 2}}}, 16),
        (63, {"contextParallel": {"hybrid": {}}}, 63),
    ],
)
def test_busy_ranks(ranks: int, parallel: dict[str, Any], busy: int) -> None:
    changes = {
        "pools.trainer.replicas": ranks,
        "training.parallel": parallel,
        "training.rollout.samplesPerPrompt": 2,
    }
    assert busy_ranks(RLJob.model_validate(job(changes)).spec) == busy
    others = RLJob.model_validate(job(changes | {"pools.trainer.replicas": 8})).spec
    assert busy_ranks(others, ranks) == busy
