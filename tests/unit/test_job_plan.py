"""Sizes that follow from the fields."""

from typing import Any

import pytest

from rljob_api import RLJob
from rljob_runtime.job_plan import JobPlan, plan_job
from tests.jobs import job


def plan(schedule: dict[str, Any], **fields: Any) -> JobPlan:
    """The plan of a job with groups of 4, over 100 prompts."""
    changes = {"training.schedule": schedule, "training.rollout.samplesPerPrompt": 4, **fields}
    return plan_job(RLJob.model_validate(job(changes)), 100)


@pytest.mark.parametrize(
    ("schedule", "groups", "steps"),
    [
        ({"totalSteps": 5, "promptsPerBatch": 8}, 40, 5),
        ({"totalSteps": 5, "promptsPerBatch": 8, "batchesPerStep": 2}, 80, 5),
        ({"epochs": 1, "promptsPerBatch": 8}, 100, 13),
        ({"epochs": 3, "promptsPerBatch": 50}, 300, 6),
    ],
)
def test_totals(schedule, groups, steps):
    found = plan(schedule)
    assert (found.total_groups, found.total_steps) == (groups, steps)


@pytest.mark.parametrize(
    ("asynchronous", "groups", "samples"),
    [
        ({"maxStaleness": 1}, 16, 64),
        ({"maxStaleness": 0.5}, 12, 48),
        ({"queueCapacity": 43}, 10, 40),
    ],
)
def test_the_queue_holds_what_staleness_admits_or_what_it_is_given(asynchronous, groups, samples):
    found = plan({"totalSteps": 5, "promptsPerBatch": 8}, **{"training.async": asynchronous})
    assert (found.capacity_groups, found.capacity_samples) == (groups, samples)
