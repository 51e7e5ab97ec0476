"""Several mistakes in what a manifest refers to: all are told in one run, none hides another, and what only
follows from one is not told."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from rljob_runtime.data.tokenizer import CharacterTokenizer
from rljob_runtime.manifest import reward_trial
from rljob_runtime.manifest.checks import check
from rljob_runtime.manifest.load import read
from tests.support.jobs import REMOVED, job
from tests.support.runtime.manifest_files import config, write_weights

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
GONE = {"training.model": {"path": "gone"}, "training.tokenizer": REMOVED}
MODEL = {"training.model": {"path": "model"}, "training.tokenizer": REMOVED}


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward_trial, "_SECONDS", 60.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Data, rewards, and a model's folder with a tokenizer."""
    rows = {
        "train": [{"prompt": "ab", "answer": "ab"}],
        "test": [{"prompt": "cd", "answer": "cd"}],
        "long": [{"prompt": "abcdefghabcdefgh"}],
    }
    for name, lines in rows.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    (tmp_path / "broken.jsonl").write_text("{\n")
    (tmp_path / "judge_of_several.py").write_text(
        "def wrong(sample): return match(sample)\ndef two(sample, *, scale=1, offset=0): return 1.0\n"
    )
    model(tmp_path / "model")
    return tmp_path


def model(folder: Path) -> None:
    CharacterTokenizer(LETTERS).save_pretrained(folder)
    described = json.loads(config("qwen3"))
    (folder / "config.json").write_text(json.dumps(described))
    write_weights(folder / "model.safetensors", described)


def data(path: str, **more: Any) -> dict[str, Any]:
    return {"jsonl": {"path": path}, "maxPromptTokens": 16, **more}


def sets(*paths: str) -> dict[str, Any]:
    return {"sets": [{"name": f"set{n}", "data": data(path)} for n, path in enumerate(paths)]}


