"""Functions that a manifest names, of rewards, losses and advantages, that are missing or do not fit."""

import pytest

from rljob_runtime.manifest import reward_trial
from tests.support.runtime.checked_jobs import COPY, GOOD, GOOD_DATA, check_is_named, mixed

LOSS, ADVANTAGE = "training.algorithm.policyLoss.custom", "training.algorithm.advantage.custom"
OWN = "tests.support.runtime.own_objective"


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch):
    """Beside other work it takes seconds to import math-verify."""
    monkeypatch.setattr(reward_trial, "_SECONDS", 60.0)


@pytest.mark.parametrize(
    ("files", "changes", "path", "words"),
    [
        (
            [],
            {"training.reward.function": "rljob_runtime.rewards.tasks:coppy"},
            "spec.training.reward.function",
            ["coppy", "copy"],
        ),
        (
            [],
            {"training.reward.arguments": {"overrun_penalti": 1}},
            "spec.training.reward.arguments.overrun_penalti",
            ['tasks:copy" has no argument overrun_penalti. Did you mean overrun_penalty? It takes: overrun'],
        ),
        ([], {"training.reward.function": "nowhere:f"}, "spec.training.reward.function", ["nowhere"]),
        ([], {LOSS: {"function": f"{OWN}:clip"}, ADVANTAGE: {"function": f"{OWN}:ranks"}}, None, None),
        ([], {LOSS: {"function": "nowhere:f"}}, f"spec.{LOSS}.function", ["no module nowhere", "beside"]),
        (
            [],
            {LOSS: {"function": f"{OWN}:clip", "arguments": {"hihg": 1}}},
            f"spec.{LOSS}.arguments.hihg",
            ["Did you mean high"],
        ),
        ([], {LOSS: {"function": f"{OWN}:never_finite"}}, f"spec.{LOSS}.function", ["not finite"]),
        (
            [],
            {ADVANTAGE: {"function": f"{OWN}:by_variance"}},
            f"spec.{ADVANTAGE}.function",
            ["not finite for group 2"],
        ),
        (["mine.py"], {"training.reward.function": "mine:score"}, None, None),
        (
            [],
            {"training.reward": {"functions": [COPY, {**COPY, "name": "b", "function": "nowhere:f"}]}},
            "spec.training.reward.functions[1].function",
            ["nowhere"],
        ),
        (
            [],
            {"training.reward": {"functions": [COPY, {**COPY, "name": "b", "arguments": {"x": 1}}]}},
            "spec.training.reward.functions[1].arguments.x",
            ["has no argument x"],
        ),
        (
            [],
            {"training.reward": {"functions": [COPY], "arguments": {"x": 1}}},
            "spec.training.reward.arguments.x",
            ["has no argument x"],
        ),
        ([], {"training.reward": {"functions": [COPY, {**COPY, "name": "b"}]}}, None, None),
        (
            ["good.jsonl"],
            {"training.data": {**GOOD_DATA, "rewardFields": ["answer", "levle"]}},
            "spec.training.data.rewardFields[1]",
            ['field "levle" is absent or null in each row; the rows have prompt, answer'],
        ),
        (["good.jsonl"], {"training.data": {**GOOD_DATA, "rewardFields": ["answer"]}}, None, None),
        (
            [],
            {"training.data": {"generated": {"task": "copy"}, "maxPromptTokens": 16, "rewardFields": ["a"]}},
            "spec.training.data.rewardFields[0]",
            ['data.generated: field "a" is absent or null in each of the first'],
        ),
        (
            ["good.jsonl"],
            mixed({**GOOD, "name": "b", "rewardFields": ["levle"]}),
            "spec.training.data.sources[1].rewardFields[0]",
            ['field "levle" is absent'],
        ),
    ],
)
def test_each_thing_is_named(tmp_path, files, changes, path, words):
    check_is_named(tmp_path, files, changes, path, words)
