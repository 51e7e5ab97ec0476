"""Fields that change nothing beside others: each is warned of, and where it does something it is not."""

from typing import Any

import pytest

from rljob_api import RLJob
from rljob_runtime.manifest.no_effect import without_effect
from tests.support.jobs import job
from tests.support.valid_jobs import GOOD

FAST, HEAVY, RUNNING = "pools.fastRollout", "pools.heavyRollout", "training.rollout.maxRunningRequests"
GPU, PROBE, PROMPTS = (
    {"accelerator": "nvidia"},
    "training.rollout.routing",
    "training.schedule.promptsPerBatch",
)
NPU = {"accelerator": "ascend"}
OVER: dict[str, Any] = {"training.rollout.overSampling": {}}
ASYNC = "training.async"
CONTEXT, HOLD, RANKS = (
    "training.parallel.contextParallel",
    "training.compute.holdWeights",
    "pools.trainer.replicas",
)
VLLM = "training.rollout.engine.vllm"
SIZES, ADAPTER, FIELDS = (
    "training.rollout.engine.vllm.captureSizes",
    "training.adapter",
    "training.data.rewardFields",
)
SOURCES, SETS = "training.data", "training.evaluation"
KEEP = {"weightSync": {"push": {"kvAfterUpdate": "keep"}}}


def told(changes: dict[str, Any]) -> list[str]:
    return list(map(str, without_effect(RLJob.model_validate(job(changes)))))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param(
            {**GPU, FAST: {"enginesPerAccelerator": 2, "replicas": 0}, HEAVY: {"replicas": 1}},
            "pools.fastRollout.enginesPerAccelerator: is 2, and the fast pool has no workers",
            id="nobody shares",
        ),
        pytest.param(
            {**GPU, FAST: {"enginesPerAccelerator": 4}, RUNNING: 3},
            "pools.fastRollout.enginesPerAccelerator: is 4, above the requests that these engines run at a",
            id="more engines than requests",
        ),
        pytest.param(
            {PROBE: {"probe": {"heavyShare": 0.9}}, PROMPTS: 5, HEAVY: {"replicas": 1}},
            "routing.probe.heavyShare: is 0.9, which is rounded to all 5 prompts of a cohort",
            id="all prompts are heavy",
        ),
        pytest.param(
            {PROBE: {"probe": {"cohortPrompts": 9, "heavyShare": 0.5}}, HEAVY: {"replicas": 1}},
            "routing.probe.cohortPrompts: is 9, and no more than 8 prompts are under way at a time "
            "(async.maxStaleness, async.queueCapacity), so that no cohort is ever whole: prompts are "
            "compared only once the fast pool has nothing else to do. Set it to 8 or less, or leave it out",
            id="cohorts that are never whole",
        ),
        pytest.param(
            {PROBE: {"probe": {"cohortPrompts": 1000, "heavyShare": 0.001}}, HEAVY: {"replicas": 1}},
            "cohort is ever whole, of which heavyShare 0.001 is rounded to none: no response goes to the "
            "heavy pool, and none has a cap. Set it to 8 or less, or leave it out, and raise heavyShare",
            id="cohorts of which none is heavy",
        ),
        pytest.param(
            {
                PROBE: {"probe": {"cohortPrompts": 7, "heavyShare": 0.5}},
                ASYNC: {"queueCapacity": 55},
                HEAVY: {"replicas": 1},
            },
            "routing.probe.cohortPrompts: is 7, and no more than 6 prompts are under way at a time",
            id="cohorts that find no places",
        ),
        pytest.param(
            {ASYNC: {"maxStaleness": 0.2}},
            "async.maxStaleness: is 0.2, less than one of the 4 prompts of a weight version, so that none is "
            "begun ahead: the same as 0. Set it to 0.25 or more, or to 0",
            id="less than a prompt ahead",
        ),
        pytest.param(
            {ASYNC: {"maxStaleness": 0.05, "stepsPerVersion": 3}},
            "less than one of the 12 prompts of a weight version, so that none is begun ahead: the same as "
            "0. Set it to 0.0834 or more",
            id="less than a prompt of several steps ahead",
        ),
        pytest.param(
            {ASYNC: {"queueCapacity": 39}},
            "async.queueCapacity: is 39, which has places for the 4 prompts of one step: engines begin "
            "nothing while it is trained, whatever async.maxStaleness (1) admits. Raise it to 40 or more",
            id="places for a step alone",
        ),
        pytest.param(
            {ASYNC: {"staleTokens": "mask", "maxStaleness": 0}},
            "async.staleTokens: is mask, and with this async.maxStaleness each step trains all that is under "
            "way, so that nothing outlives the bound: take it out, or raise that",
            id="nothing is stale",
        ),
        pytest.param(
            {**OVER, ASYNC: {"queueCapacity": 64}, PROMPTS: 4},
            "overSampling: begins groups beyond the 8 that async.maxStaleness admits, and "
            "async.queueCapacity has places for 8 (64 samples), so that none is begun: raise that to 72 or",
            id="no place for a surplus",
        ),
        pytest.param(
            {ASYNC: {**KEEP, "maxStaleness": 0}},
            "weightSync.push.kvAfterUpdate: is keep, and with async.maxStaleness 0 no response is under way",
            id="nothing is under way",
        ),
        pytest.param(
            {CONTEXT: {"none": {}, "attention": "ulysses"}},
            "contextParallel.attention: is ulysses, and with none no ranks share a sample",
            id="nothing is shared",
        ),
        pytest.param(
            {CONTEXT: {"fixed": {"degree": 2}}, RANKS: 2, HOLD: False},
            "compute.holdWeights: is false, and ranks that share samples",
            id="weights are held",
        ),
        pytest.param(
            {**GPU, VLLM: {"kvCacheGiB": 40}},
            "vllm.kvCacheGiB: is 40, and is for accelerator: cpu: on others the KV cache is what gpuMemory",
            id="a KV cache of main memory",
        ),
        pytest.param(
            {VLLM: {"gpuMemoryUtilization": 0.4}},
            "vllm.gpuMemoryUtilization: is 0.4, and engines on CPUs take main memory",
            id="memory of accelerators",
        ),
        pytest.param(
            {**GPU, VLLM: {"captureSizes": [8, 600, 700], "maxBatchedTokens": 512}},
            "vllm.captureSizes: has 600, 700, and no step has more than 512 tokens (maxBatchedTokens)",
            id="graphs of no step",
        ),
        pytest.param(
            {**NPU, VLLM: {"delayPrefills": True}},
            "vllm.delayPrefills: is true, and on Ascend the scheduler is vllm-ascend's, in which prompts do",
            id="prompts that do not wait",
        ),
        pytest.param(
            {SIZES: [1, 4, 4, 8, 8, 8]},
            "vllm.captureSizes: names 4 (2 times) and 8 (3 times): once is enough. Take it out where",
            id="sizes",
        ),
        pytest.param(
            {ADAPTER: {"targetModules": ["q_proj", "v_proj", "q_proj"]}},
            "adapter.targetModules: names q_proj (2 times): once is enough",
            id="layers",
        ),
        pytest.param(
            {FIELDS: ["level", "level"]},
            "data.rewardFields: names level (2 times): once is enough",
            id="fields",
        ),
        pytest.param(
            {
                SOURCES: {
                    "sources": [{"name": "a", "jsonl": {"path": "a"}, "rewardFields": ["level", "level"]}]
                }
            },
            "data.sources[0].rewardFields: names level (2 times): once is enough",
            id="fields of a source",
        ),
        pytest.param(
            {
                SETS: {
                    "sets": [
                        {"name": "a", "data": {"jsonl": {"path": "a"}, "rewardFields": ["level", "level"]}}
                    ]
                }
            },
            "evaluation.sets[0].data.rewardFields: names level (2 times): once is enough",
            id="fields of an evaluation",
        ),
    ],
)
def test_without_effect(changes: dict[str, Any], words: str) -> None:
    (found,) = told(changes)
    assert found.startswith("spec.") and words in found


