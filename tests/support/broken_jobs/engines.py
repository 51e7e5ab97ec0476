"""RLJobs that break a rule on engines, on adapters, or on how weights reach engines."""

from tests.support.broken_jobs.form import TRAINING, BrokenJobs

BROKEN: BrokenJobs = {
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
    "steps with fewer tokens than requests": (
        {"training.rollout.engine": {"vllm": {"maxBatchedTokens": 128}}},
        f"{TRAINING}.rollout.engine.vllm.maxBatchedTokens",
        "training.rollout.engine.vllm.maxBatchedTokens must not be below training.rollout.maxRunningRequests",
    ),
    "steps with fewer tokens than the requests of a heavy engine, which shares them with none": (
        {
            "accelerator": "nvidia",
            "pools.fastRollout.enginesPerAccelerator": 2,
            "pools.heavyRollout.maxReplicas": 1,
            "training.rollout.engine": {"vllm": {"maxBatchedTokens": 128}},
        },
        f"{TRAINING}.rollout.engine.vllm.maxBatchedTokens",
        "(training.rollout.engine.vllm.maxBatchedTokens is 128, training.rollout.maxRunningRequests is 256)",
    ),
    "an adapter with the torch engine": (
        {"training.adapter": {}, "training.rollout.engine": {"torch": {}}},
        f"{TRAINING}.rollout.engine",
        "rollout.engine must be vllm with adapter",
    ),
    "an adapter with drafts": (
        {"training.adapter": {}, "training.rollout.engine": {"vllm": {"speculation": {"ngram": {}}}}},
        f"{TRAINING}.rollout.engine.vllm.speculation",
        "rollout.engine.vllm.speculation must not be set with adapter",
    ),
    "an adapter sent from device to device": (
        {
            "accelerator": "nvidia",
            "training.model.dtype": "bfloat16",
            "training.adapter": {},
            "training.async.weightSync": {"push": {}, "transport": "nccl"},
        },
        f"{TRAINING}.async.weightSync.transport",
        "async.weightSync.transport must be auto, shm or tcp with adapter",
    ),
    "an adapter of which responses have no fresh tokens": (
        {"training.adapter": {}, "training.async.staleTokens": "mask"},
        f"{TRAINING}.async.weightSync.push.inFlight",
        "async.weightSync.push.inFlight must be abort with adapter and async.staleTokens: mask",
    ),
    "an adapter that keeps the KV of others": (
        {"training.adapter": {}, "training.async.weightSync": {"push": {"kvAfterUpdate": "keep"}}},
        f"{TRAINING}.async.weightSync.push.kvAfterUpdate",
        "async.weightSync.push.kvAfterUpdate must be recompute with adapter",
    ),
    "KV of requests that are taken out": (
        {"training.async.weightSync": {"push": {"inFlight": "abort", "kvAfterUpdate": "keep"}}},
        f"{TRAINING}.async.weightSync.push.kvAfterUpdate",
        "kvAfterUpdate must be recompute unless inFlight is keep",
    ),
    "an adapter in float32 on GPUs": (
        {"accelerator": "nvidia", "training.adapter": {}},
        f"{TRAINING}.model.dtype",
        "training.model.dtype must be bfloat16 with training.adapter and accelerator: nvidia",
    ),
    "an adapter on NPUs": (
        {"accelerator": "ascend", "training.adapter": {}},
        "spec.training.adapter",
        "training.adapter is for accelerator: nvidia and cpu",
    ),
    "a group with two members on a device": (
        {
            "accelerator": "nvidia",
            "pools.fastRollout.enginesPerAccelerator": 2,
            "training.async.weightSync": {"push": {}, "transport": "nccl"},
        },
        f"{TRAINING}.async.weightSync.transport",
        "transport must not be nccl with pools.fastRollout.enginesPerAccelerator above 1",
    ),
    "speculation on Ascend": (
        {"accelerator": "ascend", "training.rollout.engine": {"vllm": {"speculation": {"suffix": {}}}}},
        f"{TRAINING}.rollout.engine.vllm.speculation",
        "speculation is for accelerator: nvidia and cpu",
    ),
    "two ways to draft": (
        {"training.rollout.engine": {"vllm": {"speculation": {"suffix": {}, "ngram": {}}}}},
        f"{TRAINING}.rollout.engine.vllm.speculation",
        "set exactly one of suffix, ngram (found suffix and ngram)",
    ),
    "a torch engine on accelerators": (
        {"accelerator": "nvidia", "training.rollout.engine": {"torch": {}}},
        f"{TRAINING}.rollout.engine.torch",
        "needs accelerator: cpu",
    ),
    "nccl on CPUs": (
        {"training.async.weightSync": {"push": {}, "transport": "nccl"}},
        f"{TRAINING}.async.weightSync.transport",
        "nccl needs accelerator: nvidia",
    ),
    "hccl on nvidia": (
        {"accelerator": "nvidia", "training.async.weightSync": {"push": {}, "transport": "hccl"}},
        f"{TRAINING}.async.weightSync.transport",
        "hccl needs accelerator: ascend",
    ),
    "nccl with pull": (
        {"accelerator": "nvidia", "training.async.weightSync": {"pull": {}, "transport": "nccl"}},
        f"{TRAINING}.async.weightSync.transport",
        "transport must be auto, shm or tcp with pull",
    ),
    "neither push nor pull": (
        {"training.async.weightSync": {"transport": "shm"}},
        f"{TRAINING}.async.weightSync",
        "set exactly one of push, pull (found none)",
    ),
    "two engines": (
        {"training.rollout.engine": {"vllm": {}, "torch": {}}},
        f"{TRAINING}.rollout.engine",
        "set exactly one of vllm, torch (found vllm and torch)",
    ),
}
