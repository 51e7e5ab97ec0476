"""Prompts of an evaluation that are among those that are trained."""

import json
from pathlib import Path

import pytest

from rljob_api.data import Data, PromptData
from rljob_runtime.data.held_out import trained_prompts
from rljob_runtime.data.prompts import PlacedText, PromptSource, some_texts
from rljob_runtime.data.tokenizer import CharacterTokenizer

TOKENIZER = CharacterTokenizer("abcdefgh")


def placed(name: str, *texts: str) -> list[PlacedText]:
    return [PlacedText(f"{name}:{number}", text) for number, text in enumerate(texts, start=1)]


def test_different_prompts_are_held_out() -> None:
    assert trained_prompts([placed("test", "a", "b"), []], placed("train", "c", "a b", "A")) == {}


@pytest.mark.parametrize(
    ("held_out", "message"),
    [
        (
            ["x", "b"],
            "1 of its prompts is among those that are trained (training.data), of 2 different ones; ",
        ),
        (
            ["b", "b"],
            "1 of its prompts is among those that are trained (training.data), of 1 different ones; ",
        ),
        (
            ["c", "b", "x"],
            "2 of its prompts are among those that are trained (training.data), of 3 different",
        ),
    ],
)
def test_the_same_prompts_are_refused(held_out: list[str], message: str) -> None:
    sets = [placed("other", "y"), placed("test", *held_out)]
    found = trained_prompts(sets, placed("train", "a", " b\n", "c", "b"))
    assert list(found) == [1]
    assert found[1].startswith(message)
    place = held_out.index("b") + 1
    assert f"the first: test:{place} is also train:2. Evaluate on others" in found[1]


def test_texts_are_those_of_the_rows_that_are_used(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text(
        "".join(json.dumps({"prompt": text}) + "\n" for text in ("ab", "abcdef", "c"))
    )
    data = {"jsonl": {"path": "p.jsonl"}, "maxPromptTokens": 4, "longPrompts": "skip"}
    source = PromptSource(Data.model_validate(data), TOKENIZER, 0, tmp_path)
    assert [text.text for text in source.texts()] == ["ab", "c"]
    assert [text.where.rpartition(":")[2] for text in source.texts()] == ["1", "3"]
    looked_at = some_texts(PromptData.model_validate(data), TOKENIZER, 0, tmp_path)
    assert [text.text for text in looked_at] == ["ab", "abcdef", "c"]
