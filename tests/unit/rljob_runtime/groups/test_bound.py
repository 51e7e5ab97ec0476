"""What of an RLJob says how old a sample may be."""

from typing import Any

import pytest

from rljob_api import RLJob
from rljob_runtime.groups.staleness import Bound
from tests.support.jobs import job


@pytest.mark.parametrize(("changes", "masks"), [({}, False), ({"staleTokens": "mask"}, True)])
def test_the_bound_of_a_job(changes: dict[str, Any], masks: bool) -> None:
    given = {
        "training.schedule": {"totalSteps": 9, "promptsPerBatch": 4, "batchesPerStep": 3},
        "training.async": {"maxStaleness": 2.5, "stepsPerVersion": 5, **changes},
    }
    training = RLJob.model_validate(job(given)).spec.training
    assert Bound.of(training) == Bound(2.5, 12, 5, masks=masks)
