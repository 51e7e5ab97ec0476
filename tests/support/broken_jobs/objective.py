"""RLJobs that break a rule on what is learned: rewards, advantages, losses, teachers, choice of groups."""

from typing import Any

from tests.support.broken_jobs.form import TRAINING, BrokenJobs

_TEACHER = {"teacher": {"path": "teacher"}}
_SERVED: dict[str, Any] = {"teacher": {"server": {"url": "http://teacher:8000", "model": "t"}}}

BROKEN: BrokenJobs = {
    "one response, to be compared with nothing": (
        {"training.rollout": {"samplesPerPrompt": 1, "filter": {"zeroVariance": {}}}},
        f"{TRAINING}.rollout.filter.zeroVariance",
        "filter.zeroVariance needs samplesPerPrompt of 2 or more",
    ),
    "no objective": (
        {"training.algorithm.policyLoss": {}},
        f"{TRAINING}.algorithm.policyLoss",
        "set exactly one of clip, decoupledClip, truncatedReinforce, gspo, cispo, dppoTv, sapo, custom"
        " (found none)",
    ),
    "two advantages": (
        {"training.algorithm.advantage": {"grpo": {}, "rloo": {}}},
        f"{TRAINING}.algorithm.advantage",
        "set exactly one of grpo, rloo, reinforcePlusPlus, maxRl, none, custom (found grpo and rloo)",
    ),
    "no standard deviation to leave out": (
        {"training.algorithm": {"advantage": {"rloo": {}}, "normalizeByStd": False}},
        f"{TRAINING}.algorithm.normalizeByStd",
        "normalizeByStd: false is for advantage grpo",
    ),
    **{
        f"a single response, {name}": (
            {"training.rollout.samplesPerPrompt": 1, "training.algorithm": {"advantage": advantage}},
            f"{TRAINING}.rollout.samplesPerPrompt",
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
        f"{TRAINING}.reward.overlong",
        "reward.overlong must not be set with algorithm.advantage.maxRl",
    ),
    "nothing to learn from": (
        {"training.algorithm.advantage": {"none": {}}},
        f"{TRAINING}.algorithm.advantage.none",
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
        f"{TRAINING}.algorithm.offPolicyMask",
        "offPolicyMask is not for advantage none",
    ),
    "the policy as its own teacher": (
        {"training.model": {"path": "teacher"}, "training.algorithm.distillation": _TEACHER},
        f"{TRAINING}.algorithm.distillation.teacher.path",
        "algorithm.distillation.teacher.path must not be model.path",
    ),
    "a served teacher at another temperature": (
        {"training.rollout.temperature": 0.7, "training.algorithm.distillation": _SERVED},
        f"{TRAINING}.rollout.temperature",
        "rollout.temperature must be 1 with algorithm.distillation.teacher.server",
    ),
    "a teacher in two places": (
        {"training.algorithm.distillation": {"teacher": {**_TEACHER["teacher"], **_SERVED["teacher"]}}},
        f"{TRAINING}.algorithm.distillation.teacher",
        "set exactly one of path, server (found path and server)",
    ),
    "groups of equal rewards refused that teach": (
        {
            "training.algorithm": {"advantage": {"none": {}}, "distillation": _TEACHER},
            "training.rollout.filter": {"zeroVariance": {}},
        },
        f"{TRAINING}.rollout.filter",
        "rollout.filter must be empty with algorithm.advantage.none",
    ),
    "pass rates refused of groups that teach": (
        {
            "training.algorithm": {"advantage": {"none": {}}, "distillation": _TEACHER},
            "training.rollout.filter": {"passRate": {"min": 0.1}},
        },
        f"{TRAINING}.rollout.filter",
        "rollout.filter must be empty with algorithm.advantage.none",
    ),
    "pass rates that are none": (
        {"training.rollout.filter": {"passRate": {"min": 0.6, "max": 0.5}}},
        f"{TRAINING}.rollout.filter.passRate.min",
        "min must not be above max: every group would be refused (min is 0.6, max is 0.5)",
    ),
    "all pass rates": (
        {"training.rollout.filter": {"passRate": {}}},
        f"{TRAINING}.rollout.filter.passRate",
        "set min above 0 or max below 1: from 0 to 1 no group is refused",
    ),
    "two bounds of refusals": (
        {"training.rollout.filter": {"zeroVariance": {}, "passRate": {"max": 0.9, "maxRefill": 2}}},
        f"{TRAINING}.rollout.filter.passRate",
        "passRate.maxRefill must not be set with zeroVariance, whose maxRefill bounds both",
    ),
    "a punishment that teaches nothing": (
        {
            "training.algorithm": {"advantage": {"none": {}}, "distillation": _TEACHER},
            "training.reward.overlong": {"bufferTokens": 2},
        },
        f"{TRAINING}.reward.overlong",
        "reward.overlong must not be set with algorithm.advantage.none",
    ),
    "weight bounds crossed": (
        {"training.algorithm.policyLoss": {"decoupledClip": {"weightFloor": 1, "weightCap": 0.5}}},
        f"{TRAINING}.algorithm.policyLoss.decoupledClip.weightFloor",
        "weightFloor must not be above weightCap",
    ),
    "correction bounds crossed": (
        {
            "training.algorithm": {
                "policyLoss": {"gspo": {}},
                "rolloutCorrection": {"weightFloor": 1, "weightCap": 0.5},
            }
        },
        f"{TRAINING}.algorithm.rolloutCorrection.weightFloor",
        "weightFloor must not be above weightCap",
    ),
    "a correction of a loss that has its own": (
        {"training.algorithm": {"policyLoss": {"decoupledClip": {}}, "rolloutCorrection": {}}},
        f"{TRAINING}.algorithm.rolloutCorrection",
        "rolloutCorrection is not for policyLoss clip",
    ),
    "a correction of the default loss": (
        {"training.algorithm": {"rolloutCorrection": {}}},
        f"{TRAINING}.algorithm.rolloutCorrection",
        "rolloutCorrection is not for policyLoss clip",
    ),
    "punished zone above the longest response": (
        {"training.reward.overlong": {"bufferTokens": 9}},
        f"{TRAINING}.reward.overlong.bufferTokens",
        "bufferTokens must not be above rollout.maxResponseTokens",
    ),
    "a reward and rewards": (
        {"training.reward.functions": [{"name": "a", "function": "m:f"}]},
        f"{TRAINING}.reward",
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
        f"{TRAINING}.reward.functions",
        "functions must have different names",
    ),
}
