"""RLJobs that break a rule on the rollout and its routing, or on the schedule."""

from typing import Any

from tests.support.broken_jobs.form import TRAINING, BrokenJobs

_PROBE: dict[str, Any] = {
    "training.rollout.routing": {"probe": {"cohortPrompts": 8}},
    "pools.heavyRollout.replicas": 1,
}

BROKEN: BrokenJobs = {
    "over-sampling where no step waits": (
        {
            "training.rollout.overSampling": {},
            "training.async.staleTokens": "mask",
            "training.schedule.promptsPerBatch": 8,
        },
        f"{TRAINING}.rollout.overSampling",
        "rollout.overSampling must not be set with async.staleTokens: mask",
    ),
    "over-sampling by less than a group": (
        {"training.rollout.overSampling": {"rate": 0.2}},
        f"{TRAINING}.rollout.overSampling.rate",
        "rollout.overSampling.rate must make a group at least",
    ),
    "stale tokens masked where no response goes on": (
        {"training.async": {"staleTokens": "mask", "weightSync": {"push": {"inFlight": "wait"}}}},
        f"{TRAINING}.async.staleTokens",
        "staleTokens must be wait unless weightSync is push with inFlight keep or abort",
    ),
    "stale tokens masked with pull": (
        {"training.async": {"staleTokens": "mask", "weightSync": {"pull": {}}}},
        f"{TRAINING}.async.staleTokens",
        "staleTokens must be wait unless weightSync is push with inFlight keep or abort",
    ),
    "two lengths of a job": (
        {"training.schedule.epochs": 1},
        f"{TRAINING}.schedule",
        "set exactly one of totalSteps, epochs (found totalSteps and epochs)",
    ),
    "an order for one batch": (
        {"training.schedule.batchOrder": "shortEnds"},
        f"{TRAINING}.schedule.batchOrder",
        "batchOrder must be level unless batchesPerStep is 2 or more",
    ),
    "queue below a step": (
        {"training.async.queueCapacity": 31},
        f"{TRAINING}.async.queueCapacity",
        "queueCapacity must hold one step's samples",
    ),
    "warm-up beyond the end": (
        {"training.optimizer.warmupUpdates": 5},
        f"{TRAINING}.optimizer.warmupUpdates",
        "warmupUpdates must not be above the job's updates",
    ),
    "two routing policies": (
        {"training.rollout.routing": {"adjacent": {}, "adaptive": {}}},
        f"{TRAINING}.rollout.routing",
        "set exactly one of adjacent, interleaved, leastInFlight, probe, adaptive "
        "(found adjacent and adaptive)",
    ),
    "probes without siblings": (
        {**_PROBE, "training.rollout.samplesPerPrompt": 1},
        f"{TRAINING}.rollout.routing.probe.probes",
        "routing.probe.probes must be below samplesPerPrompt, or no response is left to route "
        "(routing.probe.probes is 1, samplesPerPrompt is 1)",
    ),
    "a heavy share of less than a prompt": (
        {**_PROBE, "training.rollout.routing": {"probe": {"heavyShare": 0.2}}},
        f"{TRAINING}.rollout.routing.probe.heavyShare",
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
