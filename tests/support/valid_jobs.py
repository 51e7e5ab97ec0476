"""RLJobs that are valid, each with something of its own, as changes to the small one of `jobs`."""

from typing import Any

from tests.support.jobs import REMOVED

GOOD: dict[str, dict[str, Any]] = {
    "the minimal job": {},
    "sizes of graphs": {"training.rollout.engine": {"vllm": {"captureSizes": [1, 2, 64]}}},
    "prompts that wait for one another": {"training.rollout.engine": {"vllm": {"delayPrefills": True}}},
    "steps with a token for each request": {
        "training.rollout.engine": {"vllm": {"maxBatchedTokens": 32}},
        "training.rollout.maxRunningRequests": 32,
    },
    "steps with a token for each request of an engine's part": {
        "accelerator": "nvidia",
        "pools.fastRollout": {"enginesPerAccelerator": 2, "cpusPerWorker": 3},
        "training.rollout.engine": {"vllm": {"maxBatchedTokens": 128}},
    },
    "a mixture of experts": {"training.model.random": {"architecture": "qwen3_moe", "experts": {}}},
    "tensor groups with experts, compiled": {
        "accelerator": "nvidia",
        "training.compute": {"compile": True},
        "pools.trainer": {"replicas": 1, "acceleratorsPerWorker": 2},
        "training.parallel": {"tensorParallel": 2},
        "training.model.random": {"architecture": "qwen3_moe", "experts": {"count": 6}},
    },
    "shard groups of several nodes": {
        "accelerator": "nvidia",
        "pools.trainer": {"replicas": 3, "acceleratorsPerWorker": 4},
        "storage.volume": {"persistentVolumeClaim": {"claimName": "runs"}},
        "training.parallel": {"shardGroupSize": 6},
    },
    "tensor groups within shard groups": {
        "accelerator": "nvidia",
        "pools.trainer": {"replicas": 2, "acceleratorsPerWorker": 4},
        "storage.volume": {"persistentVolumeClaim": {"claimName": "runs"}},
        "training.parallel": {"shardGroupSize": 4, "tensorParallel": 2, "contextParallel": {"none": {}}},
    },
    "all that saves memory": {
        "accelerator": "nvidia",
        "training.model.offloadActivations": True,
        "training.model.activationCheckpointing": "full",
        "training.optimizer": {"stateFormat": "bfloat16"},
        "training.parallel": {"cpuOffload": True},
    },
    "layers computed again, by both names": {
        "training.model.gradientCheckpointing": True,
        "training.model.activationCheckpointing": "full",
    },
    "an adapter": {
        "training.adapter": {"rank": 8, "alpha": 16, "targetModules": ["q_proj", "self_attn.v_proj"]}
    },
    "an adapter whose layers are compiled": {
        "training.adapter": {},
        "training.compute": {"compile": True},
    },
    "an adapter in main memory": {
        "accelerator": "nvidia",
        "training.model.dtype": "bfloat16",
        "training.adapter": {},
        "training.parallel": {"cpuOffload": True},
    },
    "an adapter beside experts": {
        "training.adapter": {},
        "training.model.random": {"architecture": "qwen3_moe", "experts": {}},
    },
    "an adapter in tensor groups": {
        "training.adapter": {},
        "pools.trainer.replicas": 2,
        "storage.volume": {"persistentVolumeClaim": {"claimName": "runs"}},
        "training.parallel": {"tensorParallel": 2},
    },
    "an adapter of fresh tokens alone": {
        "accelerator": "nvidia",
        "training.model.dtype": "bfloat16",
        "training.adapter": {},
        "training.rollout.engine": {"vllm": {}},
        "training.async": {
            "staleTokens": "mask",
            "weightSync": {"push": {"inFlight": "abort"}, "transport": "tcp"},
        },
    },
    "an adapter that engines fetch when they are done": {
        "training.adapter": {"rank": 1, "alpha": 1},
        "training.async.weightSync": {"pull": {}},
    },
    "replicas at their bounds": {"pools.fastRollout": {"replicas": 2, "minReplicas": 2, "maxReplicas": 2}},
    "two sources of prompts": {
        "training.data": {
            "sources": [
                {"name": "a", "jsonl": {"path": "a.jsonl"}, "weight": 1.0},
                {"name": "b", "parquet": {"path": "b.parquet"}, "promptField": "task", "weight": 0.5},
            ],
            "systemPrompt": "Think.",
            "maxPromptTokens": 16,
        }
    },
    "a curriculum": {"training.data.curriculum": {"shares": {"solved": 0.0}, "hardUpTo": 0.125}},
    "all loggers": {
        "training.loggers": {
            "wandb": {"project": "p", "mode": "offline"},
            "mlflow": {"trackingUri": "http://127.0.0.1:5000", "experiment": "e"},
            "webhook": {"url": "https://collect.tools:8443/rljob?x=1"},
            "bufferSteps": 10,
        }
    },
    "two evaluation sets": {
        "training.evaluation": {
            "sets": [
                {"name": "easy", "data": {"generated": {"task": "copy", "rows": 8}, "maxPromptTokens": 16}},
                {"name": "hard", "data": {"jsonl": {"path": "hard.jsonl"}, "maxPromptTokens": 8}},
            ],
            "everyVersions": 2,
            "samplesPerPrompt": 4,
            "sampling": {"temperature": 0.0},
            "engines": {"shared": {}},
        }
    },
    "an evaluation set that takes all from the data": {
        "training.evaluation": {"sets": [{"name": "easy", "data": {"jsonl": {"path": "easy.jsonl"}}}]}
    },
    "an evaluation on engines of a pool that may grow": {
        "training.evaluation": {
            "sets": [
                {"name": "easy", "data": {"generated": {"task": "copy", "rows": 8}, "maxPromptTokens": 16}}
            ],
            "engines": {"heavyRollout": 2},
        },
        "pools.heavyRollout": {"replicas": 0, "maxReplicas": 3},
    },
    "only the heavy pool": {"pools.fastRollout.replicas": 0, "pools.heavyRollout.replicas": 1},
    "nccl on nvidia": {
        "accelerator": "nvidia",
        "training.async.weightSync": {"push": {}, "transport": "nccl"},
    },
    "hccl on ascend": {
        "accelerator": "ascend",
        "training.async.weightSync": {"push": {}, "transport": "hccl"},
    },
    "pull over the network": {"training.async.weightSync": {"pull": {}, "transport": "tcp"}},
    "pull over shared memory": {"training.async.weightSync": {"pull": {}, "transport": "shm"}},
    "drafts from siblings": {
        "training.rollout.engine": {"vllm": {"speculation": {"suffix": {"keptTokens": 1000}}}},
    },
    "drafts from the own text, on GPUs": {
        "accelerator": "nvidia",
        "training.rollout.engine": {"vllm": {"speculation": {"ngram": {}, "draftTokens": 4}}},
    },
    "several GPUs to an engine": {"accelerator": "nvidia", "pools.fastRollout.acceleratorsPerWorker": 4},
    "several engines to a GPU": {
        "accelerator": "nvidia",
        "pools.fastRollout": {"enginesPerAccelerator": 4, "cpusPerWorker": 5},
        "pools.heavyRollout": {"replicas": 1, "acceleratorsPerWorker": 2},
        "training.async.weightSync": {"push": {}, "transport": "tcp"},
    },
    "any head width on GPUs": {"accelerator": "nvidia", "training.model.random.headDim": 16},
    "any head width with torch": {
        "training.model.random.headDim": 16,
        "training.rollout.engine": {"torch": {}},
    },
    "a qwen2 model": {"training.model.random": {"architecture": "qwen2", "hiddenSize": 128}},
    "a batch that fills the queue": {"training.async.queueCapacity": 32},
    "dual clip off": {"training.algorithm.policyLoss": {"clip": {"dual": None}}},
    "a vocabulary that just holds the letters": {
        "training.tokenizer.characters.alphabet": "abcd",
        "training.data.generated.letters": 4,
        "training.model.random.vocabularySize": 8,
    },
    "a random model and nothing else": {
        "training.data": {"generated": {"task": "copy"}},
        "training.rollout": REMOVED,
        "training.schedule": {"totalSteps": 4},
    },
    "as long as the model": {"training.model.random.maxPositionEmbeddings": 24},
    "warm-up to the end": {"training.optimizer.warmupUpdates": 4},
    "epochs": {"training.schedule": {"epochs": 1}, "training.optimizer.warmupUpdates": 1000},
    "over-sampling by one group": {"training.rollout.overSampling": {"rate": 0.25}},
    "groups of equal rewards refused": {"training.rollout.filter": {"zeroVariance": {"maxRefill": 1}}},
    "groups of a single pass rate alone": {
        "training.rollout.filter": {"zeroVariance": {}, "passRate": {"min": 0.5, "max": 0.5}}
    },
    "KV of earlier weights": {"training.async.weightSync": {"push": {"kvAfterUpdate": "keep"}}},
    "stale tokens masked": {"training.async.staleTokens": "mask"},
    "stale tokens masked, with requests taken out": {
        "training.async": {"staleTokens": "mask", "weightSync": {"push": {"inFlight": "abort"}}}
    },
    **{
        f"routing {policy}": {"training.rollout.routing": {policy: {}}}
        for policy in ("adjacent", "interleaved", "leastInFlight", "adaptive")
    },
    "routing by probes": {
        "training.rollout.routing": {"probe": {"cohortPrompts": 5}},
        "pools.heavyRollout.replicas": 1,
    },
    "routing by probes, with a heavy pool that comes later": {
        "training.rollout.routing": {"probe": {"heavyShare": 0.25, "probes": 7, "onTrip": "move"}},
        "pools.heavyRollout.maxReplicas": 1,
    },
    "fractional staleness": {"training.async.maxStaleness": 0.2},
    "free-form arguments": {"training.reward.arguments": {"scale": 2, "deep": {"er": [1, "a"]}}},
    "several rewards": {
        "training.reward": {
            "functions": [
                {"name": "correct", "function": "mine:correct", "arguments": {"strict": True}, "weight": 2},
                {"name": "short", "function": "mine:short", "weight": -0.5},
            ],
            "arguments": {"scale": 2},
        },
        "training.data.rewardFields": ["level", "extra_info.index"],
    },
    "samples that two of three ranks hold": {
        "accelerator": "nvidia",
        "pools.trainer.acceleratorsPerWorker": 3,
        "training.parallel.maxTokensPerMicroBatch": 12,
    },
    "samples shared by need": {
        "accelerator": "nvidia",
        "pools.trainer.acceleratorsPerWorker": 8,
        "training.parallel": {
            "maxTokensPerMicroBatch": 6,
            "contextParallel": {"hybrid": {"largestDegree": 4}, "attention": "allGather"},
        },
    },
    "samples shared by all": {
        "accelerator": "nvidia",
        "pools.trainer.acceleratorsPerWorker": 4,
        "training.parallel": {"maxTokensPerMicroBatch": 6, "contextParallel": {"fixed": {"degree": 4}}},
    },
    "samples shared by tensor groups": {
        "accelerator": "nvidia",
        "pools.trainer.acceleratorsPerWorker": 8,
        "training.parallel": {
            "maxTokensPerMicroBatch": 6,
            "tensorParallel": 2,
            "contextParallel": {"hybrid": {"largestDegree": 4}, "attention": "ulysses"},
        },
    },
    "samples shared by two of three tensor groups, as they do not fit one": {
        "accelerator": "nvidia",
        "pools.trainer.acceleratorsPerWorker": 6,
        "training.parallel": {"maxTokensPerMicroBatch": 12, "tensorParallel": 2},
    },
    "samples shared by all tensor groups": {
        "accelerator": "nvidia",
        "pools.trainer.acceleratorsPerWorker": 8,
        "training.parallel": {
            "maxTokensPerMicroBatch": 6,
            "tensorParallel": 2,
            "contextParallel": {"fixed": {"degree": 4}},
        },
    },
    "equal weight bounds": {
        "training.algorithm.policyLoss": {"decoupledClip": {"weightFloor": 1, "weightCap": 1}}
    },
    "sequence ratios": {"training.algorithm": {"policyLoss": {"gspo": {}}, "rolloutCorrection": {}}},
    "bounded weights": {
        "training.algorithm": {
            "policyLoss": {"cispo": {"weightCap": 1}},
            "rolloutCorrection": {"outside": "mask", "level": "sequence"},
        }
    },
    "moves of probabilities": {
        "training.algorithm": {"policyLoss": {"dppoTv": {"high": 1}}, "rolloutCorrection": {}}
    },
    "a soft gate": {"training.algorithm": {"policyLoss": {"sapo": {}}, "rolloutCorrection": {}}},
    "bad responses far from the policy left out": {
        "training.algorithm": {"policyLoss": {"decoupledClip": {}}, "offPolicyMask": {"maxDivergence": 0.1}}
    },
    "each reward less the mean of the others": {"training.algorithm": {"advantage": {"rloo": {}}}},
    "rewards whitened, of single responses": {
        "training.rollout.samplesPerPrompt": 1,
        "training.algorithm": {"advantage": {"reinforcePlusPlus": {}}},
        "training.reward.overlong": {"bufferTokens": 2},
    },
    "rewards whitened after the mean of the group": {
        "training.algorithm": {"advantage": {"reinforcePlusPlus": {"baseline": True}}}
    },
    "rewards by the mean of the group": {"training.algorithm": {"advantage": {"maxRl": {}}}},
    "a teacher alone, of single responses": {
        "training.rollout.samplesPerPrompt": 1,
        "training.algorithm": {
            "advantage": {"none": {}},
            "distillation": {"teacher": {"path": "teacher"}},
            "policyLoss": {"gspo": {}},
        },
    },
    "a teacher of a server, of the policy's own folder": {
        "training.model": {"path": "m"},
        "training.rollout.topP": 0.9,
        "training.algorithm": {
            "advantage": {"none": {}},
            "distillation": {
                "teacher": {
                    "server": {
                        "url": "https://teacher.models:8000/qwen",
                        "model": "m",
                        "timeoutSeconds": 30,
                        "concurrency": 64,
                    }
                }
            },
        },
    },
    "a teacher beside rewards": {
        "training.model": {"path": "m"},
        "training.reward.overlong": {"bufferTokens": 2},
        "training.algorithm": {
            "distillation": {"teacher": {"path": "teacher"}, "coefficient": 0.1},
            "kl": {},
            "offPolicyMask": {"maxDivergence": 0.1},
        },
    },
    "centred alone, by both names": {
        "training.algorithm": {"advantage": {"grpo": {}}, "normalizeByStd": False}
    },
    "a loss and advantages of the job's own": {
        "training.algorithm": {
            "policyLoss": {"custom": {"function": "my_losses:clip", "arguments": {"high": 0.3}}},
            "advantage": {"custom": {"function": "my_losses:ranks"}},
            "rolloutCorrection": {},
            "offPolicyMask": {"maxDivergence": 0.1},
        }
    },
    "eight chips of a module": {
        "accelerator": "ascend",
        "acceleratorType": "module",
        "pools.trainer.acceleratorsPerWorker": 8,
    },
    "a resource name of the cluster's own": {
        "accelerator": "nvidia",
        "resourceName": "nvidia.com/mig-1g.10gb",
    },
    "quantities": {
        "pools.head.resources": {"requests": {"cpu": 4, "memory": "16Gi"}, "limits": {"cpu": "4.5"}}
    },
    "a volume and a policy": {
        "storage.volume": {"persistentVolumeClaim": {"claimName": "runs"}},
        "runPolicy": {"backoffLimit": 0, "ttlSecondsAfterFinished": 0, "activeDeadlineSeconds": 60},
    },
    "a template": {"pools.trainer.template": {"spec": {"nodeSelector": {"zone": "a"}}}},
}
"""What each job shows, and the changes that make it."""
