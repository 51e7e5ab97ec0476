"""Choices that are seldom meant: each is warned of, and what is meant is not."""

from typing import Any

import pytest

from rljob_api import RLJob
from rljob_runtime.manifest.traps import traps
from tests.support.jobs import job
from tests.support.valid_jobs import GOOD

LOSS, AGGREGATION = "training.algorithm.policyLoss", "training.algorithm.aggregation"
FAST = "pools.fastRollout"
STALENESS, FILTER = "training.async.maxStaleness", "training.rollout.filter"
ADVANTAGE, REWARD = "training.algorithm.advantage", "training.reward"
SOURCE, SHORT = {"name": "a", "jsonl": {"path": "a.jsonl"}}, {"maxPromptTokens": 16}
HELD_OUT = {"jsonl": {"path": "b.jsonl"}, **SHORT}
DISTILLATION, TEACHER = "training.algorithm.distillation", {"teacher": {"path": "t"}}
COPY = {"name": "copy", "function": "rljob_runtime.rewards.tasks:copy"}


def warned(changes: dict[str, Any]) -> list[str]:
    return list(map(str, traps(RLJob.model_validate(job(changes)))))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {LOSS: {"truncatedReinforce": {}}, STALENESS: 1.5},
            ["policyLoss.truncatedReinforce: clips nothing, and with async.maxStaleness 1.5 it may"],
        ),
        (
            {LOSS: {"gspo": {"low": 0.2, "high": 0.28}}, AGGREGATION: "sequence-mean"},
            [
                "policyLoss.gspo.low: is 0.2, a bound for ratios of tokens",
                "policyLoss.gspo.high: is 0.28, a bound for ratios of tokens",
            ],
        ),
        (
            {"accelerator": "nvidia", FAST: {"enginesPerAccelerator": 2}},
            ["pools.fastRollout.cpusPerWorker: is 1, and each of the 2 engines of an accelerator"],
        ),
        ({LOSS: {"gspo": {}}}, ["aggregation: is token-mean, with which long responses weigh more"]),
        ({LOSS: {"sapo": {}}}, ["policyLoss.sapo was published with aggregation: sequence-mean"]),
        (
            {
                REWARD: {"functions": [COPY, {**COPY, "name": "long", "weight": -0.5}]},
                ADVANTAGE: {"maxRl": {}},
            },
            ["reward.functions[1].weight: is -0.5, and algorithm.advantage.maxRl ends the job at the first"],
        ),
        (
            {
                "training.data": {"sources": [{**SOURCE, "systemPrompt": "Think."}], **SHORT},
                "training.evaluation": {
                    "sets": [
                        {"name": "bare", "data": {"jsonl": {"path": "b.jsonl"}, **SHORT}},
                        {
                            "name": "same",
                            "data": {"jsonl": {"path": "c.jsonl"}, "systemPrompt": "T", **SHORT},
                        },
                    ]
                },
            },
            ["evaluation.sets[0].data: has no systemPrompt, and prompts are trained with one"],
        ),
        (
            {FILTER: {"zeroVariance": {}}, DISTILLATION: TEACHER},
            ["rollout.filter.zeroVariance: refuses groups of equal rewards, which algorithm.distillation"],
        ),
        (
            {ADVANTAGE: {"none": {}}, DISTILLATION: TEACHER, "training.algorithm.kl": {}},
            ["algorithm.kl: holds the policy at the weights that training began with, and algorithm.dist"],
        ),
        (
            {FILTER: {"zeroVariance": {}}, ADVANTAGE: {"reinforcePlusPlus": {}}},
            ["rollout.filter.zeroVariance: refuses groups of equal rewards, which"],
        ),
        (
            {FILTER: {"passRate": {"min": 0.3, "max": 0.45}}, "training.rollout.samplesPerPrompt": 4},
            ["rollout.filter.passRate: no group has a pass rate from 0.3 to 0.45: of 4 responses"],
        ),
    ],
)
def test_warned_of(changes: dict[str, Any], words: list[str]) -> None:
    found = warned(changes)
    assert len(found) == len(words)
    for text, part in zip(found, words, strict=True):
        assert text.startswith("spec.") and part in text


@pytest.mark.parametrize(
    "changes",
    [
        {LOSS: {"truncatedReinforce": {}}, STALENESS: 1},
        {
            "training.data.systemPrompt": "Think.",
            "training.evaluation": {
                "sets": [
                    {"name": "a", "data": HELD_OUT},
                    {"name": "b", "data": {**HELD_OUT, "systemPrompt": ""}},
                ]
            },
        },
        {LOSS: {"decoupledClip": {}}, STALENESS: 4},
        {LOSS: {"gspo": {}}, AGGREGATION: "sequence-mean"},
        {LOSS: {"sapo": {}}, AGGREGATION: "sequence-mean"},
        {"accelerator": "nvidia", FAST: {"enginesPerAccelerator": 2, "cpusPerWorker": 2}},
        {FILTER: {"zeroVariance": {}}},
        {FILTER: {"passRate": {"min": 0.3, "max": 0.5}}, "training.rollout.samplesPerPrompt": 4},
        {FILTER: {"zeroVariance": {}}, ADVANTAGE: {"reinforcePlusPlus": {"baseline": True}}},
        {ADVANTAGE: {"reinforcePlusPlus": {}}},
        {ADVANTAGE: {"none": {}}, DISTILLATION: TEACHER},
        {DISTILLATION: TEACHER, "training.algorithm.kl": {}},
        {REWARD: {"functions": [COPY]}, ADVANTAGE: {"maxRl": {}}},
        {REWARD: {"functions": [{**COPY, "weight": -1}]}},
    ],
)
def test_as_meant(changes: dict[str, Any]) -> None:
    assert warned(changes) == []


def test_the_default_job_has_none() -> None:
    assert warned(GOOD["the minimal job"]) == []


@pytest.mark.parametrize(
    ("schedule", "prompts", "steps"),
    [
        ({"epochs": 1, "promptsPerBatch": 64}, 12, "1 step"),
        ({"epochs": 2, "promptsPerBatch": 4, "batchesPerStep": 4}, 32, "4 steps"),
        ({"epochs": 1, "promptsPerBatch": 4}, 17, None),
        ({"epochs": 5, "promptsPerBatch": 64}, 64, None),
        ({"totalSteps": 1, "promptsPerBatch": 64}, 12, None),
        ({"epochs": 1, "promptsPerBatch": 64}, None, None),
    ],
)
def test_a_job_of_few_steps(schedule: dict[str, int], prompts: int | None, steps: str | None) -> None:
    found = list(traps(RLJob.model_validate(job({"training.schedule": schedule})), prompts))
    if steps is None:
        assert found == []
    else:
        (told,) = map(str, found)
        assert told.startswith(f"spec.training.schedule.epochs: this job trains {steps}: an epoch has ")
