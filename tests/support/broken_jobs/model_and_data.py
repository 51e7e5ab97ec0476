"""RLJobs that break a rule on the model, its tokenizer, data or evaluations."""

from typing import Any

from tests.support.broken_jobs.form import TRAINING, BrokenJobs
from tests.support.jobs import REMOVED

_SOURCE = {"name": "a", "jsonl": {"path": "a.jsonl"}}
_HELD_OUT: dict[str, Any] = {"generated": {"task": "copy"}, "maxPromptTokens": 16}

BROKEN: BrokenJobs = {
    "two models": (
        {"training.model.path": "m"},
        f"{TRAINING}.model",
        "set exactly one of path, random (found path and random)",
    ),
    "two tokenizers": (
        {"training.tokenizer.path": "m"},
        f"{TRAINING}.tokenizer",
        "set exactly one of path, characters",
    ),
    "no data": (
        {"training.data": {"maxPromptTokens": 16}},
        f"{TRAINING}.data",
        "set exactly one of jsonl, parquet, huggingFace, generated, sources (found none)",
    ),
    "prompt lengths crossed": (
        {"training.data.generated": {"task": "copy", "minLength": 5, "maxLength": 4}},
        f"{TRAINING}.data.generated.minLength",
        "minLength must not be above maxLength",
    ),
    "heads do not divide": (
        {"training.model.random.keyValueHeads": 3},
        f"{TRAINING}.model.random.keyValueHeads",
        "keyValueHeads must divide attentionHeads (keyValueHeads is 3, attentionHeads is 4)",
    ),
    "experts of a dense model": (
        {"training.model.random.experts": {}},
        f"{TRAINING}.model.random.experts",
        "experts must be set for qwen3_moe, and for no other architecture (architecture is qwen3)",
    ),
    "a mixture of experts without experts": (
        {"training.model.random.architecture": "qwen3_moe"},
        f"{TRAINING}.model.random.experts",
        "experts must be set for qwen3_moe, and for no other architecture",
    ),
    "more experts for a token than there are": (
        {"training.model.random": {"architecture": "qwen3_moe", "experts": {"count": 2, "perToken": 3}}},
        f"{TRAINING}.model.random.experts.perToken",
        "perToken must not be above count (perToken is 3, count is 2)",
    ),
    "experts in the torch engine": (
        {
            "training.model.random": {"architecture": "qwen3_moe", "experts": {}},
            "training.rollout.engine": {"torch": {}},
        },
        f"{TRAINING}.rollout.engine.torch",
        "rollout.engine.torch cannot run experts",
    ),
    "heads that qwen2 cannot have": (
        {"training.model.random.architecture": "qwen2"},
        f"{TRAINING}.model.random.hiddenSize",
        "hiddenSize must be attentionHeads times headDim for qwen2 "
        "(hiddenSize is 64, attentionHeads is 4, headDim is 32)",
    ),
    "head width that has no pairs": (
        {"training.model.random.headDim": 15, "training.rollout.engine": {"torch": {}}},
        f"{TRAINING}.model.random.headDim",
        "headDim must be even: positions are rotations of pairs (headDim is 15)",
    ),
    "head width that vLLM lacks": (
        {"training.model.random.headDim": 16},
        f"{TRAINING}.model.random.headDim",
        "headDim must be one of 32, 64",
    ),
    "doubled character": (
        {"training.tokenizer.characters.alphabet": "abca"},
        f"{TRAINING}.tokenizer.characters.alphabet",
        "alphabet must have each character once",
    ),
    "no tokenizer": (
        {"training.tokenizer": REMOVED},
        f"{TRAINING}.tokenizer",
        "tokenizer must be set",
    ),
    "vocabulary below the alphabet": (
        {"training.model.random.vocabularySize": 39},
        f"{TRAINING}.model.random.vocabularySize",
        "vocabularySize must hold tokenizer.characters.alphabet and 4 more",
    ),
    "longer than the model": (
        {"training.data.maxPromptTokens": 2041},
        f"{TRAINING}.data.maxPromptTokens",
        "must not be above model.random.maxPositionEmbeddings",
    ),
    "two evaluation sets of one name": (
        {"training.evaluation": {"sets": [{"name": "held_out", "data": _HELD_OUT}] * 2}},
        f"{TRAINING}.evaluation.sets",
        "sets must have different names",
    ),
    "an evaluation on all engines of a pool": (
        {
            "training.evaluation": {
                "sets": [{"name": "held_out", "data": _HELD_OUT}],
                "engines": {"fastRollout": 2},
            },
            "pools.fastRollout.replicas": 2,
        },
        f"{TRAINING}.evaluation.engines.fastRollout",
        "training.evaluation.engines.fastRollout must be below pools.fastRollout.replicas, or its"
        " maxReplicas: an engine has to be left for training",
    ),
    "an evaluation on more engines than the pool will ever have": (
        {
            "training.evaluation": {
                "sets": [{"name": "held_out", "data": _HELD_OUT}],
                "engines": {"heavyRollout": 3},
            },
            "pools.heavyRollout": {"replicas": 1, "maxReplicas": 3},
        },
        f"{TRAINING}.evaluation.engines.heavyRollout",
        "training.evaluation.engines.heavyRollout must be below pools.heavyRollout.replicas, or its"
        " maxReplicas: an engine has to be left for training",
    ),
    "an evaluation on engines of two pools": (
        {
            "training.evaluation": {
                "sets": [{"name": "held_out", "data": _HELD_OUT}],
                "engines": {"fastRollout": 1, "heavyRollout": 1},
            },
        },
        f"{TRAINING}.evaluation.engines",
        "set exactly one of shared, fastRollout, heavyRollout",
    ),
    "two sources of one name": (
        {"training.data": {"sources": [_SOURCE, _SOURCE], "maxPromptTokens": 16}},
        f"{TRAINING}.data.sources",
        "sources must have different names",
    ),
    "a source without a weight": (
        {
            "training.data": {
                "sources": [_SOURCE, {**_SOURCE, "name": "b", "weight": 1.0}],
                "maxPromptTokens": 16,
            }
        },
        f"{TRAINING}.data.sources",
        "sources must all have a weight, or none of them",
    ),
    "a curriculum without a middle": (
        {"training.data.curriculum": {"hardUpTo": 0.5, "easyFrom": 0.5}},
        f"{TRAINING}.data.curriculum.hardUpTo",
        "hardUpTo must be below easyFrom",
    ),
    "a curriculum of epochs": (
        {"training.data.curriculum": {}, "training.schedule": {"epochs": 1, "promptsPerBatch": 4}},
        f"{TRAINING}.data.curriculum",
        "data.curriculum must not be set with schedule.epochs",
    ),
    "an evaluation of longer prompts": (
        {"training.evaluation": {"sets": [{"name": "x", "data": {**_HELD_OUT, "maxPromptTokens": 4096}}]}},
        f"{TRAINING}.evaluation.sets",
        "evaluation.sets: data.maxPromptTokens of a set must not be above that of training.data",
    ),
}
