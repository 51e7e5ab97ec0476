"""Sets of training.evaluation that are refused before a job starts."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import yaml

from rljob_api import RLJob
from rljob_runtime.data.errors import DataError
from rljob_runtime.data.prompts import PromptSource
from rljob_runtime.data.tokenizer import build_tokenizer
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


def written(folder: Path, **files: list[str]) -> None:
    for name, prompts in files.items():
        rows = [json.dumps({"prompt": prompt, "answer": prompt}) + "\n" for prompt in prompts]
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
    )
    return tmp_path


def with_sets(folder: Path, *sets: dict[str, Any]) -> RLJob:
    named = [
        {"name": f"set{index}", "data": {"maxPromptTokens": 16, **data}} for index, data in enumerate(sets)
    ]
    document = job(
        {
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
