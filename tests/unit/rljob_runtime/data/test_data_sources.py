"""Prompts from several sources: their order, their fields, what identifies them, and what is refused."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet
from pydantic import ValidationError

from rljob_api.data import Data, PromptData
from rljob_runtime.data.errors import DataError, RewardFieldMissing
from rljob_runtime.data.fingerprint import difference
from rljob_runtime.data.prompts import Epoch, PromptSource, check_data, first_prompts
from rljob_runtime.data.tokenizer import CharacterTokenizer, FolderTokenizer

TOKENIZER = CharacterTokenizer("abcdefgh")
MATH = {"name": "math", "jsonl": {"path": "math.jsonl"}}
CODE = {"name": "code", "parquet": {"path": "code.parquet"}, "promptField": "task", "rewardFields": ["tests"]}
WEIGHTED = [{**MATH, "weight": 3.0}, {**CODE, "weight": 1.0}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """6 rows of math, the last of which is long, and 4 of code."""
    rows = [{"prompt": "a" * n, "answer": "b"} for n in (1, 2, 3, 4, 5, 7)]
    (tmp_path / "math.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = {"task": ["c" * n for n in (1, 2, 3, 4)], "tests": [["x"], [], ["y"], None]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "code.parquet")
    return tmp_path


def data(*sources: dict[str, Any], **others: Any) -> Data:
    return Data.model_validate({"sources": list(sources), **others})


def test_each_prompt_once_an_epoch_with_its_source_and_fields(folder: Path) -> None:
    mixed = data(MATH, CODE)
    source = PromptSource(mixed, TOKENIZER, 5, folder)
    assert check_data(mixed, TOKENIZER, 5, folder).epoch == Epoch(10, source.fingerprint)
    for epoch in range(2):
        prompts = [source.prompt(uid) for uid in range(10 * epoch, 10 * epoch + 10)]
        assert sorted(prompt.row for prompt in prompts) == list(range(10))
        assert {prompt.epoch for prompt in prompts} == {epoch}
        for prompt in prompts:
            assert prompt.source == ("math" if prompt.row < 6 else "code") == source.source_of(prompt.row)
            assert prompt.answer == ("b" if prompt.source == "math" else None)
            assert set(prompt.fields) == (set() if prompt.source == "math" else {"tests"})
            assert prompt.row == source.row(prompt.uid)


def test_weights_are_shares(folder: Path) -> None:
    source = PromptSource(data(*WEIGHTED), TOKENIZER, 5, folder)
    assert source.rows == 10
    # Of 10: 7.5 and 2.5; equal remainders, and the first gets what is left.
    found = Counter(source.prompt(uid).source for uid in range(40))
    assert found == {"math": 32, "code": 8}
    code = [source.prompt(uid).row for uid in range(80) if source.prompt(uid).source == "code"]
    assert sorted(code[:4]) == sorted(code[4:8]) == [6, 7, 8, 9]


def test_any_uid_without_the_ones_before_and_at_another_place(folder: Path) -> None:
    source, fresh = (PromptSource(data(*WEIGHTED), TOKENIZER, 5, folder) for _ in range(2))
    expected = [source.prompt(uid).text for uid in range(60)]
    assert [fresh.prompt(uid).text for uid in reversed(range(60))] == expected[::-1]
    moved = fresh.prompt(7, position=33)
    assert (moved.uid, moved.text, moved.epoch) == (7, expected[33], 3)


def test_in_order_without_shuffle(folder: Path) -> None:
    source = PromptSource(data(MATH, CODE, shuffle=False), TOKENIZER, 5, folder)
    texts = [source.prompt(uid).text for uid in range(10)]
    assert [text for text in texts if "a" in text] == ["a" * n for n in (1, 2, 3, 4, 5, 7)]
    assert [text for text in texts if "c" in text] == ["c" * n for n in (1, 2, 3, 4)]


def test_sources_of_one_size_come_in_different_orders(tmp_path: Path) -> None:
    for name in ("x", "y"):
        (tmp_path / f"{name}.jsonl").write_text("".join(f'{{"prompt": "{"a" * n}"}}\n' for n in range(1, 9)))
    two = data(*({"name": name, "jsonl": {"path": f"{name}.jsonl"}} for name in ("x", "y")))
    source = PromptSource(two, TOKENIZER, 0, tmp_path)
    orders = {"x": [], "y": []}  # type: dict[str, list[int]]
    for uid in range(16):
        prompt = source.prompt(uid)
        orders[prompt.source].append(len(prompt.text))
    assert orders["x"] != orders["y"]


def test_long_prompts_are_left_out_of_their_source(folder: Path) -> None:
    source = PromptSource(data(MATH, CODE, maxPromptTokens=8, longPrompts="skip"), TOKENIZER, 5, folder)
    assert (source.rows, source.skipped) == (9, 1)
    assert sorted(source.prompt(uid).row for uid in range(9)) == [0, 1, 2, 3, 4, 6, 7, 8, 9]


CHANGES: dict[str, tuple[list[dict[str, Any]], str | None]] = {
    "nothing": (WEIGHTED, None),
    "the same shares by other numbers": ([{**MATH, "weight": 6.0}, {**CODE, "weight": 2.0}], None),
    "a weight": (
        [{**MATH, "weight": 1.0}, {**CODE, "weight": 1.0}],
        "come shuffled with seed 5, 5 + 5 of the sources in an epoch, and came shuffled with seed 5, 8 + 2 "
        "of the sources in an epoch when the run began: set training.seed, data.shuffle and data.sources",
    ),
    "the order of the sources": (WEIGHTED[::-1], "(other content in its 10 rows)"),
    "one of them": ([MATH], "(10 rows then, 6 now)"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changes_that_stop_a_resume(folder: Path, change: str) -> None:
    sources, expected = CHANGES[change]
    before = PromptSource(data(*WEIGHTED), TOKENIZER, 5, folder).fingerprint
    why = difference(before, PromptSource(data(*sources), TOKENIZER, 5, folder).fingerprint)
    assert why is None if expected is None else why is not None and expected in why


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ([MATH, {**CODE, "name": "math"}], "sources must have different names"),
        ([{**MATH, "weight": 1.0}, CODE], "sources must all have a weight, or none of them"),
        ([], "at least 1 item"),
        ([{"name": "math"}], "set exactly one of jsonl, parquet, huggingFace, generated"),
        ([{**MATH, "weight": 0.0}], "greater than 0"),
    ],
)
def test_refused_sources(sources: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        data(*sources)


def test_errors_name_the_source(folder: Path) -> None:
    wrong = {**CODE, "rewardFields": ["testz"]}
    (missing,) = check_data(data(MATH, wrong), TOKENIZER, 0, folder).errors
    assert isinstance(missing, RewardFieldMissing)
    assert (missing.source, missing.index, missing.near) == (1, 0, "tests")
    with pytest.raises(DataError, match=r"gone\.jsonl") as gone:
        PromptSource(data({"name": "m", "jsonl": {"path": "gone.jsonl"}}, CODE), TOKENIZER, 0, folder)
    assert gone.value.source == 0
    alone = PromptData.model_validate({"jsonl": {"path": "gone.jsonl"}})
    with pytest.raises(DataError) as other:
        PromptSource(alone, TOKENIZER, 0, folder)
    assert other.value.source is None


def test_first_prompts_are_of_every_source(folder: Path) -> None:
    found = first_prompts(data(MATH, CODE), TOKENIZER, 0, folder, 2)
    assert [(prompt.source, prompt.text) for prompt in found] == [
        ("math", "a"), ("math", "aa"), ("code", "c"), ("code", "cc"),
    ]  # fmt: skip


def chat_tokenizer(folder: Path, template: str) -> FolderTokenizer:
    """A tokenizer of letters with a chat template."""
    CharacterTokenizer("abcdefgh[]").save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": template}))
    return FolderTokenizer(folder)


ROLES = "{% for m in messages %}[{{ m.role[0] }}]{{ m.content }}{% endfor %}"


def test_a_system_prompt_is_put_in_by_the_template(folder: Path) -> None:
    # The template's letters: s and u are not in the alphabet.
    tokenizer = chat_tokenizer(folder, ROLES.replace("m.role[0]", "{'system': 'a', 'user': 'b'}[m.role]"))
    mixed = data(MATH, {**CODE, "systemPrompt": "gg"}, systemPrompt="hh", shuffle=False)
    source = PromptSource(mixed, tokenizer, 0, folder)
    texts = {source.prompt(uid).text for uid in range(10)}
    assert "[a]hh[b]aaa" in texts and "[a]gg[b]ccc" in texts
    plain = PromptSource(data(MATH, CODE, shuffle=False), tokenizer, 0, folder)
    assert "aaa" in {plain.prompt(uid).text for uid in range(10)}
    why = difference(plain.fingerprint, source.fingerprint)
    assert why is not None and "other content" in why


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "math.jsonl:1: the character tokenizer has no chat template, which .* data.systemPrompt"),
        ("{{ messages[-1].content }}", "chat template leaves data.systemPrompt out"),
        ("{{ raise_exception('no system role') }}", "the chat template refuses the messages: no system role"),
    ],
)
def test_templates_that_cannot_have_a_system_prompt(folder: Path, template: str | None, message: str) -> None:
    tokenizer = TOKENIZER if template is None else chat_tokenizer(folder, template)
    with pytest.raises(DataError, match=message):
        PromptSource(data(MATH, systemPrompt="hh"), tokenizer, 0, folder)


def test_two_system_messages_are_refused(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]
    (tmp_path / "math.jsonl").write_text('{"prompt": "a"}\n' + json.dumps({"prompt": chat}) + "\n")
    with pytest.raises(DataError, match=r"math\.jsonl:2: the prompt begins with a system message, and"):
        PromptSource(data(MATH, systemPrompt="hh"), chat_tokenizer(tmp_path, ROLES), 0, tmp_path)
