"""RLJobs that break one rule each, as changes to the small one of `jobs`."""

from typing import Any

from tests.support.jobs import REMOVED

_POOLS = "spec.pools"
_TRAINING = "spec.training"

_PROBE: dict[str, Any] = {
    "training.rollout.routing": {"probe": {"cohortPrompts": 8}},
    "pools.heavyRollout.replicas": 1,
}

_SOURCE = {"name": "a", "jsonl": {"path": "a.jsonl"}}
_TEACHER = {"teacher": {"path": "teacher"}}
_SERVED: dict[str, Any] = {"teacher": {"server": {"url": "http://teacher:8000", "model": "t"}}}
_HELD_OUT: dict[str, Any] = {"generated": {"task": "copy"}, "maxPromptTokens": 16}

BROKEN_RULES: dict[str, tuple[dict[str, Any], str, str]] = {
    "sizes of graphs out of order": (
        {"training.rollout.engine": {"vllm": {"captureSizes": [8, 4]}}},
        "spec.training.rollout.engine.vllm.captureSizes",
        "captureSizes must be ascending",
    ),
    "sizes of graphs without graphs": (
        {"training.rollout.engine": {"vllm": {"captureSizes": [4, 8], "enforceEager": True}}},
        "spec.training.rollout.engine.vllm.captureSizes",
        "captureSizes must be left out with enforceEager",
    ),
    "three chips of a module": (
        {"accelerator": "ascend", "acceleratorType": "module", "pools.trainer.acceleratorsPerWorker": 3},
        f"{_POOLS}.trainer.acceleratorsPerWorker",
        "must fit acceleratorType (module: 1, 2, 4, 8;",
    ),
    "an Ascend node type on nvidia": (
        {"accelerator": "nvidia", "acceleratorType": "card"},
        "spec.acceleratorType",
        "acceleratorType is for accelerator: ascend",
    ),
    "a device resource on CPUs": (
        {"resourceName": "nvidia.com/gpu"},
        "spec.resourceName",
        "resourceName is for accelerator: nvidia and ascend",
    ),
    "above maxReplicas": (
        {"pools.fastRollout": {"replicas": 20, "maxReplicas": 16}},
        f"{_POOLS}.fastRollout.replicas",
        "replicas must be between minReplicas and maxReplicas (replicas is 20, maxReplicas is 16)",
    ),
    "below minReplicas": (
        {"pools.heavyRollout": {"replicas": 1, "minReplicas": 2}},
        f"{_POOLS}.heavyRollout.replicas",
        "replicas must be between minReplicas and maxReplicas (replicas is 1, minReplicas is 2)",
    ),
    "nobody generates": (
        {"pools.fastRollout.replicas": 0},
        f"{_POOLS}.fastRollout.replicas",
        "must not both be 0",
    ),
    "shard groups that leave ranks over": (
        {"pools.trainer.replicas": 6, "training.parallel": {"shardGroupSize": 4}},
        f"{_TRAINING}.parallel.shardGroupSize",
        "training.parallel.shardGroupSize must divide the trainer's ranks (pools.trainer.replicas * "
        "pools.trainer.acceleratorsPerWorker)",
    ),
    "tensor groups that leave ranks over": (
        {"pools.trainer.replicas": 3, "training.parallel": {"tensorParallel": 2}},
        f"{_TRAINING}.parallel.tensorParallel",
        "training.parallel.tensorParallel must divide the trainer's ranks (pools.trainer.replicas * "
        "pools.trainer.acceleratorsPerWorker)",
    ),
    "shard groups that cut tensor groups": (
        {"pools.trainer.replicas": 6, "training.parallel": {"tensorParallel": 2, "shardGroupSize": 3}},
        f"{_TRAINING}.parallel.tensorParallel",
        "tensorParallel must divide shardGroupSize, where that is set",
    ),
    "tensor groups that share samples": (
        {
            "pools.trainer.replicas": 2,
            "training.parallel": {"tensorParallel": 2, "contextParallel": {"hybrid": {}}},
        },
        f"{_TRAINING}.parallel.contextParallel",
        "contextParallel must be none, or not set, with tensorParallel above 1",
    ),
    "a sample above what a tensor group takes": (
        {
            "pools.trainer.replicas": 2,
            "training.parallel": {"tensorParallel": 2, "maxTokensPerMicroBatch": 20},
        },
        f"{_TRAINING}.parallel.maxTokensPerMicroBatch",
        "parallel.maxTokensPerMicroBatch must hold the longest sample (data.maxPromptTokens + "
        "rollout.maxResponseTokens) with parallel.tensorParallel above 1",
    ),
    "tensor groups that are compiled": (
        {
            "pools.trainer.replicas": 2,
            "training.parallel": {"tensorParallel": 2},
            "training.compute": {"compile": True},
        },
        f"{_TRAINING}.compute.compile",
        "compute.compile must be false with parallel.tensorParallel above 1",
    ),
    "tensor groups with experts": (
        {
            "pools.trainer.replicas": 2,
            "training.parallel": {"tensorParallel": 2},
            "training.model.random": {"architecture": "qwen3_moe", "experts": {}},
        },
        f"{_TRAINING}.parallel.tensorParallel",
        "parallel.tensorParallel must be 1 for a model with experts (model.random.experts)",
    ),
    "an adapter with the torch engine": (
        {"training.adapter": {}, "training.rollout.engine": {"torch": {}}},
        f"{_TRAINING}.rollout.engine",
        "rollout.engine must be vllm with adapter",
    ),
    "an adapter with drafts": (
        {"training.adapter": {}, "training.rollout.engine": {"vllm": {"speculation": {"ngram": {}}}}},
        f"{_TRAINING}.rollout.engine.vllm.speculation",
        "rollout.engine.vllm.speculation must not be set with adapter",
    ),
    "an adapter for experts": (
        {
            "training.adapter": {},
            "training.model.random": {"architecture": "qwen3_moe", "experts": {}},
        },
        f"{_TRAINING}.adapter",
        "adapter must not be set for a model with experts (model.random.experts)",
    ),
    "an adapter sent from device to device": (
        {
            "accelerator": "nvidia",
            "training.model.dtype": "bfloat16",
            "training.adapter": {},
            "training.async.weightSync": {"push": {}, "transport": "nccl"},
        },
        f"{_TRAINING}.async.weightSync.transport",
        "async.weightSync.transport must be auto, shm or tcp with adapter",
    ),
    "an adapter of which responses have no fresh tokens": (
        {"training.adapter": {}, "training.async.staleTokens": "mask"},
        f"{_TRAINING}.async.weightSync.push.inFlight",
        "async.weightSync.push.inFlight must be abort with adapter and async.staleTokens: mask",
    ),
    "an adapter that keeps the KV of others": (
        {"training.adapter": {}, "training.async.weightSync": {"push": {"kvAfterUpdate": "keep"}}},
        f"{_TRAINING}.async.weightSync.push.kvAfterUpdate",
        "async.weightSync.push.kvAfterUpdate must be recompute with adapter",
    ),
    "KV of requests that are taken out": (
        {"training.async.weightSync": {"push": {"inFlight": "abort", "kvAfterUpdate": "keep"}}},
        f"{_TRAINING}.async.weightSync.push.kvAfterUpdate",
        "kvAfterUpdate must be recompute unless inFlight is keep",
    ),
    "an adapter in tensor groups": (
        {"training.adapter": {}, "pools.trainer.replicas": 2, "training.parallel": {"tensorParallel": 2}},
        f"{_TRAINING}.parallel.tensorParallel",
        "parallel.tensorParallel must be 1 with adapter",
    ),
    "an adapter in main memory": (
        {
            "accelerator": "nvidia",
            "training.model.dtype": "bfloat16",
            "training.adapter": {},
            "training.parallel": {"cpuOffload": True},
        },
        f"{_TRAINING}.parallel.cpuOffload",
        "parallel.cpuOffload must be false with adapter",
    ),
    "an adapter that is compiled": (
        {"training.adapter": {}, "training.compute": {"compile": True}},
        f"{_TRAINING}.compute.compile",
        "compute.compile must be false with adapter",
    ),
    "an adapter in float32 on GPUs": (
        {"accelerator": "nvidia", "training.adapter": {}},
        f"{_TRAINING}.model.dtype",
        "training.model.dtype must be bfloat16 with training.adapter and accelerator: nvidia",
    ),
    "an adapter on NPUs": (
        {"accelerator": "ascend", "training.adapter": {}},
        "spec.training.adapter",
        "training.adapter is for accelerator: nvidia and cpu",
    ),
    "two words on what is computed again": (
        {
            "training.model.gradientCheckpointing": True,
            "training.model.activationCheckpointing": "selective",
        },
        f"{_TRAINING}.model.activationCheckpointing",
        "activationCheckpointing must be full, or not set, with gradientCheckpointing: true",
    ),
    "activations elsewhere that are more than inputs": (
        {
            "accelerator": "nvidia",
            "training.model.offloadActivations": True,
            "training.model.activationCheckpointing": "selective",
        },
        f"{_TRAINING}.model.offloadActivations",
        "offloadActivations needs activationCheckpointing: full",
    ),
    "activations elsewhere on CPUs": (
        {"training.model.offloadActivations": True, "training.model.gradientCheckpointing": True},
        f"{_TRAINING}.model.offloadActivations",
        "training.model.offloadActivations is for accelerator: nvidia and ascend",
    ),
    "a state elsewhere on CPUs": (
        {"training.parallel": {"cpuOffload": True}},
        f"{_TRAINING}.parallel.cpuOffload",
        "training.parallel.cpuOffload is for accelerator: nvidia and ascend",
    ),
    "several devices on a CPU": (
        {"pools.trainer.acceleratorsPerWorker": 2},
        f"{_POOLS}.trainer.acceleratorsPerWorker",
        "must be 1 with accelerator: cpu",
    ),
    "engines that share a CPU": (
        {"pools.fastRollout.enginesPerAccelerator": 2},
        f"{_POOLS}.fastRollout.enginesPerAccelerator",
        "above 1 needs accelerator: nvidia and acceleratorsPerWorker: 1 (",
    ),
    "engines that share several devices": (
        {
            "accelerator": "nvidia",
            "pools.fastRollout": {"acceleratorsPerWorker": 2, "enginesPerAccelerator": 2},
        },
        f"{_POOLS}.fastRollout.enginesPerAccelerator",
        "pools.fastRollout.acceleratorsPerWorker is 2",
    ),
    "a group with two members on a device": (
        {
            "accelerator": "nvidia",
            "pools.fastRollout.enginesPerAccelerator": 2,
            "training.async.weightSync": {"push": {}, "transport": "nccl"},
        },
        f"{_TRAINING}.async.weightSync.transport",
        "transport must not be nccl with pools.fastRollout.enginesPerAccelerator above 1",
    ),
    "speculation on Ascend": (
        {"accelerator": "ascend", "training.rollout.engine": {"vllm": {"speculation": {"suffix": {}}}}},
        f"{_TRAINING}.rollout.engine.vllm.speculation",
        "speculation is for accelerator: nvidia and cpu",
    ),
    "two ways to draft": (
        {"training.rollout.engine": {"vllm": {"speculation": {"suffix": {}, "ngram": {}}}}},
        f"{_TRAINING}.rollout.engine.vllm.speculation",
        "set exactly one of suffix, ngram (found suffix and ngram)",
    ),
    "a torch engine on accelerators": (
        {"accelerator": "nvidia", "training.rollout.engine": {"torch": {}}},
        f"{_TRAINING}.rollout.engine.torch",
        "needs accelerator: cpu",
    ),
    "nccl on CPUs": (
        {"training.async.weightSync": {"push": {}, "transport": "nccl"}},
        f"{_TRAINING}.async.weightSync.transport",
        "nccl needs accelerator: nvidia",
    ),
    "one response, to be compared with nothing": (
        {"training.rollout": {"samplesPerPrompt": 1, "filter": {"zeroVariance": {}}}},
        f"{_TRAINING}.rollout.filter.zeroVariance",
        "filter.zeroVariance needs samplesPerPrompt of 2 or more",
    ),
    "over-sampling where no step waits": (
        {
            "training.rollout.overSampling": {},
            "training.async.staleTokens": "mask",
            "training.schedule.promptsPerBatch": 8,
        },
        f"{_TRAINING}.rollout.overSampling",
        "rollout.overSampling must not be set with async.staleTokens: mask",
    ),
    "over-sampling by less than a group": (
        {"training.rollout.overSampling": {"rate": 0.2}},
        f"{_TRAINING}.rollout.overSampling.rate",
        "rollout.overSampling.rate must make a group at least",
    ),
    "stale tokens masked where no response goes on": (
        {"training.async": {"staleTokens": "mask", "weightSync": {"push": {"inFlight": "wait"}}}},
        f"{_TRAINING}.async.staleTokens",
        "staleTokens must be wait unless weightSync is push with inFlight keep or abort",
    ),
    "stale tokens masked with pull": (
        {"training.async": {"staleTokens": "mask", "weightSync": {"pull": {}}}},
        f"{_TRAINING}.async.staleTokens",
        "staleTokens must be wait unless weightSync is push with inFlight keep or abort",
    ),
    "hccl on nvidia": (
        {"accelerator": "nvidia", "training.async.weightSync": {"push": {}, "transport": "hccl"}},
        f"{_TRAINING}.async.weightSync.transport",
        "hccl needs accelerator: ascend",
    ),
    "nccl with pull": (
        {"accelerator": "nvidia", "training.async.weightSync": {"pull": {}, "transport": "nccl"}},
        f"{_TRAINING}.async.weightSync.transport",
        "transport must be auto, shm or tcp with pull",
    ),
    "neither push nor pull": (
        {"training.async.weightSync": {"transport": "shm"}},
        f"{_TRAINING}.async.weightSync",
        "set exactly one of push, pull (found none)",
    ),
    "two engines": (
        {"training.rollout.engine": {"vllm": {}, "torch": {}}},
        f"{_TRAINING}.rollout.engine",
        "set exactly one of vllm, torch (found vllm and torch)",
    ),
    "two lengths of a job": (
        {"training.schedule.epochs": 1},
        f"{_TRAINING}.schedule",
        "set exactly one of totalSteps, epochs (found totalSteps and epochs)",
    ),
    "an order for one batch": (
        {"training.schedule.batchOrder": "shortEnds"},
        f"{_TRAINING}.schedule.batchOrder",
        "batchOrder must be level unless batchesPerStep is 2 or more",
    ),
    "no objective": (
        {"training.algorithm.policyLoss": {}},
        f"{_TRAINING}.algorithm.policyLoss",
        "set exactly one of clip, decoupledClip, truncatedReinforce, gspo, cispo, dppoTv, sapo, custom"
        " (found none)",
    ),
    "two models": (
        {"training.model.path": "m"},
        f"{_TRAINING}.model",
        "set exactly one of path, random (found path and random)",
    ),
    "two tokenizers": (
        {"training.tokenizer.path": "m"},
        f"{_TRAINING}.tokenizer",
        "set exactly one of path, characters",
    ),
    "no data": (
        {"training.data": {"maxPromptTokens": 16}},
        f"{_TRAINING}.data",
        "set exactly one of jsonl, parquet, huggingFace, generated, sources (found none)",
    ),
    "two advantages": (
        {"training.algorithm.advantage": {"grpo": {}, "rloo": {}}},
        f"{_TRAINING}.algorithm.advantage",
        "set exactly one of grpo, rloo, reinforcePlusPlus, maxRl, none, custom (found grpo and rloo)",
    ),
    "no standard deviation to leave out": (
        {"training.algorithm": {"advantage": {"rloo": {}}, "normalizeByStd": False}},
        f"{_TRAINING}.algorithm.normalizeByStd",
        "normalizeByStd: false is for advantage grpo",
    ),
    **{
        f"a single response, {name}": (
            {"training.rollout.samplesPerPrompt": 1, "training.algorithm": {"advantage": advantage}},
            f"{_TRAINING}.rollout.samplesPerPrompt",
            "must be 2 or more with algorithm.advantage rloo, maxRl and reinforcePlusPlus with baseline",
        )
        for name, advantage in {
            "rloo": {"rloo": {}},
            "maxRl": {"maxRl": {}},
            "a baseline": {"reinforcePlusPlus": {"baseline": True}},
        }.items()
    },
    "a punishment with rewards that must not be negative": (
        {"training.algorithm": {"advantage": {"maxRl": {}}}, "training.reward.overlong": {"bufferTokens": 2}},
        f"{_TRAINING}.reward.overlong",
        "reward.overlong must not be set with algorithm.advantage.maxRl",
    ),
    "nothing to learn from": (
        {"training.algorithm.advantage": {"none": {}}},
        f"{_TRAINING}.algorithm.advantage.none",
        "advantage none needs distillation",
    ),
    "no bad responses to leave out": (
        {
            "training.algorithm": {
                "advantage": {"none": {}},
                "distillation": _TEACHER,
                "offPolicyMask": {"maxDivergence": 0.1},
            }
        },
        f"{_TRAINING}.algorithm.offPolicyMask",
        "offPolicyMask is not for advantage none",
    ),
    "the policy as its own teacher": (
        {"training.model": {"path": "teacher"}, "training.algorithm.distillation": _TEACHER},
        f"{_TRAINING}.algorithm.distillation.teacher.path",
        "algorithm.distillation.teacher.path must not be model.path",
    ),
    "a served teacher at another temperature": (
        {"training.rollout.temperature": 0.7, "training.algorithm.distillation": _SERVED},
        f"{_TRAINING}.rollout.temperature",
        "rollout.temperature must be 1 with algorithm.distillation.teacher.server",
    ),
    "a teacher in two places": (
        {"training.algorithm.distillation": {"teacher": {**_TEACHER["teacher"], **_SERVED["teacher"]}}},
        f"{_TRAINING}.algorithm.distillation.teacher",
        "set exactly one of path, server (found path and server)",
    ),
    "groups of equal rewards refused that teach": (
        {
            "training.algorithm": {"advantage": {"none": {}}, "distillation": _TEACHER},
            "training.rollout.filter": {"zeroVariance": {}},
        },
        f"{_TRAINING}.rollout.filter",
        "rollout.filter must be empty with algorithm.advantage.none",
    ),
    "pass rates refused of groups that teach": (
        {
            "training.algorithm": {"advantage": {"none": {}}, "distillation": _TEACHER},
            "training.rollout.filter": {"passRate": {"min": 0.1}},
        },
        f"{_TRAINING}.rollout.filter",
        "rollout.filter must be empty with algorithm.advantage.none",
    ),
    "pass rates that are none": (
        {"training.rollout.filter": {"passRate": {"min": 0.6, "max": 0.5}}},
        f"{_TRAINING}.rollout.filter.passRate.min",
        "min must not be above max: every group would be refused (min is 0.6, max is 0.5)",
    ),
    "all pass rates": (
        {"training.rollout.filter": {"passRate": {}}},
        f"{_TRAINING}.rollout.filter.passRate",
        "set min above 0 or max below 1: from 0 to 1 no group is refused",
    ),
    "two bounds of refusals": (
        {"training.rollout.filter": {"zeroVariance": {}, "passRate": {"max": 0.9, "maxRefill": 2}}},
        f"{_TRAINING}.rollout.filter.passRate",
        "passRate.maxRefill must not be set with zeroVariance, whose maxRefill bounds both",
    ),
    "a punishment that teaches nothing": (
        {
            "training.algorithm": {"advantage": {"none": {}}, "distillation": _TEACHER},
            "training.reward.overlong": {"bufferTokens": 2},
        },
        f"{_TRAINING}.reward.overlong",
        "reward.overlong must not be set with algorithm.advantage.none",
    ),
    "weight bounds crossed": (
        {"training.algorithm.policyLoss": {"decoupledClip": {"weightFloor": 1, "weightCap": 0.5}}},
        f"{_TRAINING}.algorithm.policyLoss.decoupledClip.weightFloor",
        "weightFloor must not be above weightCap",
    ),
    "correction bounds crossed": (
        {
            "training.algorithm": {
                "policyLoss": {"gspo": {}},
                "rolloutCorrection": {"weightFloor": 1, "weightCap": 0.5},
            }
        },
        f"{_TRAINING}.algorithm.rolloutCorrection.weightFloor",
        "weightFloor must not be above weightCap",
    ),
    "a correction of a loss that has its own": (
        {"training.algorithm": {"policyLoss": {"decoupledClip": {}}, "rolloutCorrection": {}}},
        f"{_TRAINING}.algorithm.rolloutCorrection",
        "rolloutCorrection is not for policyLoss clip",
    ),
    "a correction of the default loss": (
        {"training.algorithm": {"rolloutCorrection": {}}},
        f"{_TRAINING}.algorithm.rolloutCorrection",
        "rolloutCorrection is not for policyLoss clip",
    ),
    "prompt lengths crossed": (
        {"training.data.generated": {"task": "copy", "minLength": 5, "maxLength": 4}},
        f"{_TRAINING}.data.generated.minLength",
        "minLength must not be above maxLength",
    ),
    "heads do not divide": (
        {"training.model.random.keyValueHeads": 3},
        f"{_TRAINING}.model.random.keyValueHeads",
        "keyValueHeads must divide attentionHeads (keyValueHeads is 3, attentionHeads is 4)",
    ),
    "experts of a dense model": (
        {"training.model.random.experts": {}},
        f"{_TRAINING}.model.random.experts",
        "experts must be set for qwen3_moe, and for no other architecture (architecture is qwen3)",
    ),
    "a mixture of experts without experts": (
        {"training.model.random.architecture": "qwen3_moe"},
        f"{_TRAINING}.model.random.experts",
        "experts must be set for qwen3_moe, and for no other architecture",
    ),
    "more experts for a token than there are": (
        {"training.model.random": {"architecture": "qwen3_moe", "experts": {"count": 2, "perToken": 3}}},
        f"{_TRAINING}.model.random.experts.perToken",
        "perToken must not be above count (perToken is 3, count is 2)",
    ),
    "experts in the torch engine": (
        {
            "training.model.random": {"architecture": "qwen3_moe", "experts": {}},
            "training.rollout.engine": {"torch": {}},
        },
        f"{_TRAINING}.rollout.engine.torch",
        "rollout.engine.torch cannot run experts",
    ),
    "heads that qwen2 cannot have": (
        {"training.model.random.architecture": "qwen2"},
        f"{_TRAINING}.model.random.hiddenSize",
        "hiddenSize must be attentionHeads times headDim for qwen2 "
        "(hiddenSize is 64, attentionHeads is 4, headDim is 32)",
    ),
    "head width that has no pairs": (
        {"training.model.random.headDim": 15, "training.rollout.engine": {"torch": {}}},
        f"{_TRAINING}.model.random.headDim",
        "headDim must be even: positions are rotations of pairs (headDim is 15)",
    ),
    "head width that vLLM lacks": (
        {"training.model.random.headDim": 16},
        f"{_TRAINING}.model.random.headDim",
        "headDim must be one of 32, 64",
    ),
    "doubled character": (
        {"training.tokenizer.characters.alphabet": "abca"},
        f"{_TRAINING}.tokenizer.characters.alphabet",
        "alphabet must have each character once",
    ),
    "no tokenizer": (
        {"training.tokenizer": REMOVED},
        f"{_TRAINING}.tokenizer",
        "tokenizer must be set",
    ),
    "vocabulary below the alphabet": (
        {"training.model.random.vocabularySize": 39},
        f"{_TRAINING}.model.random.vocabularySize",
        "vocabularySize must hold tokenizer.characters.alphabet and 4 more",
    ),
    "longer than the model": (
        {"training.data.maxPromptTokens": 2041},
        f"{_TRAINING}.data.maxPromptTokens",
        "must not be above model.random.maxPositionEmbeddings",
    ),
    "longer than a micro-batch": (
        {"training.parallel.maxTokensPerMicroBatch": 23},
        f"{_TRAINING}.parallel.maxTokensPerMicroBatch",
        "maxTokensPerMicroBatch must hold the longest sample",
    ),
    "degree above the trainer's ranks": (
        {"training.parallel.contextParallel": {"fixed": {"degree": 2}}},
        f"{_TRAINING}.parallel.contextParallel.fixed.degree",
        "fixed.degree must not be above the trainer's ranks",
    ),
    "degree that is no power of two": (
        {"training.parallel.contextParallel": {"hybrid": {"largestDegree": 6}}},
        f"{_TRAINING}.parallel.contextParallel.hybrid.largestDegree",
        "largestDegree must be a power of two",
    ),
    "fixed degree that is no power of two": (
        {"training.parallel.contextParallel": {"fixed": {"degree": 6}}},
        f"{_TRAINING}.parallel.contextParallel.fixed.degree",
        "degree must be a power of two",
    ),
    "samples shared in two ways": (
        {"training.parallel.contextParallel": {"none": {}, "hybrid": {}}},
        f"{_TRAINING}.parallel.contextParallel",
        "set exactly one of none, fixed, hybrid",
    ),
    "longer than what two ranks hold": (
        {"pools.trainer.replicas": 3, "training.parallel.maxTokensPerMicroBatch": 11},
        f"{_TRAINING}.parallel.maxTokensPerMicroBatch",
        "maxTokensPerMicroBatch must hold the longest sample",
    ),
    "longer than a micro-batch, and not to be shared": (
        {
            "pools.trainer.replicas": 2,
            "training.parallel": {"maxTokensPerMicroBatch": 23, "contextParallel": {"none": {}}},
        },
        f"{_TRAINING}.parallel.maxTokensPerMicroBatch",
        "maxTokensPerMicroBatch must hold the longest sample",
    ),
    "punished zone above the longest response": (
        {"training.reward.overlong": {"bufferTokens": 9}},
        f"{_TRAINING}.reward.overlong.bufferTokens",
        "bufferTokens must not be above rollout.maxResponseTokens",
    ),
    "a reward and rewards": (
        {"training.reward.functions": [{"name": "a", "function": "m:f"}]},
        f"{_TRAINING}.reward",
        "set exactly one of function, functions (found function and functions)",
    ),
    "two rewards of one name": (
        {
            "training.reward": {
                "functions": [
                    {"name": "a", "function": "m:f"},
                    {"name": "b", "function": "m:f"},
                    {"name": "a", "function": "m:g"},
                ]
            }
        },
        f"{_TRAINING}.reward.functions",
        "functions must have different names",
    ),
    "two evaluation sets of one name": (
        {"training.evaluation": {"sets": [{"name": "held_out", "data": _HELD_OUT}] * 2}},
        f"{_TRAINING}.evaluation.sets",
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
        f"{_TRAINING}.evaluation.engines.fastRollout",
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
        f"{_TRAINING}.evaluation.engines.heavyRollout",
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
        f"{_TRAINING}.evaluation.engines",
        "set exactly one of shared, fastRollout, heavyRollout",
    ),
    "two sources of one name": (
        {"training.data": {"sources": [_SOURCE, _SOURCE], "maxPromptTokens": 16}},
        f"{_TRAINING}.data.sources",
        "sources must have different names",
    ),
    "a source without a weight": (
        {
            "training.data": {
                "sources": [_SOURCE, {**_SOURCE, "name": "b", "weight": 1.0}],
                "maxPromptTokens": 16,
            }
        },
        f"{_TRAINING}.data.sources",
        "sources must all have a weight, or none of them",
    ),
    "a curriculum without a middle": (
        {"training.data.curriculum": {"hardUpTo": 0.5, "easyFrom": 0.5}},
        f"{_TRAINING}.data.curriculum.hardUpTo",
        "hardUpTo must be below easyFrom",
    ),
    "a curriculum of epochs": (
        {"training.data.curriculum": {}, "training.schedule": {"epochs": 1, "promptsPerBatch": 4}},
        f"{_TRAINING}.data.curriculum",
        "data.curriculum must not be set with schedule.epochs",
    ),
    "an evaluation of longer prompts": (
        {"training.evaluation": {"sets": [{"name": "x", "data": {**_HELD_OUT, "maxPromptTokens": 4096}}]}},
        f"{_TRAINING}.evaluation.sets",
        "evaluation.sets: data.maxPromptTokens of a set must not be above that of training.data",
    ),
    "queue below a step": (
        {"training.async.queueCapacity": 31},
        f"{_TRAINING}.async.queueCapacity",
        "queueCapacity must hold one step's samples",
    ),
    "warm-up beyond the end": (
        {"training.optimizer.warmupUpdates": 5},
        f"{_TRAINING}.optimizer.warmupUpdates",
        "warmupUpdates must not be above the job's updates",
    ),
    "two routing policies": (
        {"training.rollout.routing": {"adjacent": {}, "adaptive": {}}},
        f"{_TRAINING}.rollout.routing",
        "set exactly one of adjacent, interleaved, leastInFlight, probe, adaptive "
        "(found adjacent and adaptive)",
    ),
    "probes without siblings": (
        {**_PROBE, "training.rollout.samplesPerPrompt": 1},
        f"{_TRAINING}.rollout.routing.probe.probes",
        "routing.probe.probes must be below samplesPerPrompt, or no response is left to route "
        "(routing.probe.probes is 1, samplesPerPrompt is 1)",
    ),
    "a heavy share of less than a prompt": (
        {**_PROBE, "training.rollout.routing": {"probe": {"heavyShare": 0.2}}},
        f"{_TRAINING}.rollout.routing.probe.heavyShare",
        "rollout.routing.probe.heavyShare of a cohort must be one prompt or more",
    ),
    "probes without a heavy pool": (
        {**_PROBE, "pools.heavyRollout.replicas": 0},
        "spec.pools.heavyRollout.replicas",
        "pools.heavyRollout.replicas must be 1 or more with training.rollout.routing.probe",
    ),
    "probes without a fast pool": (
        {**_PROBE, "pools.fastRollout.replicas": 0},
        "spec.pools.fastRollout.replicas",
        "pools.fastRollout.replicas must be 1 or more with training.rollout.routing.probe",
    ),
}
"""What is wrong with each job: the changes that make it, the field that is named, words of the message."""
