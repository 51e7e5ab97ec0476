"""RLJobs that break a rule on pools and their devices, or on how the trainer's ranks share the work."""

from tests.support.broken_jobs.form import POOLS, TRAINING, BrokenJobs

BROKEN: BrokenJobs = {
    "three chips of a module": (
        {"accelerator": "ascend", "acceleratorType": "module", "pools.trainer.acceleratorsPerWorker": 3},
        f"{POOLS}.trainer.acceleratorsPerWorker",
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
        f"{POOLS}.fastRollout.replicas",
        "replicas must be between minReplicas and maxReplicas (replicas is 20, maxReplicas is 16)",
    ),
    "below minReplicas": (
        {"pools.heavyRollout": {"replicas": 1, "minReplicas": 2}},
        f"{POOLS}.heavyRollout.replicas",
        "replicas must be between minReplicas and maxReplicas (replicas is 1, minReplicas is 2)",
    ),
    "nobody generates": (
        {"pools.fastRollout.replicas": 0},
        f"{POOLS}.fastRollout.replicas",
        "must not both be 0",
    ),
    "shard groups that leave ranks over": (
        {"pools.trainer.replicas": 6, "training.parallel": {"shardGroupSize": 4}},
        f"{TRAINING}.parallel.shardGroupSize",
        "training.parallel.shardGroupSize must divide the trainer's ranks (pools.trainer.replicas * "
        "pools.trainer.acceleratorsPerWorker)",
    ),
    "tensor groups that leave ranks over": (
        {"pools.trainer.replicas": 3, "training.parallel": {"tensorParallel": 2}},
        f"{TRAINING}.parallel.tensorParallel",
        "training.parallel.tensorParallel must divide the trainer's ranks (pools.trainer.replicas * "
        "pools.trainer.acceleratorsPerWorker)",
    ),
    "shard groups that cut tensor groups": (
        {"pools.trainer.replicas": 6, "training.parallel": {"tensorParallel": 2, "shardGroupSize": 3}},
        f"{TRAINING}.parallel.tensorParallel",
        "tensorParallel must divide shardGroupSize, where that is set",
    ),
    "more tensor groups for a sample than there are": (
        {
            "pools.trainer.replicas": 6,
            "training.parallel": {"tensorParallel": 2, "contextParallel": {"fixed": {"degree": 4}}},
        },
        f"{TRAINING}.parallel.contextParallel.fixed.degree",
        "fixed.degree must not be above the trainer's ranks (pools.trainer.replicas * "
        "pools.trainer.acceleratorsPerWorker, divided by training.parallel.tensorParallel) "
        "(training.parallel.contextParallel.fixed.degree is 4, pools.trainer.replicas is 6, "
        "pools.trainer.acceleratorsPerWorker is 1, training.parallel.tensorParallel is 2)",
    ),
    "a sample above what the only tensor group takes": (
        {
            "pools.trainer.replicas": 2,
            "training.parallel": {"tensorParallel": 2, "maxTokensPerMicroBatch": 20},
        },
        f"{TRAINING}.parallel.maxTokensPerMicroBatch",
        "training.parallel.maxTokensPerMicroBatch must hold the longest sample",
    ),
    "a sample above what two tensor groups take": (
        {
            "pools.trainer.replicas": 6,
            "training.parallel": {"tensorParallel": 2, "maxTokensPerMicroBatch": 10},
        },
        f"{TRAINING}.parallel.maxTokensPerMicroBatch",
        "training.parallel.maxTokensPerMicroBatch must hold the longest sample",
    ),
    "tensor groups with parts of an expert": (
        {
            "pools.trainer.replicas": 2,
            "training.parallel": {"tensorParallel": 2},
            "training.model.random": {"architecture": "qwen3_moe", "experts": {"count": 7}},
        },
        f"{TRAINING}.parallel.tensorParallel",
        "parallel.tensorParallel must divide model.random.experts.count",
    ),
    "two words on what is computed again": (
        {
            "training.model.gradientCheckpointing": True,
            "training.model.activationCheckpointing": "selective",
        },
        f"{TRAINING}.model.activationCheckpointing",
        "activationCheckpointing must be full, or not set, with gradientCheckpointing: true",
    ),
    "activations elsewhere that are more than inputs": (
        {
            "accelerator": "nvidia",
            "training.model.offloadActivations": True,
            "training.model.activationCheckpointing": "selective",
        },
        f"{TRAINING}.model.offloadActivations",
        "offloadActivations needs activationCheckpointing: full",
    ),
    "activations elsewhere on CPUs": (
        {"training.model.offloadActivations": True, "training.model.gradientCheckpointing": True},
        f"{TRAINING}.model.offloadActivations",
        "training.model.offloadActivations is for accelerator: nvidia and ascend",
    ),
    "a state elsewhere on CPUs": (
        {"training.parallel": {"cpuOffload": True}},
        f"{TRAINING}.parallel.cpuOffload",
        "training.parallel.cpuOffload is for accelerator: nvidia and ascend",
    ),
    "several devices on a CPU": (
        {"pools.trainer.acceleratorsPerWorker": 2},
        f"{POOLS}.trainer.acceleratorsPerWorker",
        "must be 1 with accelerator: cpu",
    ),
    "engines that share a CPU": (
        {"pools.fastRollout.enginesPerAccelerator": 2},
        f"{POOLS}.fastRollout.enginesPerAccelerator",
        "above 1 needs accelerator: nvidia and acceleratorsPerWorker: 1 (",
    ),
    "engines that share several devices": (
        {
            "accelerator": "nvidia",
            "pools.fastRollout": {"acceleratorsPerWorker": 2, "enginesPerAccelerator": 2},
        },
        f"{POOLS}.fastRollout.enginesPerAccelerator",
        "pools.fastRollout.acceleratorsPerWorker is 2",
    ),
    "longer than a micro-batch": (
        {"training.parallel.maxTokensPerMicroBatch": 23},
        f"{TRAINING}.parallel.maxTokensPerMicroBatch",
        "maxTokensPerMicroBatch must hold the longest sample",
    ),
    "degree above the trainer's ranks": (
        {"training.parallel.contextParallel": {"fixed": {"degree": 2}}},
        f"{TRAINING}.parallel.contextParallel.fixed.degree",
        "fixed.degree must not be above the trainer's ranks",
    ),
    "degree that is no power of two": (
        {"training.parallel.contextParallel": {"hybrid": {"largestDegree": 6}}},
        f"{TRAINING}.parallel.contextParallel.hybrid.largestDegree",
        "largestDegree must be a power of two",
    ),
    "fixed degree that is no power of two": (
        {"training.parallel.contextParallel": {"fixed": {"degree": 6}}},
        f"{TRAINING}.parallel.contextParallel.fixed.degree",
        "degree must be a power of two",
    ),
    "samples shared in two ways": (
        {"training.parallel.contextParallel": {"none": {}, "hybrid": {}}},
        f"{TRAINING}.parallel.contextParallel",
        "set exactly one of none, fixed, hybrid",
    ),
    "longer than what two ranks hold": (
        {"pools.trainer.replicas": 3, "training.parallel.maxTokensPerMicroBatch": 11},
        f"{TRAINING}.parallel.maxTokensPerMicroBatch",
        "maxTokensPerMicroBatch must hold the longest sample",
    ),
    "longer than a micro-batch, and not to be shared": (
        {
            "pools.trainer.replicas": 2,
            "training.parallel": {"maxTokensPerMicroBatch": 23, "contextParallel": {"none": {}}},
        },
        f"{TRAINING}.parallel.maxTokensPerMicroBatch",
        "maxTokensPerMicroBatch must hold the longest sample",
    ),
}
