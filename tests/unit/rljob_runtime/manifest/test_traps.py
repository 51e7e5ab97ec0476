"""Choices that are seldom meant: each is warned of, and what is meant is not."""

from typing import Any

import pytest

from rljob_api import RLJob
from rljob_runtime.manifest.traps import traps
from tests.support.jobs import job
from tests.support.valid_jobs import GOOD

LOSS, AGGREGATION = "training.algorithm.policyLoss", "training.algorithm.aggregation"
TRAINER, OFFLOAD = "pools.trainer", "training.parallel.cpuOffload"
FAST, SAMPLES = "pools.fastRollout", "training.rollout.samplesPerPrompt"
STALENESS, FILTER = "training.async.maxStaleness", "training.rollout.filter"
ENGINE = "training.rollout.engine"
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
            {"training.rollout.topK": 1},
            ["rollout.topK: is 1, with which each token has probability 1 to the engines and to the trainer"],
        ),
        (
            {f"{TRAINER}.replicas": 40},
            [
                "spec.pools.trainer: has 40 ranks, of which 8 have nothing to train: an optimizer update has "
                "32 samples (schedule.promptsPerBatch * rollout.samplesPerPrompt), and each is on 1. Raise"
            ],
        ),
        (
            {f"{TRAINER}.replicas": 70, "training.parallel": {"tensorParallel": 2}, SAMPLES: 2},
            ["has 70 ranks, of which 54 have nothing to train: an optimizer update has 8 samples"],
        ),
        (
            {
                f"{TRAINER}.replicas": 40,
                "training.parallel": {"contextParallel": {"fixed": {"degree": 4}}},
                SAMPLES: 2,
            },
            [
                "of which 8 have nothing to train: an optimizer update has 8 samples "
                "(schedule.promptsPerBatch * rollout.samplesPerPrompt), and each is on 4."
            ],
        ),
        (
            {"accelerator": "nvidia", OFFLOAD: True},
            ["spec.pools.trainer.cpusPerWorker: is 1, and with training.parallel.cpuOffload each rank"],
        ),
        (
            {
                "accelerator": "nvidia",
                OFFLOAD: True,
                TRAINER: {"cpusPerWorker": 15, "acceleratorsPerWorker": 8},
            },
            ["spec.pools.trainer.cpusPerWorker: is 15 for the 8 ranks of a worker, and with"],
        ),
        (
            {"accelerator": "ascend", OFFLOAD: True, f"{TRAINER}.cpusPerWorker": 1},
            ["spec.pools.trainer.cpusPerWorker: is 1, and with training.parallel.cpuOffload each rank"],
        ),
        (
            {"accelerator": "nvidia", FAST: {"enginesPerAccelerator": 2}},
            ["pools.fastRollout.cpusPerWorker: is 1, and each of the 2 engines of an accelerator"],
        ),
        (
            {"accelerator": "nvidia", ENGINE: {"vllm": {"speculation": {"suffix": {}}}}},
            ["engine.vllm.speculation: made the models that were tried slower on a GPU"],
        ),
        (
            {
                ENGINE: {"vllm": {}},
                "training.rollout.temperature": 2.5,
                "training.evaluation": {
                    "sets": [{"name": "a", "data": HELD_OUT}],
                    "sampling": {"temperature": 3},
                },
            },
            [
                "rollout.temperature: is 2.5, and vLLM 0.32 refuses each request above 2",
                "evaluation.sampling.temperature: is 3, and vLLM 0.32 refuses each request above 2",
            ],
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
        ({SAMPLES: 1}, ["rollout.samplesPerPrompt: is 1, and a single response is compared with nothing"]),
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
        {ADVANTAGE: {"reinforcePlusPlus": {}}, SAMPLES: 1},
        {ADVANTAGE: {"none": {}}, DISTILLATION: TEACHER},
        {ADVANTAGE: {"none": {}}, DISTILLATION: TEACHER, SAMPLES: 1},
        {DISTILLATION: TEACHER, "training.algorithm.kl": {}},
        {REWARD: {"functions": [COPY]}, ADVANTAGE: {"maxRl": {}}},
        {REWARD: {"functions": [{**COPY, "weight": -1}]}},
        {ENGINE: {"vllm": {"speculation": {"suffix": {}}}}},
        {"accelerator": "nvidia", ENGINE: {"vllm": {}}},
        {"accelerator": "nvidia", OFFLOAD: False, f"{TRAINER}.cpusPerWorker": 1},
        {"accelerator": "nvidia", OFFLOAD: True, f"{TRAINER}.cpusPerWorker": 2},
        {"accelerator": "nvidia", OFFLOAD: True, TRAINER: {"cpusPerWorker": 16, "acceleratorsPerWorker": 8}},
        {ENGINE: {"vllm": {}}, "training.rollout.temperature": 2},
        {ENGINE: {"torch": {}}, "training.rollout.temperature": 2.5},
        {"training.rollout.topK": 2},
        {f"{TRAINER}.replicas": 32},
        {f"{TRAINER}.replicas": 64, "training.parallel": {"tensorParallel": 2}},
        {f"{TRAINER}.replicas": 40, "training.parallel": {"contextParallel": {"hybrid": {}}}},
        {f"{TRAINER}.replicas": 39, "training.parallel": {"contextParallel": {"fixed": {"degree": 4}}}},
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


LONG = {"training.schedule": {"totalSteps": 1000, "promptsPerBatch": 4}}
CORRECTED = "which corrects for their age"
OLD = {
    # what: (changes, prompts of an epoch, words; none: no warning)
    "far beyond": ({STALENESS: 99}, None, ["is 99, and published runs take 1 to 8", "Set it to 8 or less"]),
    "just beyond": ({STALENESS: 8.5}, None, ["is 8.5, and published runs take 1 to 8"]),
    "the largest that is usual": ({STALENESS: 8}, None, []),
    "the default loss": ({STALENESS: 9}, None, [f"take policyLoss.decoupledClip, {CORRECTED}"]),
    "a loss of sequences": (
        {STALENESS: 9, LOSS: {"gspo": {}}, AGGREGATION: "sequence-mean"},
        None,
        [f"take algorithm.rolloutCorrection, {CORRECTED}"],
    ),
    "as long as the job": (
        {STALENESS: 99, "training.schedule.totalSteps": 100},
        None,
        ["is 99, and published runs take 1 to 8"],
    ),
    "longer than the job": (
        {STALENESS: 99, "training.schedule.totalSteps": 99},
        None,
        ["is 99, and the last step of this job begins with version 98: no sample can", "set it to 8 or less"],
    ),
    "longer than a short job": (
        {STALENESS: 8, "training.schedule.totalSteps": 5},
        None,
        ["is 8, and the last step of this job begins with version 4: no sample can", "set it to 4 or less"],
    ),
    "longer than a job of one version": (
        {STALENESS: 2, "training.async.stepsPerVersion": 5, "training.schedule.totalSteps": 5},
        None,
        ["begins with version 0: no sample can", "set it to 1 or less"],
    ),
    "a part of the last version": ({STALENESS: 3.5, "training.schedule.totalSteps": 5}, None, []),
    "a usual one in a trial of few steps": ({STALENESS: 4, "training.schedule.totalSteps": 4}, None, []),
    "far beyond in a trial of few steps": (
        {STALENESS: 99, "training.schedule.totalSteps": 4},
        None,
        ["is 99, and the last step of this job begins with version 3: no sample can", "set it to 3 or less"],
    ),
    "several steps to a version": (
        {STALENESS: 8, "training.async.stepsPerVersion": 125},
        None,
        ["is 8, and the last step of this job begins with version 7: no sample can", "set it to 7 or less"],
    ),
    "longer than the epochs": (
        {STALENESS: 6, "training.schedule": {"epochs": 2, "promptsPerBatch": 8}},
        24,
        ["is 6, and the last step of this job begins with version 5: no sample can", "set it to 5 or less"],
    ),
    "epochs of unknown size": (
        {STALENESS: 6, "training.schedule": {"epochs": 2, "promptsPerBatch": 8}},
        None,
        [],
    ),
    "the default in a job of one step": ({"training.schedule.totalSteps": 1}, None, []),
}


@pytest.mark.parametrize(("changes", "prompts", "words"), OLD.values(), ids=OLD)
def test_a_bound_of_staleness_that_bounds_little(
    changes: dict[str, Any], prompts: int | None, words: list[str]
) -> None:
    found = list(map(str, traps(RLJob.model_validate(job({**LONG, **changes})), prompts)))
    assert len(found) == bool(words)
    for told in found:
        assert told.startswith("spec.training.async.maxStaleness: ")
        assert all(part in told for part in words)


@pytest.mark.parametrize(
    "algorithm",
    [
        {"policyLoss": {"decoupledClip": {}}},
        {"policyLoss": {"gspo": {}}, "rolloutCorrection": {}, "aggregation": "sequence-mean"},
        {"policyLoss": {"cispo": {}}},
    ],
)
def test_a_loss_that_corrects_is_not_told_to(algorithm: dict[str, Any]) -> None:
    (told,) = warned({**LONG, STALENESS: 9, "training.algorithm": algorithm})
    assert told.endswith("Set it to 8 or less.")
