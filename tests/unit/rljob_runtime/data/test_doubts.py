"""Rows that can be used and may be wrong: what is told of them before a job starts."""

import json
from pathlib import Path
from typing import Any

import pytest

from rljob_api.data import Data
from rljob_runtime.data.prompts import check_data
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
