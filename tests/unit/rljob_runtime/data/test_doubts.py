"""Rows that can be used and may be wrong: what is told of them before a job starts."""

import json
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pytest
from pyarrow import parquet

from rljob_api.data import Data
from rljob_runtime.data.doubts import unread
from rljob_runtime.data.prompts import check_data
from rljob_runtime.data.sources import open_source
from rljob_runtime.data.tokenizer import CharacterTokenizer

TOKENIZER = CharacterTokenizer("ab")


def rows(folder: Path, *records: dict[str, Any]) -> None:
    (folder / "p.jsonl").write_text("\n".join(map(json.dumps, records)))


def doubts(folder: Path, answers_needed: bool = False, **data: Any) -> list[str]:
    parsed = Data.model_validate({"jsonl": {"path": "p.jsonl"}, **data})
    found = check_data(parsed, TOKENIZER, 0, folder, answers_needed)
    assert found.errors == []
    return [each.words.replace(f"{folder}/", "") for each in found.doubts]


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        (["1", 2], None),
        (
            ["1", None, "", " ", 0],
            "3 of 5 rows have no answer (null, or empty text); the first is p.jsonl:2.",
        ),
        ([""], "1 of 1 row has no answer (null, or empty text); the first is p.jsonl:1. math_answer fails"),
    ],
)
def test_rows_without_an_answer(tmp_path: Path, answers: list[Any], words: str | None) -> None:
    rows(tmp_path, *({"prompt": "a", "answer": answer} for answer in answers))
    found = doubts(tmp_path, answers_needed=True)
    assert [words in each for each in found] == ([True] if words else []), found
    assert doubts(tmp_path) == []


def test_of_large_data_the_rows_that_were_looked_at_are_counted(tmp_path: Path) -> None:
    rows(tmp_path, *({"prompt": "a", "answer": "1", "x": "x" * 17_000} for _ in range(1000)), {"prompt": "a"})
    assert doubts(tmp_path, answers_needed=True) == []
    rows(tmp_path, {"prompt": "a"}, *({"prompt": "a", "answer": "1", "x": "x" * 17_000} for _ in range(1000)))
    (found,) = doubts(tmp_path, answers_needed=True)
    assert found.startswith("1 of the first 1,000 rows has no answer")


CALLS = {"role": "assistant", "content": "a", "tool_calls": [{"id": 1}], "name": None}


@pytest.mark.parametrize("system", [None, "b"])
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_messages_with_more_than_role_and_content(tmp_path: Path, kind: str, system: str | None) -> None:
    plain, named = {"role": "user", "content": "b"}, {"role": "user", "content": "b", "name": "x"}
    records = [{"prompt": each} for each in ([plain], [named, CALLS], [CALLS])]
    path = tmp_path / f"p.{kind}"
    if kind == "jsonl":
        rows(tmp_path, *records)
    else:
        parquet.write_table(pyarrow.Table.from_pylist(records), path)
    parsed = Data.model_validate({kind: {"path": path.name}, "systemPrompt": system})
    (found,) = unread(open_source(parsed, tmp_path, 0, ""), whole=True)
    where = f"{path}:2" if kind == "jsonl" else f"{path} row 1"
    assert found.field is None
    assert found.words == (
        "2 of 3 rows have messages with more than role and content (tool_calls in 2, name in 1), which "
        f"prompts are made without; the first is {where}. Write into content what the model is to read"
    )


@pytest.mark.parametrize("prompt", ["a", [{"role": "user", "content": "a", "id": 4, "reasoning": ""}]])
def test_messages_of_role_and_content_alone(tmp_path: Path, prompt: Any) -> None:
    rows(tmp_path, {"prompt": prompt, "name": "x"})
    source = open_source(Data.model_validate({"jsonl": {"path": "p.jsonl"}}), tmp_path, 0, "")
    assert list(unread(source, whole=True)) == []


def test_messages_are_looked_at_without_a_tokenizer(tmp_path: Path) -> None:
    rows(tmp_path, {"prompt": [CALLS]})
    data = Data.model_validate({"jsonl": {"path": "p.jsonl"}})
    (found,) = check_data(data, None, 0, tmp_path).doubts
    assert "(tool_calls in 1)" in found.words


@pytest.mark.parametrize(
    ("folder", "given", "words"),
    [
        ("one", {}, None),
        ("one", {"split": "train"}, None),
        (
            "one",
            {"split": "test"},
            "split is test, and ? was saved as one data set, without splits: all of its",
        ),
        ("one", {"split": "train[:90%]"}, "split is train[:90%], and ? was saved as one data set, without"),
        ("part", {"split": "test"}, None),
        ("part", {"split": "dev"}, "split is dev, and ? was saved as one data set"),
        ("several", {"split": "test"}, None),
        (
            "several",
            {"split": "test", "config": "main"},
            "config is main, and ? is a folder that save_to_disk",
        ),
        ("files", {"split": "test"}, None),
    ],
)
def test_fields_that_change_nothing_of_a_saved_folder(
    tmp_path: Path, folder: str, given: dict[str, Any], words: str | None
) -> None:
    one = datasets.Dataset.from_list([{"prompt": "a"}])
    part = datasets.Dataset.from_list([{"prompt": "a"}], split=datasets.NamedSplit("test"))
    kinds = {"one": one, "part": part, "several": datasets.DatasetDict({"train": one, "test": one})}
    if folder in kinds:
        kinds[folder].save_to_disk(tmp_path / folder)
    else:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "test.jsonl").write_text('{"prompt": "a"}')
    data = Data.model_validate({"huggingFace": {"name": folder, **given}})
    checked = check_data(data, TOKENIZER, 0, tmp_path)
    assert checked.errors == []
    said = [each.words.replace(str(tmp_path / folder), "?") for each in checked.doubts]
    assert [each.startswith(words or "-") for each in said] == ([True] if words else []), said