@pytest.mark.parametrize(
    "changes",
    [
        GOOD["the minimal job"],
        {**GPU, FAST: {"enginesPerAccelerator": 2, "replicas": 0, "maxReplicas": 2}, HEAVY: {"replicas": 1}},
        {**GPU, FAST: {"enginesPerAccelerator": 4}, RUNNING: 4},
        {PROBE: {"probe": {"heavyShare": 0.8}}, PROMPTS: 5, HEAVY: {"replicas": 1}},
        {**OVER, ASYNC: {"queueCapacity": 72}, PROMPTS: 4},
        {**OVER, PROMPTS: 4},
        {**GPU, VLLM: {"kvCacheGiB": 1.0, "gpuMemoryUtilization": 0.4}},
        {VLLM: {"kvCacheGiB": 2.0, "gpuMemoryUtilization": 0.85}},
        {**GPU, VLLM: {"captureSizes": [8, 512], "maxBatchedTokens": 512}},
        {ASYNC: {**KEEP, "maxStaleness": 0.5}},
        {ASYNC: {"maxStaleness": 0.25, "staleTokens": "mask"}},
        {ASYNC: {"maxStaleness": 0.09, "stepsPerVersion": 3}},
        {ASYNC: {"queueCapacity": 40, "staleTokens": "mask"}},
        {ASYNC: {"queueCapacity": 32, "maxStaleness": 0}},
        {PROBE: {"probe": {"cohortPrompts": 8}}, HEAVY: {"replicas": 1}},
        {**OVER, PROBE: {"probe": {"cohortPrompts": 9}}, HEAVY: {"replicas": 1}},
        {PROBE: {"probe": {"cohortPrompts": 6}}, ASYNC: {"queueCapacity": 48}, HEAVY: {"replicas": 1}},
        {ASYNC: {**KEEP, "maxStaleness": 0}, **OVER},
        {CONTEXT: {"fixed": {"degree": 2}, "attention": "ulysses"}, RANKS: 2},
        {CONTEXT: {"hybrid": {}}, RANKS: 1, HOLD: False},
        {CONTEXT: {"none": {}}, RANKS: 2, HOLD: False},
        {SIZES: [1, 4, 8], ADAPTER: {"targetModules": ["q_proj", "v_proj"]}, FIELDS: ["level", "kind"]},
        {CONTEXT: {"hybrid": {}}, "training.parallel.tensorParallel": 2, RANKS: 2, HOLD: False},
    ],
)
def test_with_effect(changes: dict[str, Any]) -> None:
    assert told(changes) == []


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({ASYNC: {"queueCapacity": 32, "staleTokens": "mask"}}, ["queueCapacity", "staleTokens"]),
        (
            {ASYNC: {**KEEP, "maxStaleness": 0.2, "staleTokens": "mask"}},
            ["maxStaleness", "staleTokens", "kvAfterUpdate"],
        ),
    ],
)
def test_all_that_is_without_effect(changes: dict[str, Any], fields: list[str]) -> None:
    assert [each.partition(": ")[0].rpartition(".")[2] for each in told(changes)] == fields
