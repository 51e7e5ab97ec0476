"""Sets of training.evaluation that are refused before a job starts."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import yaml

from rljob_api import RLJob
from rljob_api.data import JsonlData
from rljob_api.errors import python_names
from rljob_runtime.data.errors import DataError
from rljob_runtime.data.prompts import PromptSource
from rljob_runtime.data.tokenizer import CharacterTokenizer, build_tokenizer
from rljob_runtime.driver.held_out import held_out_sets
from rljob_runtime.manifest.checks import check
from rljob_runtime.manifest.load import read
from tests.support.jobs import job

REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "empty": ({"jsonl": {"path": "empty.jsonl"}}, "jsonl", "no prompts in it"),
    "not there": ({"jsonl": {"path": "tset.jsonl"}}, "jsonl", "tset.jsonl"),
    "trained": (
        {"jsonl": {"path": "both.jsonl"}},
        "jsonl",
        "1 of its prompts is among those that are trained (training.data), of 2 different ones; the first: ",
    ),
    "trained, with another system prompt": (
        {"jsonl": {"path": "both.jsonl"}, "systemPrompt": "hh"},
        "jsonl",
        "1 of its prompts is among those that are trained (training.data), of 2 different ones; the first: ",
    ),
    "trained, as a message": (
        {"jsonl": {"path": "chats.jsonl"}},
        "jsonl",
        "1 of its prompts is among those that are trained (training.data), of 2 different ones; the first: ",
    ),
    "too long": ({"jsonl": {"path": "long.jsonl"}}, "jsonl", "above data.maxPromptTokens"),
    "a misspelt answer": (
        {"jsonl": {"path": "test.jsonl"}, "answerField": "anwser"},
        "answerField",
        "Did you mean answer?",
    ),
    "a misspelt field": (
        {"jsonl": {"path": "test.jsonl"}, "rewardFields": ["answre"]},
        "rewardFields[0]",
        "Did you mean answer?",
    ),
}


def written(folder: Path, **files: list[Any]) -> None:
    for name, prompts in files.items():
        rows = [json.dumps({"prompt": prompt, "answer": "ab"}) + "\n" for prompt in prompts]
        (folder / f"{name}.jsonl").write_text("".join(rows))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    written(
        tmp_path,
        train=["ab", "cd"],
        test=["ef", "gh"],
        both=["ef", "cd"],
        long=["abcdefghabcdefgh"],
        empty=[],
        chats=[[{"role": "user", "content": text}] for text in ("ef", "ab")],
    )
    CharacterTokenizer("abcdefgh").save_pretrained(tmp_path / "letters")
    config = tmp_path / "letters" / "tokenizer_config.json"
    template = "{% for message in messages %}g{{ message.content }}{% endfor %}"
    config.write_text(json.dumps({**json.loads(config.read_text()), "chat_template": template}))
    return tmp_path


def with_sets(folder: Path, *sets: dict[str, Any]) -> RLJob:
    named = [
        {"name": f"set{index}", "data": {"maxPromptTokens": 16, **data}} for index, data in enumerate(sets)
    ]
    document = job(
        {
            "training.tokenizer": {"path": "letters"},
            "training.data": {"jsonl": {"path": "train.jsonl"}, "maxPromptTokens": 16},
            "training.evaluation": {"sets": named},
        }
    )
    (folder / "job.yaml").write_text(yaml.safe_dump(document))
    return RLJob.model_validate(document)


GOOD = {"jsonl": {"path": "test.jsonl"}}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_by_the_check_and_by_the_job(folder: Path, case: str) -> None:
    data, field, words = REFUSED[case]
    document = with_sets(folder, GOOD, data)
    (problem,), _ = check(read(folder / "job.yaml"))
    assert f"spec.training.evaluation.sets[1].data.{field}: " in str(problem)
    assert words in str(problem)
    training = document.spec.training
    tokenizer = build_tokenizer(training.tokenizer, folder, None)
    trained = PromptSource(training.data, tokenizer, training.seed, folder)
    with pytest.raises(DataError, match=r"^training\.evaluation\.sets\[1\] \(set1\): "):
        held_out_sets(training, trained, tokenizer, folder)


def test_what_a_row_itself_says_to_the_system_tells_prompts_apart(folder: Path) -> None:
    system = {"role": "system", "content": "hh"}
    written(folder, instructed=[[system, {"role": "user", "content": "ab"}]])
    with_sets(folder, {"jsonl": {"path": "instructed.jsonl"}})
    assert check(read(folder / "job.yaml")) == ([], [])


def test_generated_prompts_are_others_than_those_that_are_trained(folder: Path) -> None:
    generated = {"generated": {"task": "copy", "rows": 64, "minLength": 8, "maxLength": 8}}
    document = with_sets(folder, GOOD, generated, generated)
    assert check(read(folder / "job.yaml")) == ([], [])
    training = document.spec.training
    tokenizer = build_tokenizer(training.tokenizer, folder, None)
    trained = PromptSource(training.data, tokenizer, training.seed, folder)
    first, second, third = held_out_sets(training, trained, tokenizer, folder)
    assert [each.name for each in (first, second, third)] == ["set0", "set1", "set2"]
    assert [first.prompt(number).text for number in range(first.rows)] == ["ef", "gh"]
    texts = [{each.prompt(number).text for number in range(64)} for each in (second, third)]
    assert not texts[0] & texts[1]


def test_prompts_are_compared_with_all_that_a_task_makes(folder: Path) -> None:
    generated = {"task": "copy", "rows": 5000, "minLength": 6, "maxLength": 6}
    document = job({"training.data": {"generated": generated, "maxPromptTokens": 16}})
    training = RLJob.model_validate(document).spec.training
    tokenizer = build_tokenizer(training.tokenizer, folder, None)
    trained = PromptSource(training.data, tokenizer, training.seed, folder)
    late = next(islice(trained.texts(), 4000, None)).text
    (folder / "late.jsonl").write_text(json.dumps({"prompt": late}))
    document["spec"]["training"]["evaluation"] = {
        "sets": [{"name": "late", "data": {"jsonl": {"path": "late.jsonl"}, "maxPromptTokens": 16}}]
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(document))
    (problem,), _ = check(read(folder / "job.yaml"))
    assert "1 of its prompts is among those that are trained" in str(problem)


def inheriting(folder: Path, training: dict[str, Any], held_out: dict[str, Any]) -> dict[str, Any]:
    """Rows with a question, a solution and a level, which training.data names."""
    rows = {"train": ["ab", "cd"], "test": ["ef", "gh"]}
    for name, prompts in rows.items():
        lines = [json.dumps({"q": each, "solution": each, "level": 3}) + "\n" for each in prompts]
        (folder / f"{name}.jsonl").write_text("".join(lines))
    return job(
        {
            "training.data": {
                "jsonl": {"path": "train.jsonl"}, "promptField": "q", "answerField": "solution",
                "rewardFields": ["level"], "maxPromptTokens": 16, **training,
            },
            "training.evaluation": {"sets": [{"name": "x", "data": {**GOOD, **held_out}}]},
        }
    )  # fmt: skip


def test_a_set_takes_what_it_does_not_set_from_the_data(tmp_path: Path) -> None:
    document = inheriting(tmp_path, {}, {})
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(document))
    assert check(read(tmp_path / "job.yaml")) == ([], [])
    training = RLJob.model_validate(document).spec.training
    tokenizer = build_tokenizer(training.tokenizer, tmp_path, None)
    trained = PromptSource(training.data, tokenizer, training.seed, tmp_path)
    (found,) = held_out_sets(training, trained, tokenizer, tmp_path)
    prompt = found.prompt(0)
    assert (prompt.text, prompt.answer, prompt.fields) == ("ef", "ef", {"level": 3})


@pytest.mark.parametrize(
    ("training", "held_out", "field", "expected"),
    [
        ({"systemPrompt": "Think."}, {}, "system_prompt", "Think."),
        ({"systemPrompt": "Think."}, {"systemPrompt": "Be brief."}, "system_prompt", "Be brief."),
        ({"systemPrompt": "Think."}, {"systemPrompt": ""}, "system_prompt", None),
        ({}, {}, "system_prompt", None),
        ({}, {"rewardFields": []}, "reward_fields", []),
        ({}, {"maxPromptTokens": 8}, "max_prompt_tokens", 8),
        ({"maxPromptTokens": 12}, {}, "max_prompt_tokens", 12),
        ({}, {"answerField": "answer"}, "answer_field", "answer"),
        ({"longPrompts": "skip"}, {}, "long_prompts", "error"),
    ],
)
def test_what_a_set_has(
    tmp_path: Path, training: dict[str, Any], held_out: dict[str, Any], field: str, expected: object
) -> None:
    parsed = RLJob.model_validate(inheriting(tmp_path, training, held_out)).spec.training
    (data,) = parsed.held_out
    assert getattr(data, field) == expected


@pytest.mark.parametrize(
    ("training", "row", "words"),
    [
        (
            {},
            {"q": "ef", "solution": "ef"},
            'field "level" is absent or null in each row; the rows have q, solution '
            "(training.data.rewardFields, as the set has none: set its own, or [] for none)",
        ),
        (
            {},
            {"q": "ef", "level": 3},
            'no field "solution" in any row; the rows have q, level (training.data.answerField, as the set '
            "has none: set one of its own)",
        ),
    ],
)
def test_what_the_data_name_and_a_set_lacks_is_told_at_the_set(
    tmp_path: Path, training: dict[str, Any], row: dict[str, Any], words: str
) -> None:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(inheriting(tmp_path, training, {})))
    (tmp_path / "test.jsonl").write_text(json.dumps(row))
    (problem,), _ = check(read(tmp_path / "job.yaml"))
    assert "spec.training.evaluation.sets[0].data: " in str(problem)
    assert words in str(problem)


@pytest.mark.parametrize("system_prompt", [None, "Think."])
def test_a_stored_set_means_what_it_meant_but_for_the_system_prompt(
    tmp_path: Path, system_prompt: str | None
) -> None:
    """The last release's definition wrote its defaults into each set; a system prompt has none, and is that
    of training (docs/compatibility.md)."""
    written = {"promptField": "prompt", "answerField": "answer", "rewardFields": [], "maxPromptTokens": 1024}
    trained = {"maxPromptTokens": 1500, **({"systemPrompt": system_prompt} if system_prompt else {})}
    stored = inheriting(tmp_path, trained, {**written, "longPrompts": "error"})
    (data,) = RLJob.model_validate(stored).spec.training.held_out
    assert {name: getattr(data, python) for name, python in python_names(type(data)).items()} == {
        **written, "longPrompts": "error", "systemPrompt": system_prompt,
        "jsonl": JsonlData(path="test.jsonl"), "parquet": None, "huggingFace": None, "generated": None,
    }  # fmt: skip
