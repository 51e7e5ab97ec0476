"""A reward is tried in a process of its own before a job starts: what is told, and that nothing stays."""

import os
import time
from pathlib import Path

import pytest
import yaml

from rljob_runtime.manifest import reward_trial
from rljob_runtime.manifest.checks import check, check_job
from rljob_runtime.manifest.load import read
from rljob_runtime.rewards.calls import FunctionCall
from rljob_runtime.rewards.trial import try_reward
from tests.support.jobs import job
from tests.support.runtime.reward_inputs import reward_input

FUNCTIONS = """
import os, time
def right(sample): return 1.0
def wrong(sample): return match(sample)
def slow(sample): time.sleep(60)
def leaves(sample):
    print("noise")
    os._exit(3)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "judge_tried.py").write_text(FUNCTIONS)
    return tmp_path


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("right", None),
        ("wrong", "NameError: name 'match' is not defined (judge_tried.py:4, in wrong)"),
        ("leaves", "reward worker died (exit code 3)"),
    ],
)
def test_in_a_process_of_its_own(folder: Path, capfd: pytest.CaptureFixture[str], function: str,
                                 words: str | None) -> None:  # fmt: skip
    trial = try_reward([FunctionCall(f"judge_tried:{function}")], [folder], [[reward_input()] * 2], 60, None)
    assert {batch: each.words for batch, each in trial.found.items()} == ({} if words is None else {0: words})
    assert capfd.readouterr() == ("", ""), "what the function prints is not for whoever checks a manifest"


def test_one_that_takes_long_is_told_and_ends(folder: Path) -> None:
    before, began = children(), time.monotonic()
    trial = try_reward([FunctionCall("judge_tried:slow")], [folder], [[reward_input()]] * 2, 1.0, None)
    assert {batch: each.late for batch, each in trial.found.items()} == {0: True}
    assert time.monotonic() - began < 30
    assert children() <= before


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


PICKY = """
# each function is line by line as the messages say

def misspelt(sample):
    return len(sample.respose)

def picky(sample):
    if "}" not in sample.response:
        raise ValueError("no braces")
    return 1.0

def one_is_enough(sample):
    return 1.0 / (sample.response != "")

def unnamed(sample):
    return float(sample.fields["answer_too"])

def changing(sample):
    parts = {"level": sample.fields["level"]}
    if sample.response:
        parts["correct"] = 1.0
    return {"parts": parts}
"""


def test_a_reward_is_tried_on_the_first_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reward_trial, "_SECONDS", 60.0)
    (tmp_path / "good.jsonl").write_text('{"prompt": "ab", "answer": "ab", "level": 3}\n')
    manifest = tmp_path / "job.yaml"
    (tmp_path / "picky_reward.py").write_text(PICKY)
    told = {}
    for name in ("misspelt", "picky", "one_is_enough", "unnamed", "changing"):
        data = {"jsonl": {"path": "good.jsonl"}, "maxPromptTokens": 16, "rewardFields": ["level"]}
        changes = {
            "training.data": data,
            "training.reward.function": f"picky_reward:{name}",
        }
        manifest.write_text(yaml.safe_dump(job(changes), sort_keys=False))
        told[name] = [[str(each) for each in found] for found in check(read(manifest))]
    where = f"{manifest}:19  spec.training.reward.function:"
    assert told["misspelt"] == [
        [
            f"{where} fails for whatever response to the first row of the data: AttributeError: "
            "'RewardInput' object has no attribute 'respose' (picky_reward.py:5, in misspelt)."
        ],
        [],
    ]
    assert told["picky"] == [
        [],
        [
            f"{where} failed for each response that was tried on the first row of the data (the answer, the "
            "prompt's own text, no text): ValueError: no braces (picky_reward.py:9, in picky). Responses "
            "whose reward fails are not trained."
        ],
    ]
    assert told["one_is_enough"] == [[], []]
    ((), (hinted,)) = told["unnamed"]
    assert "KeyError: 'answer_too' (picky_reward.py:16, in unnamed)" in hinted
    assert "RewardInput.fields has those of data.rewardFields (now: level)" in hinted
    assert told["changing"] == [
        [
            f"{where} returns other parts or metrics from call to call, as correct, level for one response "
            "and level for another: return the same names each time, None for a metric that does not apply "
            "(tried on the first row of the data)."
        ],
        [],
    ]
    assert capsys.readouterr() == ("", "")


COMPARING = """
def equal(sample): return float(sample.response == sample.answer)
def within(sample): return float(sample.answer in sample.response)
def short(sample): return -float(len(sample.response))
"""
FORGOTTEN = (
    'training.data.answerField: the first 2 rows of the data have no field "answer": RewardInput.answer is '
    "None, and the reward is 0 for each response that was tried."
)
NOT_THERE = 'RewardInput.answer is None, since these rows have no "answer" (data.answerField).'


@pytest.mark.parametrize(
    ("function", "field", "words"),
    [
        ("equal", "answer", FORGOTTEN),
        ("within", "answer", NOT_THERE),
        ("short", "answer", None),
        ("equal", "solution", None),
        ("within", "solution", None),
    ],
)
def test_answers_whose_field_is_not_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, field: str, words: str | None
) -> None:
    monkeypatch.setattr(reward_trial, "_SECONDS", 60.0)
    (tmp_path / "rows.jsonl").write_text(
        '{"prompt": "ab", "solution": "ab"}\n{"prompt": "b", "solution": "a"}\n'
    )
    (tmp_path / "comparing.py").write_text(COMPARING)
    manifest = tmp_path / "job.yaml"
    changes = {
        "training.data": {"jsonl": {"path": "rows.jsonl"}, "maxPromptTokens": 16, "answerField": field},
        "training.reward.function": f"comparing:{function}",
    }
    manifest.write_text(yaml.safe_dump(job(changes), sort_keys=False))
    errors, warnings = check(read(manifest))
    assert errors == [] and len(warnings) == (words is not None)
    assert words is None or words in str(warnings[0])


HELD_OUT = """
import time

