"""What of a job is not simulated, by its fields."""

from typing import Any

import pytest

from rljob_api import RLJob
from rljob_runtime.trace.forecast.left_out import left_out, sentence
from tests.support.jobs import job

SERVER = {"url": "https://teacher.models:8000", "model": "qwen"}
EVALUATION = {"sets": [{"name": "easy", "data": {"generated": {"task": "copy"}}}]}


def fields(changes: dict[str, Any], recorded: bool = False) -> list[str]:
    """The paths of what is left out."""
    return [each.field for each in left_out(RLJob.model_validate(job(changes)).spec, recorded)]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("training.rollout.overSampling", {"rate": 0.25}),
        ("training.rollout.filter.zeroVariance", {}),
        ("training.rollout.filter.passRate", {"min": 0.1}),
        ("training.rollout.engine.vllm.speculation", {"suffix": {}}),
        ("training.evaluation", EVALUATION),
        ("training.algorithm.distillation.teacher.server", SERVER),
        ("training.async.weightSync.pull", {}),
        ("training.async.weightSync.push.inFlight", "wait"),
        ("training.rollout.forcedLengths", "lengths.jsonl"),
    ],
)
def test_a_field_that_the_simulator_does_not_model_is_named(path: str, value: Any) -> None:
    assert fields({path: value}) == [path]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"training.async.staleTokens": "mask"},
        {"training.async.queueCapacity": 64},
        {"training.async.stepsPerVersion": 2},
        {"training.async.weightSync.push.inFlight": "abort"},
        {"training.algorithm.kl": {}},
        {"training.algorithm.distillation": {"teacher": {"path": "teacher"}}},
    ],
    ids=str,
)
def test_what_is_modelled_or_part_of_an_assumed_cost_is_not(changes: dict[str, Any]) -> None:
    assert fields(changes) == []


def test_lengths_of_a_file_are_simulated_where_they_are_given() -> None:
    assert fields({"training.rollout.forcedLengths": "lengths.jsonl"}, recorded=True) == []


def test_all_of_it_is_one_line() -> None:
    changes = {"training.rollout.overSampling": {"rate": 0.25}, "training.evaluation": EVALUATION}
    spec = RLJob.model_validate(job(changes)).spec
    assert sentence(left_out(spec, recorded=False)) == (
        "Not simulated: over-sampling (training.rollout.overSampling), evaluations (training.evaluation)."
    )
    assert sentence([]) == ""