MISTAKES: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "model, data, reward and an evaluation are not there": (
        {
            **GONE,
            "training.data": data("gone.jsonl"),
            "training.reward.function": "nowhere:f",
            "training.evaluation": sets("test.jsonl", "gone_too.jsonl"),
        },
        {
            "model.path": "no folder",
            "data.jsonl": "gone.jsonl: No such file",
            "reward.function": "no module nowhere",
            "evaluation.sets[1].data.jsonl": "gone_too.jsonl: No such file",
        },
    ),
    "no model, and data that are no JSON": (
        {**GONE, "training.data": data("broken.jsonl")},
        {"model.path": "no folder", "data.jsonl": "broken.jsonl:1: not valid JSON"},
    ),
    "no model, and fields that no row has": (
        {**GONE, "training.data": data("train.jsonl", answerField="anser", rewardFields=["levle", "lvel"])},
        {
            "model.path": "no folder",
            "data.answerField": 'no field "anser"',
            "data.rewardFields[0]": 'field "levle"',
            "data.rewardFields[1]": 'field "lvel"',
        },
    ),
    "no model, and an evaluation on what is trained": (
        {**GONE, "training.data": data("train.jsonl"), "training.evaluation": sets("train.jsonl")},
        {"model.path": "no folder", "evaluation.sets[0].data.jsonl": "1 of its prompts is among those"},
    ),
    "no tokenizer, no teacher, no data": (
        {
            "training.tokenizer": {"path": "gone"},
            "training.algorithm.distillation": {"teacher": {"path": "gone_too"}},
            "training.data": data("gone.jsonl"),
        },
        {
            "tokenizer": "no such folder",
            "algorithm.distillation.teacher.path": "no folder",
            "data.jsonl": "gone.jsonl: No such file",
        },
    ),
    "no tokenizer, and a teacher that is too small": (
        {
            "training.tokenizer": {"path": "gone"},
            "training.algorithm.distillation": {"teacher": {"path": "model"}},
            "training.rollout.maxResponseTokens": 100,
        },
        {
            "tokenizer": "no such folder",
            "algorithm.distillation.teacher.path": "takes samples of 64 tokens at most",
        },
    ),
    "no weights, and prompts that are too long for the data's own limit": (
        {"training.model": {"path": "weightless"}, "training.data": data("long.jsonl")},
        {"model.path": "no *.safetensors", "data.jsonl": "the prompt has 18 tokens"},
    ),
    "a tokenizer with other tokens, and no data": (
        {**MODEL, "training.tokenizer": {"characters": {"alphabet": LETTERS + LETTERS[:26].upper()}},
         "training.data": data("gone.jsonl")},
        {"tokenizer": "the tokenizer has 66 tokens", "data.jsonl": "gone.jsonl: No such file"},
    ),
    "no data, and a wrong evaluation": (
        {"training.data": data("gone.jsonl"), "training.evaluation": sets("long.jsonl")},
        {
            "data.jsonl": "gone.jsonl: No such file",
            "evaluation.sets[0].data.jsonl": "the prompt has 18 tokens",
        },
    ),
    "two sources": (
        {"training.data": {"sources": [{"name": "a", "jsonl": {"path": "gone.jsonl"}},
                                       {"name": "b", "jsonl": {"path": "broken.jsonl"}}]}},
        {"data.sources[0].jsonl": "gone.jsonl", "data.sources[1].jsonl": "broken.jsonl:1"},
    ),
    "prompts that are too long, without the field of the answers": (
        {"training.data": data("long.jsonl", answerField="solution")},
        {"data.jsonl": "the prompt has 18 tokens", "data.answerField": 'no field "solution"'},
    ),
    "an evaluation on what is trained, without a field": (
        {
            "training.data": data("train.jsonl"),
            "training.evaluation": {"sets": [{"name": "a", "data": data("train.jsonl", answerField="x")}]},
        },
        {
            "evaluation.sets[0].data.answerField": 'no field "x"',
            "evaluation.sets[0].data.jsonl": "1 of its prompts is among those",
        },
    ),
    "fields that the data name, and a set takes from them": (
        {
            "training.data": data("train.jsonl", promptField="q", rewardFields=["a", "b"], answerField="x"),
            "training.evaluation": sets("test.jsonl"),
            # It is not tried on the set, either.
            "training.reward.function": "judge_of_several:wrong",
        },
        {
            "data.jsonl": 'no field "q"',
            "data.answerField": 'no field "x"',
            "data.rewardFields[0]": 'field "a"',
            "data.rewardFields[1]": 'field "b"',
        },
    ),
    "fields that the data name, and a set of its own": (
        {
            "training.data": data("train.jsonl", rewardFields=["a"], answerField="x"),
            "training.evaluation": {
                "sets": [{"name": "s", "data": data("test.jsonl", rewardFields=["prompt", "b"])}]
            },
        },
        {
            "data.answerField": 'no field "x"',
            "data.rewardFields[0]": 'field "a"',
            "evaluation.sets[0].data.rewardFields[1]": 'field "b"',
        },
    ),
    "two arguments of a reward": (
        {"training.reward": {"function": "judge_of_several:two", "arguments": {"scael": 2, "ofset": 1}}},
        {
            "reward.arguments.scael": "Did you mean scale?",
            "reward.arguments.ofset": "Did you mean offset?",
        },
    ),
    "a reward that always fails, and a trace that is not there": (
        {
            "training.reward.function": "judge_of_several:wrong",
            "training.rollout.forcedLengths": "gone.jsonl",
        },
        {
            "reward.function": "fails for whatever response to the first 3 rows of the data: NameError",
            "rollout.forcedLengths": "gone.jsonl cannot be read",
        },
    ),
    "a reward that always fails, and no data": (
        {
            "training.reward.function": "judge_of_several:wrong",
            "training.data": data("gone.jsonl"),
            "training.evaluation": sets("test.jsonl", "gone_too.jsonl"),
        },
        {
            "data.jsonl": "gone.jsonl",
            "evaluation.sets[0].data": "the reward fails for whatever response to the first row of the eval",
            "evaluation.sets[1].data.jsonl": "gone_too.jsonl",
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES)
def test_all_of_them_are_told(folder: Path, case: str) -> None:
    changes, expected = MISTAKES[case]
    (folder / "weightless").mkdir()
    (folder / "weightless" / "config.json").write_text('{"model_type": "qwen3"}')
    (folder / "job.yaml").write_text(yaml.safe_dump(job(changes), sort_keys=False))
    found, _ = check(read(folder / "job.yaml"))
    told = dict(str(each.problem).removeprefix("spec.training.").split(": ", 1) for each in found)
    assert sorted(told) == sorted(expected)
    assert len(found) == len(expected), "each is told once"
    for field, words in expected.items():
        assert words in told[field]


@pytest.mark.parametrize(
    ("of", "field"),
    [
        ({"training.model": {"path": "bad"}}, "model.path"),
        (
            {**MODEL, "training.algorithm.distillation": {"teacher": {"path": "bad"}}},
            "algorithm.distillation.teacher.path",
        ),
    ],
)
def test_all_that_is_wrong_with_a_model_s_folder_is_told(
    folder: Path, of: dict[str, Any], field: str
) -> None:
    model(folder / "bad")
    unknown = {"model_type": "qwen33", "quantization_config": {"quant_method": "fp8"}}
    (folder / "bad" / "config.json").write_text(json.dumps(unknown))
    (folder / "bad" / "model.safetensors").write_bytes(b"cut")
    (folder / "job.yaml").write_text(yaml.safe_dump(job(of), sort_keys=False))
    found, _ = check(read(folder / "job.yaml"))
    told = [str(each.problem) for each in found]
    assert all(each.startswith(f"spec.training.{field}: ") for each in told)
    for words, each in zip(("cut short", "quantized weights", 'no model_type "qwen33"'), told, strict=True):
        assert words in each
