"""Sizes that follow from the fields."""

import pytest

from rljob_api import RLJob
from rljob_runtime.job_plan import plan_job


def job(schedule: dict, **training) -> RLJob:
    return RLJob.model_validate(
        {
            "metadata": {"name": "j"},
            "spec": {
                "accelerator": "cpu",
                "training": {
                    "model": {"random": {}},
                    "tokenizer": {"characters": {}},
                    "data": {"generated": {"task": "copy"}, "maxPromptTokens": 16},
                    "reward": {"function": "m:f"},
                    "rollout": {"maxResponseTokens": 8, "samplesPerPrompt": 4},
                    "schedule": schedule,
                    **training,
                },
            },
        }
    )


@pytest.mark.parametrize(
    ("schedule", "rows", "groups", "steps"),
    [
        ({"totalSteps": 5, "promptsPerBatch": 8}, 100, 40, 5),
        ({"totalSteps": 5, "promptsPerBatch": 8, "batchesPerStep": 2}, 100, 80, 5),
        ({"epochs": 1, "promptsPerBatch": 8}, 100, 100, 13),
        ({"epochs": 3, "promptsPerBatch": 50}, 100, 300, 6),
    ],
)
def test_totals(schedule, rows, groups, steps):
    plan = plan_job(job(schedule), rows)
    assert (plan.total_groups, plan.total_steps) == (groups, steps)


def test_the_queue_holds_what_staleness_admits():
    plan = plan_job(job({"totalSteps": 5, "promptsPerBatch": 8}, **{"async": {"maxStaleness": 1}}), 100)
    assert (plan.capacity_groups, plan.capacity_samples) == (16, 64)


def test_a_smaller_queue_is_counted_in_whole_groups():
    plan = plan_job(job({"totalSteps": 5, "promptsPerBatch": 8}, **{"async": {"queueCapacity": 43}}), 100)
    assert (plan.capacity_groups, plan.capacity_samples) == (10, 40)