def by_level(sample):
    return float(sample.fields["level"])

def slow(sample):
    time.sleep(60)

def brief(sample):
    right, letters = sample.answer in sample.response, len(sample.response)
    return {"parts": {"right": float(right), "brief": -0.01 * letters}}

def a_text(sample):
    return {"reward": 1.0, "metrics": {"depth": "deep"}}

def leisurely(sample):
    time.sleep(2)
    return 1.0

def text(sample):
    return "1.0"

def nothing(sample):
    pass
"""


def told(folder: Path, function: str, held_out: dict[str, object]) -> list[list[str]]:
    (folder / "held_out_reward.py").write_text(HELD_OUT)
    (folder / "train.jsonl").write_text('{"prompt": "ab", "answer": "ab", "level": 3}\n')
    (folder / "test.jsonl").write_text('{"prompt": "cd", "answer": "cd", "level": 3}\n')
    changes = {
        "training.data": {
            "jsonl": {"path": "train.jsonl"}, "maxPromptTokens": 16, "rewardFields": ["level"]
        },
        "training.reward.function": f"held_out_reward:{function}",
        "training.evaluation": {
            "sets": [
                {"name": "same", "data": {"jsonl": {"path": "test.jsonl"}}},
                {"name": "bare", "data": {"jsonl": {"path": "test.jsonl"}, **held_out}},
            ]
        },
    }  # fmt: skip
    (folder / "job.yaml").write_text(yaml.safe_dump(job(changes), sort_keys=False))
    return [[str(each.problem) for each in found] for found in check(read(folder / "job.yaml"))]


def test_a_reward_is_tried_on_each_evaluation_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward_trial, "_SECONDS", 60.0)
    errors, warnings = told(tmp_path, "by_level", {"rewardFields": []})
    assert errors == []
    assert warnings == [
        "spec.training.evaluation.sets[1].data: the reward failed for each response that was tried on the "
        "first row of the evaluation set bare (the answer, the prompt's own text, no text): KeyError: 'level'"
        " (held_out_reward.py:5, in by_level). Responses whose reward fails count as not passed. A field of "
        "the data? RewardInput.fields has those of rewardFields of the set (now: none)."
    ]


@pytest.mark.parametrize(("function", "said"), [("text", "str '1.0'"), ("nothing", "None")])
def test_what_is_no_number_for_any_response_is_an_error_and_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, said: str
) -> None:
    monkeypatch.setattr(reward_trial, "_SECONDS", 60.0)
    (error,), warnings = told(tmp_path, function, {})
    assert error.startswith(
        "spec.training.reward.function: fails for whatever response to the first row of the data: "
        f"RewardFormError: returned {said}, not a number"
    )
    assert warnings == []


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("text", "RewardFormError: returned str, not a number"),
        ("by_level", "KeyError (held_out_reward.py:5, in by_level). Responses whose reward fails"),
    ],
)
def test_in_a_cluster_what_may_be_text_of_the_data_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, words: str
) -> None:
    monkeypatch.setattr(reward_trial, "_SECONDS", 60.0)
    told(tmp_path, function, {"rewardFields": []})
    loaded = read(tmp_path / "job.yaml")
    found = check_job(loaded.job, loaded.folder, quoting=False)
    (said,) = [str(problem) for problems in found for problem in problems]
    assert words in said and "1.0" not in said and "'level'" not in said


def test_a_trial_that_takes_too_long_is_told_with_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reward_trial, "_SECONDS", 3.0)
    errors, (warning,) = told(tmp_path, "slow", {})
    assert errors == []
    assert warning == (
        "spec.training.reward.function: did not end within the 3 s in which it is tried on the first row of "
        "the data: nothing is known of it. Where later calls are as slow, reward.timeoutSeconds (10) leaves "
        "their responses without a reward."
    )


def test_a_slow_reward_is_told_with_what_a_step_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where time is over before all responses are scored, as it is here: nine take 18 s."""
    monkeypatch.setattr(reward_trial, "_SECONDS", 15.0)
    errors, warnings = told(tmp_path, "leisurely", {})
    assert errors == []
    step, limit = warnings
    assert step.startswith(
        "spec.training.reward.workers: the reward took 2 s for a response when it was tried: with 1 worker "
        "the 32 responses of a step take 64 s to score. Set it to 3 for 21 s"
    )
    assert limit.startswith(
        "spec.training.reward.timeoutSeconds: is 10 s, and the reward took 2 s for a made-up response"
    )


def test_what_is_no_number_beside_the_reward_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reward_trial, "_SECONDS", 60.0)
    errors, (warning,) = told(tmp_path, "a_text", {})
    assert errors == []
    assert warning.startswith(
        "spec.training.reward.function: has no usable metrics.depth: returned str, not a number"
    )


def test_an_answer_that_would_not_pass_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward_trial, "_SECONDS", 60.0)
    errors, (warning,) = told(tmp_path, "brief", {})
    assert errors == []
    assert warning.startswith("spec.training.evaluation.passReward: is 1, and of the responses")
    assert "got 0.98: " in warning
