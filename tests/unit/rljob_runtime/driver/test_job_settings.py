"""Sizes that follow from the fields."""

from typing import Any

import pytest

from rljob_api import RLJob
from rljob_runtime.driver.job_settings import JobSettings, Origin, job_settings
from rljob_runtime.groups.ledger import Ledger
from tests.support.jobs import job


def plan(schedule: dict[str, Any], origin: Origin | None = None, **fields: Any) -> JobSettings:
    """The plan of a job with groups of 4, over 100 prompts."""
    changes = {"training.schedule": schedule, "training.rollout.samplesPerPrompt": 4, **fields}
    return job_settings(RLJob.model_validate(job(changes)), 100, origin or Origin())


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
    ("schedule", "origin", "groups", "steps", "updates"),
    [
        ({"epochs": 1, "promptsPerBatch": 8}, (5, 40, 5), 100, 13, 13),
        ({"epochs": 1, "promptsPerBatch": 8}, (5, 20, 5), 100, 15, 15),
        ({"epochs": 1, "promptsPerBatch": 2}, (5, 20, 5), 100, 45, 45),
        ({"epochs": 2, "promptsPerBatch": 8}, (13, 100, 13), 200, 26, 26),
        ({"epochs": 1, "promptsPerBatch": 8}, (13, 100, 13), 100, 13, 13),
        ({"epochs": 1, "promptsPerBatch": 8, "batchesPerStep": 2}, (5, 40, 5), 100, 9, 13),
        ({"totalSteps": 10, "promptsPerBatch": 8}, (5, 40, 5), 80, 10, 10),
        ({"totalSteps": 10, "promptsPerBatch": 8}, (5, 20, 5), 60, 10, 10),
        ({"totalSteps": 10, "promptsPerBatch": 2}, (5, 20, 20), 30, 10, 25),
        ({"totalSteps": 5, "promptsPerBatch": 8}, (5, 20, 5), 20, 5, 5),
    ],
)
def test_what_is_left_follows_from_what_is_trained(schedule, origin, groups, steps, updates):
    found = plan(schedule, Origin(*origin[:2], updates=origin[2]))
    assert (found.total_groups, found.total_steps, found.total_updates) == (groups, steps, updates)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_admission_after_a_resume_is_that_of_steps_of_the_same_size(size):
    """Five steps of 4 are done."""
    fields = {"training.async": {"maxStaleness": 0}}
    schedule = {"epochs": 1, "promptsPerBatch": size}
    controller = plan(schedule, Origin(5, 20, updates=5), **fields).controller(Ledger(20))
    assert (controller.room(5), controller.batch_size()) == (size, size)
    controller = plan(schedule, Origin(5, 20, updates=5), **fields).controller(Ledger(99))
    assert controller.batch_size() == 1, "the last step takes what is left"


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


FILTER = {"training.rollout.filter": {"zeroVariance": {"maxRefill": 2}}}
RATES = {"training.rollout.filter": {"passRate": {"max": 0.9}}}
BOTH = {"training.rollout.filter": {"zeroVariance": {"maxRefill": 2}, "passRate": {"max": 0.9}}}


@pytest.mark.parametrize(
    ("schedule", "fields", "origin", "expected"),
    [
        ({"totalSteps": 5, "promptsPerBatch": 8}, {}, Origin(), (40, 40, 5, None)),
        ({"totalSteps": 5, "promptsPerBatch": 8}, FILTER, Origin(), (40, None, 5, 16)),
        ({"totalSteps": 5, "promptsPerBatch": 8}, FILTER, Origin(2, 16, 30, 2), (40, None, 5, 16)),
        ({"totalSteps": 5, "promptsPerBatch": 8}, RATES, Origin(), (40, None, 5, 24)),
        ({"totalSteps": 5, "promptsPerBatch": 8}, BOTH, Origin(), (40, None, 5, 16)),
        ({"totalSteps": 5, "promptsPerBatch": 8}, {}, Origin(2, 16, 30, 2), (40, None, 5, None)),
        ({"epochs": 1, "promptsPerBatch": 8}, FILTER, Origin(), (100, 100, 13, 16)),
        ({"epochs": 1, "promptsPerBatch": 8}, FILTER, Origin(2, 16, 30, 2), (70, 100, 9, 16)),
        ({"epochs": 1, "promptsPerBatch": 8}, FILTER, Origin(9, 70, 30, 9), (70, 100, 9, 16)),
    ],
)
def test_refused_prompts_are_replaced_or_make_an_epoch_shorter(schedule, fields, origin, expected):
    found = plan(schedule, origin, **fields)
    assert (found.total_groups, found.uids, found.total_steps, found.refill) == expected


def test_what_an_epoch_trains_follows_from_what_is_refused_at_the_checkpoint():
    """The job began where 30 prompts were refused, and refused 5 more; or it went back before the latter."""
    found = plan({"epochs": 1, "promptsPerBatch": 8}, Origin(2, 16, 30, 2), **FILTER)
    assert found.controller(Ledger(46, refused=30)).total_groups == 70
    assert found.controller(Ledger(59, refused=35)).total_groups == 65


@pytest.mark.parametrize(
    ("rate", "prompts", "asynchronous", "surplus", "groups"),
    [
        (0.25, 8, {"maxStaleness": 1}, 2, 18),
        (0.2, 5, {"maxStaleness": 0}, 1, 6),
        (0.1, 64, {"maxStaleness": 0.2, "stepsPerVersion": 4}, 25, 332),
        (0.25, 8, {"queueCapacity": 43}, 2, 10),
    ],
)
def test_over_sampling_begins_a_part_of_a_versions_groups_more(rate, prompts, asynchronous, surplus, groups):
    fields = {"training.rollout.overSampling": {"rate": rate}, "training.async": asynchronous}
    found = plan({"totalSteps": 5, "promptsPerBatch": prompts}, **fields)
    assert (found.surplus_groups, found.capacity_groups) == (surplus, groups)


@pytest.mark.parametrize(
    ("engine", "at_most_running"),
    [
        ({"torch": {}}, None),
        ({"vllm": {}}, None),
        ({"vllm": {"speculation": {"suffix": {}, "atMostRunning": 3}}}, 3),
    ],
)
def test_the_rollout_knows_how_engines_draft(engine, at_most_running):
    found = plan({"epochs": 1, "promptsPerBatch": 8}, **{"training.rollout.engine": engine})
    speculation = found.rollout.speculation
    assert (speculation and speculation.at_most_running) == at_most_running
