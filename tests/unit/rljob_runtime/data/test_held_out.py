"""Prompts of an evaluation that are among those that are trained."""

import json
from pathlib import Path

import pytest

from rljob_api.data import Data, PromptData
from rljob_runtime.data.held_out import trained_prompts
from rljob_runtime.data.prompts import PromptSource, some_texts
from rljob_runtime.data.rows import Row, field_names, to_row
from rljob_runtime.data.sources import SystemPrompted
from rljob_runtime.data.tokenizer import CharacterTokenizer
from rljob_runtime.data.usable import PlacedText
from rljob_runtime.data.usable import placed as placed_row

TOKENIZER = CharacterTokenizer("abcdefgh")


def placed(name: str, *texts: str) -> list[PlacedText]:
    return [PlacedText(f"{name}:{number}", text, text) for number, text in enumerate(texts, start=1)]


class Rows:
    """A source of one row."""

    name = "x"

    def __init__(self, row: Row) -> None:
        self._row = row

    def __len__(self) -> int:
        return 1

    def row(self, index: int) -> Row:
        return self._row

    def left_out(self, index: int) -> list[str]:
        return []

    def where(self, index: int) -> str:
        return "x:1"

    def fields(self) -> list[str]:
        return ["prompt"]


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
    found = trained_prompts(sets, placed("train", "a", "b", "c", "b"))
    assert list(found) == [1]
    assert found[1].startswith(message)
    place = held_out.index("b") + 1
    assert f"the first: test:{place} is also train:2. Evaluate on others" in found[1]


THINK = {"role": "system", "content": "Think. "}


@pytest.mark.parametrize(
    ("prompt", "system_prompt", "trained"),
    [
        ("ab", None, True),
        (" ab\n", None, True),
        ("ab", "Think.", True),
        ("ab", "Be brief.", True),
        ([{"role": "user", "content": "ab "}], None, True),
        ([THINK, {"role": "user", "content": "ab"}], None, True),
        ([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "ab"}], None, False),
        ([{"role": "user", "content": "ab"}, {"role": "assistant", "content": "c"}], None, False),
        ("b", "Think.", False),
    ],
)
def test_whatever_system_prompt_is_before_it_a_prompt_is_the_same(
    prompt: object, system_prompt: str | None, trained: bool
) -> None:
    def one(prompt: object, system_prompt: str | None) -> list[PlacedText]:
        data = PromptData.model_validate({"jsonl": {"path": "x"}, "systemPrompt": system_prompt})
        rows = Rows(to_row({"prompt": prompt}, field_names(data), "x:1"))
        source = rows if system_prompt is None else SystemPrompted(rows, system_prompt)
        return [placed_row(source, data, 0)]

    ours, theirs = one(prompt, system_prompt), one("ab", "Think.")
    assert (trained_prompts([ours], theirs) != {}) == trained
    assert (trained_prompts([theirs], ours) != {}) == trained


def test_texts_are_those_of_the_rows_that_are_used(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text(
        "".join(json.dumps({"prompt": text}) + "\n" for text in ("ab", "abcdef", "c"))
    )
    data = {"jsonl": {"path": "p.jsonl"}, "maxPromptTokens": 4, "longPrompts": "skip"}
    source = PromptSource(Data.model_validate(data), TOKENIZER, 0, tmp_path)
    assert [text.text for text in source.texts()] == ["ab", "c"]
    assert [text.where.rpartition(":")[2] for text in source.texts()] == ["1", "3"]
    looked_at = some_texts(PromptData.model_validate(data), TOKENIZER.letters, 0, tmp_path)
    assert [text.text for text in looked_at] == ["ab", "abcdef", "c"]
