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
OVER: dict[str, Any] = {"training.rollout.overSampling": {}}
ASYNC = "training.async"
CONTEXT, HOLD, RANKS = (
    "training.parallel.contextParallel",
    "training.compute.holdWeights",
    "pools.trainer.replicas",
)
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
        {ASYNC: {**KEEP, "maxStaleness": 0.5}},
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
