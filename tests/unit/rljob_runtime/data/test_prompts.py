"""The sequence of prompts: order, length limit, checks before the start."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from rljob_api.data import Data
from rljob_runtime.data.errors import AnswersMissing, DataError, PromptMissing, RewardFieldMissing
from rljob_runtime.data.prompts import CheckedData, Epoch, PromptSource, check_data, generated_fingerprint
from rljob_runtime.data.shuffle import mix, mix_many, permutation
from rljob_runtime.data.tokenizer import CharacterTokenizer, FolderTokenizer
from rljob_runtime.samples import Tokens

TOKENIZER = CharacterTokenizer("abcdefgh")


def prompts(folder: Path, lines: list[str], seed: int = 0, **data: Any) -> PromptSource:
    (folder / "p.jsonl").write_text("".join(f'{{"prompt": "{line}"}}\n' for line in lines))
    parsed = Data.model_validate({"jsonl": {"path": "p.jsonl"}, **data})
    found = check_data(parsed, TOKENIZER, seed, folder)
    source = PromptSource(parsed, TOKENIZER, seed, folder)
    assert found == CheckedData([], Epoch(source.rows, source.fingerprint))
    return source


def test_file_order_without_shuffle(tmp_path: Path) -> None:
    source = prompts(tmp_path, ["a", "b", "c"], shuffle=False)
    seen = [source.prompt(uid) for uid in range(7)]
    assert [(p.uid, p.epoch, p.row, p.text) for p in seen] == [
        (0, 0, 0, "a"), (1, 0, 1, "b"), (2, 0, 2, "c"),
        (3, 1, 0, "a"), (4, 1, 1, "b"), (5, 1, 2, "c"), (6, 2, 0, "a"),
    ]  # fmt: skip
    assert seen[1].tokens.tolist() == [1, 5, 3]
    assert seen[1].tokens.dtype == np.int32


def test_shuffled_epochs_differ_and_depend_on_the_seed(tmp_path: Path) -> None:
    lines = ["a" * n for n in range(1, 33)]
    first, again, other = (prompts(tmp_path, lines, seed=seed) for seed in (1, 1, 2))
    orders = [[source.prompt(uid).row for uid in range(64)] for source in (first, again, other)]
    assert orders[0] == orders[1] != orders[2]
    assert orders[0][:32] != orders[0][32:]
    assert sorted(orders[0][:32]) == sorted(orders[0][32:]) == list(range(32))


def test_any_uid_without_the_ones_before(tmp_path: Path) -> None:
    source, fresh = (prompts(tmp_path, list("abcdefgh")) for _ in range(2))
    expected = [source.prompt(uid).row for uid in range(80)]
    assert [fresh.prompt(uid).row for uid in reversed(range(80))] == expected[::-1]


def test_long_prompt_is_an_error_with_its_line(tmp_path: Path) -> None:
    message = (
        r"p.jsonl:2: the prompt has 6 tokens, above data.maxPromptTokens \(5\); 2 of 4 rows are too long"
    )
    with pytest.raises(DataError, match=message):
        prompts(tmp_path, ["abc", "abcd", "a", "abcde"], maxPromptTokens=5)


def test_long_prompts_are_skipped_and_counted(tmp_path: Path) -> None:
    source = prompts(tmp_path, ["abc", "abcd", "a", "abcde"], maxPromptTokens=5, longPrompts="skip")
    assert (source.rows, source.skipped) == (2, 2)
    assert sorted(source.prompt(uid).row for uid in range(2)) == [0, 2]


@pytest.mark.parametrize(
    ("lines", "data", "message"),
    [
        ([], {}, r"p.jsonl: no prompts in it"),
        (["abc", "abcd"], {"longPrompts": "skip", "maxPromptTokens": 4}, r"all 2 prompts .* has 5 tokens"),
        (["ab", "axb"], {}, r"p.jsonl:2: character 'x' at position 1 is not in the tokenizer's alphabet"),
    ],
)  # fmt: skip
def test_unusable_data(tmp_path: Path, lines: list[str], data: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        prompts(tmp_path, lines, **data)


def test_chat_needs_a_template(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "a"}\n{"prompt": [{"role": "user", "content": "a"}]}\n')
    with pytest.raises(DataError, match=r"p.jsonl:2: the character tokenizer has no chat template"):
        PromptSource(Data.model_validate({"jsonl": {"path": "p.jsonl"}}), TOKENIZER, 0, tmp_path)


class BareTokenizer(CharacterTokenizer):
    """Puts nothing around the text, and knows no spaces."""

    def encode(self, text: str, *, rendered: bool = False) -> Tokens:
        return super().encode(text.replace(" ", ""), rendered=True)


@pytest.mark.parametrize("long_prompts", ["error", "skip"])
def test_a_prompt_without_tokens_is_named(tmp_path: Path, long_prompts: str) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "ab"}\n{"prompt": "  "}\n{"prompt": " "}\n')
    data = Data.model_validate({"jsonl": {"path": "p.jsonl"}, "longPrompts": long_prompts})
    message = r"p\.jsonl:2: the prompt has no tokens; 2 of 3 rows are like that: take them out"
    (found,) = check_data(data, BareTokenizer("ab"), 0, tmp_path).errors
    assert re.search(message, str(found))
    with pytest.raises(DataError, match=message):
        PromptSource(data, BareTokenizer("ab"), 0, tmp_path)


ROWS: list[dict[str, Any]] = [
    {"prompt": "a", "solution": "b", "unused": None, "deep": {"truth": "c", "style": "rule"}},
    {"prompt": "b", "solution": None, "unused": None, "deep": {"truth": None, "style": "rule"}},
]
THERE = "the rows have prompt, solution, unused, deep.truth, deep.style"


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize(
    ("field", "needed", "message"),
    [
        ("solution", True, None),
        ("deep.truth", True, None),
        ("answer", False, None),
        ("soluton", False, f'no field "soluton" in any row; {THERE}. Did you mean solution?'),
        ("deep.thruth", False, f'no field "deep.thruth" in any row; {THERE}. Did you mean deep.truth?'),
        ("deeper.x", False, f'no field "deeper.x" in any row; {THERE}'),
        ("unused", False, 'field "unused" is null in each row: see data.answerField'),
        (
            "answer",
            True,
            'no field "answer" in any row, and the reward compares with an answer: set data.answerField; '
            f"{THERE}",
        ),
    ],
)
def test_the_field_of_the_answers(
    tmp_path: Path, kind: str, field: str, needed: bool, message: str | None
) -> None:
    path = tmp_path / f"p.{kind}"
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    else:
        parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    data = Data.model_validate({kind: {"path": path.name}, "answerField": field})
    found = check_data(data, TOKENIZER, 0, tmp_path, answers_needed=needed).errors
    if message is None:
        assert found == []
        return
    assert [(type(error), str(error)) for error in found] == [(AnswersMissing, f"{path}: {message}")]
    if not needed:
        with pytest.raises(AnswersMissing):
            PromptSource(data, TOKENIZER, 0, tmp_path)


def test_answers_are_looked_for_in_the_first_rows_of_a_large_file(tmp_path: Path) -> None:
    line = json.dumps({"prompt": "ab", "padding": "x" * 20_000}) + "\n"
    (tmp_path / "p.jsonl").write_text(line * 1001)
    data = Data.model_validate({"jsonl": {"path": "p.jsonl"}, "answerField": "truth"})
    (found,) = check_data(data, TOKENIZER, 0, tmp_path).errors
    assert 'no field "truth" in any of the first 1,000 rows; the rows' in str(found)


def test_more_rows_than_one_scan(tmp_path: Path) -> None:
    source = prompts(tmp_path, ["ab"] * 2500 + ["abcdef"], maxPromptTokens=6, longPrompts="skip")
    assert (source.rows, source.skipped) == (2500, 1)


def test_check_reads_only_the_head_of_a_large_file(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "ab", "padding": "%s"}\n' % ("x" * 20_000) * 1001 + "not json\n")
    data = Data.model_validate({"jsonl": {"path": "p.jsonl"}})
    assert check_data(data, TOKENIZER, 0, tmp_path) == CheckedData([], None)
    with pytest.raises(DataError, match=r"p.jsonl:1002: not valid JSON"):
        PromptSource(data, TOKENIZER, 0, tmp_path)


def test_a_prompt_with_a_token_that_no_vocabulary_has_is_named_by_its_line(tmp_path: Path) -> None:
    TOKENIZER.save_pretrained(tmp_path / "tokenizer")
    file = tmp_path / "tokenizer" / "tokenizer.json"
    content = json.loads(file.read_text())
    content["post_processor"]["special_tokens"]["<sep>"]["ids"] = [99]
    file.write_text(json.dumps(content))
    (tmp_path / "p.jsonl").write_text('\n{"prompt": "ab"}\n')
    data = Data.model_validate({"jsonl": {"path": "p.jsonl"}})
    (found,) = check_data(data, FolderTokenizer(file.parent), 0, tmp_path).errors
    assert "p.jsonl:2: " in str(found) and "the tokenizer gives token 99" in str(found)


def test_check_does_not_fetch_from_the_hub(tmp_path: Path) -> None:
    data = Data.model_validate({"huggingFace": {"name": "nobody/nothing"}})
    assert check_data(data, TOKENIZER, 0, tmp_path) == CheckedData([], None)


@pytest.mark.parametrize(("rows", "known"), [(10, True), (999, True), (1000, False)])
def test_generated_data_are_known_as_far_as_they_are_looked_at(
    tmp_path: Path, rows: int, known: bool
) -> None:
    data = Data.model_validate({"generated": {"task": "copy", "rows": rows}})
    source = PromptSource(data, TOKENIZER, 3, tmp_path)
    found = check_data(data, TOKENIZER, 3, tmp_path)
    assert found == CheckedData([], Epoch(rows, source.fingerprint) if known else None)


@pytest.mark.parametrize(("rows", "known"), [(10, True), (4096, True), (200_001, False)])
def test_generated_data_are_identified_whole_where_that_takes_seconds(
    tmp_path: Path, rows: int, known: bool
) -> None:
    data = Data.model_validate({"generated": {"task": "copy", "rows": rows}})
    found = generated_fingerprint(data, TOKENIZER, 3, tmp_path)
    assert found == (PromptSource(data, TOKENIZER, 3, tmp_path).fingerprint if known else None)


def test_data_that_are_not_generated_are_not_identified_so(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "a"}\n')
    data = Data.model_validate({"jsonl": {"path": "p.jsonl"}})
    assert generated_fingerprint(data, TOKENIZER, 0, tmp_path) is None


def test_random_numbers_are_fixed_for_ever() -> None:
    """Values of the reference implementation of SplitMix64 for the seeds 0 and 1234567: a resumed job must
    find its order again, whatever library versions it runs with."""
    assert [mix(0, n) for n in range(3)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert mix(1234567, 0) == 6457827717110365317
    assert mix_many(1234567, 50).tolist() == [mix(1234567, n) for n in range(50)]
    assert permutation(0, 0, 8).tolist() == [0, 7, 2, 5, 4, 6, 3, 1]
    assert permutation(5, 3, 8).tolist() == [5, 1, 7, 4, 3, 2, 6, 0]


def test_a_prompt_of_megabytes_is_told_as_longer_than_the_limit(tmp_path: Path) -> None:
    message = r"p.jsonl:2: the prompt has more than 162 tokens, above data.maxPromptTokens \(5\); 1 of 2 rows"
    with pytest.raises(DataError, match=message):
        prompts(tmp_path, ["a", "b" * 4_000_000], maxPromptTokens=5)
    with pytest.raises(DataError, match=r"all 1 prompts are above .* \(5\); the shortest has more than 162"):
        prompts(tmp_path, ["b" * 4_000_000], maxPromptTokens=5, longPrompts="skip")


def test_further_fields_come_with_the_prompt_and_are_no_part_of_the_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "a", "level": 3}\n{"prompt": "b", "level": null}\n')
    given: dict[str, Any] = {"jsonl": {"path": "p.jsonl"}, "shuffle": False}
    plain, further = (
        PromptSource(Data.model_validate({**given, **more}), TOKENIZER, 0, tmp_path)
        for more in ({}, {"rewardFields": ["level"]})
    )
    assert [further.prompt(uid).fields for uid in range(2)] == [{"level": 3}, {"level": None}]
    assert plain.prompt(0).fields == {}
    # So that a job may go on from its checkpoint with another reward.
    assert further.fingerprint == plain.fingerprint


def test_the_fingerprint_of_data_is_that_of_earlier_releases(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "a", "answer": "b"}\n{"prompt": "b"}\n')
    data = Data.model_validate({"jsonl": {"path": "p.jsonl"}})
    assert (
        PromptSource(data, TOKENIZER, 0, tmp_path).fingerprint.content == "45a427923a13e2be8d4bc167d438bead"
    )


def test_so_is_that_of_a_table_with_answers_that_are_no_numbers(tmp_path: Path) -> None:
    """The last release took NaN for an answer; rewards get none now, and a run of that release goes on."""
    answers = pyarrow.array([1.0, float("nan")], from_pandas=False)
    parquet.write_table(pyarrow.table({"prompt": ["a", "b"], "answer": answers}), tmp_path / "p.parquet")
    source = PromptSource(Data.model_validate({"parquet": {"path": "p.parquet"}}), TOKENIZER, 0, tmp_path)
    assert source.prompt(1).answer is None
    assert source.fingerprint.content == "e61871189ed659b39e6de363d94f1054"


def test_a_field_that_no_row_has(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "a", "level": null}\n')
    data = Data.model_validate({"jsonl": {"path": "p.jsonl"}, "rewardFields": ["level"]})
    with pytest.raises(RewardFieldMissing, match='field "level" is absent or null in each row') as caught:
        PromptSource(data, TOKENIZER, 0, tmp_path)
    assert (caught.value.index, caught.value.near) == (0, None)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_names_that_are_all_wrong_are_told_together(tmp_path: Path, kind: str) -> None:
    """Also where the first fields of a row are no prompts."""
    rows = [{"n": number, "many": [1], "question": "ab", "solution": "b"} for number in range(3)]
    path = tmp_path / f"p.{kind}"
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    data = Data.model_validate(
        {kind: {"path": path.name}, "promptField": "q", "answerField": "soluton", "rewardFields": ["x", "n"]}
    )
    found = check_data(data, TOKENIZER, 0, tmp_path).errors
    assert [type(error) for error in found] == [PromptMissing, AnswersMissing, RewardFieldMissing]
    assert "Did you mean solution?" in str(found[1])
