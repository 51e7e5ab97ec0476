"""Rows of prompts: what is accepted, and what each mistake says."""

import gc
import json
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pytest
from pyarrow import parquet

from rljob_api.data import Data
from rljob_runtime.data.errors import DataError
from rljob_runtime.data.sources import Row, Source, open_source

LETTERS = "abcdefghijklmnopqrstuvwxyz"
CHAT = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "1+1?"}]


def opened(folder: Path, limit: int | None = None, **data: Any) -> Source:
    return open_source(Data.model_validate(data), folder, 7, LETTERS, limit)


def jsonl(folder: Path, content: str | bytes) -> Path:
    path = folder / "p.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_jsonl_rows_and_their_lines(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "answer": "b"}, {"prompt": CHAT}, {"prompt": "c", "answer": 4, "other": []}]
    jsonl(tmp_path, "\ufeff" + json.dumps(rows[0]) + "\n\n  \n" + "\n".join(map(json.dumps, rows[1:])))
    source = opened(tmp_path, jsonl={"path": "p.jsonl"})
    assert [source.row(i) for i in range(len(source))] == [Row("a", "b"), Row(CHAT, None), Row("c", "4")]
    assert [source.where(i).rpartition(":")[2] for i in range(3)] == ["1", "4", "5"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            b'{"prompt": "a"}\n{"prompt": "caf\xe9"}\n',
            r"p.jsonl:2: not UTF-8 text \(byte 15\): write the file as UTF-8$",
        ),
        ('{"prompt": "a"}\n{"prompt": ', r"p.jsonl:2: not valid JSON \([^{]*\): the object has no end"),
        ('\n{"prompt": "a"} x', r"p.jsonl:2: not valid JSON"),
        (b'{"prompt": "\xff"}', r"p.jsonl:1: not UTF-8 text"),
        (b"\x1f\x8b\x08", r"p.jsonl: the file is compressed: unpack it with gunzip$"),
        ("\x1b[31m\u00fc{", r"p.jsonl:1: not valid JSON \(JSON is malformed: [a-z ]*\(byte 0\)\)$"),
        ("[1]", r"p.jsonl:1: a line must be a JSON object, like \{...\}; this is a list"),
        ("[1]", r"this is a list: of a list of rows, write each row on a line of its own"),
        (
            '[\n{"prompt": "a"}]',
            r"p.jsonl:1: not valid JSON \(.*\): of a list of rows, write each row on a line",
        ),
        ('[\n{"prompt": "a"}]', r"write each row on a line of its own, as jq -c '\.\[\]' does$"),
        (
            '{\n"prompt": "a"\n}',
            r"p.jsonl:1: not valid JSON \(.*\): the object has no end on this line: write",
        ),
        ('{"prompt": "a"},\n', r"take away the comma behind the object, which stands alone on its line$"),
        ('{"prompt": "a",}\n', r"take away the comma before the closing bracket$"),
        ('{"prompt": "a", "x": NaN}', r"JSON has no NaN and no Infinity, write null$"),
        ('{"prompt": "' + "a" * 60 + '", "x": [-Infinity]}', r"JSON has no NaN and no Infinity, write null$"),
        ("{'prompt': 'a'}", r"JSON has double quotes, as json.dumps writes them$"),
        ("version https://git-lfs.github.com/spec/v1", r"kept by Git LFS, and was not fetched: git lfs pull"),
        (
            '{"prompt": [{"from": "human", "value": "a"}]}',
            r'message 0 has "from" and "value": write "role" and "content" in their place, user for human',
        ),
        (
            '{"prompt": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}',
            r'message 0: "content" is a list of parts: write their texts as one text$',
        ),
        (
            '{"prompt": {"role": "user", "content": "a"}}',
            r'"prompt" is one message and no list of them: write it in a list, or set data.promptField',
        ),
        (
            "prompt,answer\na,b",
            r"p.jsonl:1: not valid JSON \(.*\(byte 0\)\): a file of JSON Lines has an object, \{",
        ),
        ("3", r"this is a number"),
        ('{"x": {"promt": "a"}}', r'no field "prompt". Did you mean x.promt\? It has: x.promt'),
        ('{"promt": "a"}', r'p.jsonl:1: no field "prompt". Did you mean promt\? It has: promt'),
        ('{"prompt": 4}', r'field "prompt" must be text or a list of chat messages, not a number'),
        ('{"prompt": null}', r"not null"),
        ('{"prompt": ""}', r'field "prompt" is empty'),
        ('{"prompt": []}', r"empty list of messages"),
        ('{"prompt": ["a"]}', r'message 0 must be an object with "role" and "content", not text'),
        ('{"prompt": [{"role": "user"}]}', r'message 0: "content" must be text, not null'),
        ('{"prompt": "a", "answer": [1]}', r'field "answer" must be text or a number, not a list'),
        (f'{{"prompt": "a", "x": {"[" * 3000}{"]" * 3000}}}', r"p.jsonl:1: nested too deeply to be read"),
        ('{"prompt": "a", "answer": true}', r'field "answer" must be text or a number, not true or false'),
    ],
)
def test_jsonl_mistakes_are_named_by_line(tmp_path: Path, lines: str | bytes, message: str) -> None:
    jsonl(tmp_path, lines)
    with pytest.raises(DataError, match=message) as error:
        opened(tmp_path, jsonl={"path": "p.jsonl"})
    assert "\n" not in str(error.value)


PRIVATE = [
    b'{"prompt": "my secret"',
    b'secret,{"prompt": "a"}',
    b'{"prompt": "a secret", "answer": secret}',
    b'{"prompt": "secret \xff"}',
    b'secret \xff {"prompt": "a"}',
    b'{"prompt": "a", "answer": ["secret"]}',
    b'{"prompt": "a", "answer": "b", "big": 77777777777777777777777777}',
]


@pytest.mark.parametrize("line", PRIVATE)
def test_what_is_said_of_a_line_quotes_nothing_of_it(tmp_path: Path, line: bytes) -> None:
    """It goes into the job's status."""
    jsonl(tmp_path, line)
    with pytest.raises(DataError, match=r"p.jsonl:1: ") as error:
        opened(tmp_path, jsonl={"path": "p.jsonl"}, rewardFields=["big"])
    assert "secret" not in str(error.value)
    assert "777" not in str(error.value)


def test_jsonl_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"p.jsonl: No such file"):
        opened(tmp_path, jsonl={"path": "p.jsonl"})
    for form in ("jsonl", "parquet"):
        with pytest.raises(DataError, match=r"is a folder, and one file is named here: .* huggingFace.name"):
            opened(tmp_path, **{form: {"path": "."}})


def test_jsonl_limit_stops_reading(tmp_path: Path) -> None:
    jsonl(tmp_path, '{"prompt": "a"}\n{"prompt": "b"}\nnot json')
    assert len(opened(tmp_path, limit=2, jsonl={"path": "p.jsonl"})) == 2


@pytest.mark.parametrize("content", ['{"prompt": "a"}', "not json"])
def test_jsonl_is_closed_when_nobody_reads_it_any_more(tmp_path: Path, content: str) -> None:
    jsonl(tmp_path, content)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with suppress(DataError):
            assert opened(tmp_path, jsonl={"path": "p.jsonl"}).row(0) == Row("a", None)
        gc.collect()
    assert [str(each.message) for each in told if each.category is ResourceWarning] == []


def test_other_field_names(tmp_path: Path) -> None:
    jsonl(tmp_path, '{"question": "q", "solution": "s"}')
    source = opened(tmp_path, jsonl={"path": "p.jsonl"}, promptField="question", answerField="solution")
    assert source.row(0) == Row("q", "s")


NESTED: list[tuple[dict[str, Any], Row]] = [
    ({"q": {"text": "a"}, "r": {"truth": "b", "style": "rule"}}, Row("a", "b")),
    ({"q": {"text": "a"}, "r": {"truth": None, "style": "rule"}}, Row("a", None)),
    ({"q": {"text": "a"}, "r": None}, Row("a", None)),
    ({"q": {"text": "a"}, "r": {"truth": "b", "style": "x"}, "r.truth": "c", "q.text": "d"}, Row("d", "c")),
]
"""Records, and their rows where the prompt is q.text and the answer r.truth."""


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "huggingFace"])
@pytest.mark.parametrize(("record", "row"), NESTED, ids=["nested", "null", "null object", "plain key"])
def test_fields_of_objects(tmp_path: Path, kind: str, record: dict[str, Any], row: Row) -> None:
    if kind == "jsonl":
        jsonl(tmp_path, json.dumps(record))
    elif kind == "parquet":
        parquet.write_table(pyarrow.Table.from_pylist([record]), tmp_path / "p.parquet")
    else:
        datasets.Dataset.from_list([record]).save_to_disk(tmp_path / "p.huggingFace")
    location = {"name": "p.huggingFace"} if kind == "huggingFace" else {"path": f"p.{kind}"}
    source = opened(tmp_path, **{kind: location}, promptField="q.text", answerField="r.truth")  # type: ignore[arg-type]
    assert source.row(0) == row
    assert source.fields()[0] == "q.text"


FURTHER: list[tuple[Any, Any]] = [
    (3, 3),
    (None, None),
    ("hard", "hard"),
    ([1, "a", True], [1, "a", True]),
    ({"index": 4, "tags": ["x"]}, {"index": 4, "tags": ["x"]}),
]


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "huggingFace"])
@pytest.mark.parametrize(("given", "read"), FURTHER[:3] + FURTHER[4:])
def test_further_fields_for_the_reward(tmp_path: Path, kind: str, given: Any, read: Any) -> None:
    record = {"prompt": "a", "answer": "b", "more": given, "outer": {"inner": 1}, "unread": "x"}
    if kind == "jsonl":
        jsonl(tmp_path, json.dumps(record))
    elif kind == "parquet":
        parquet.write_table(pyarrow.Table.from_pylist([record]), tmp_path / "p.parquet")
    else:
        datasets.Dataset.from_list([record]).save_to_disk(tmp_path / "p.huggingFace")
    location = {"name": "p.huggingFace"} if kind == "huggingFace" else {"path": f"p.{kind}"}
    fields = ["more", "outer.inner", "absent"]
    source = opened(tmp_path, **{kind: location}, rewardFields=fields)  # type: ignore[arg-type]
    assert source.row(0) == Row("a", "b", {"more": read, "outer.inner": 1, "absent": None})


def test_a_field_that_a_reward_cannot_be_given(tmp_path: Path) -> None:
    parquet.write_table(pyarrow.table({"prompt": ["a"], "image": [b"x"]}), tmp_path / "p.parquet")
    source = opened(tmp_path, parquet={"path": "p.parquet"}, rewardFields=["image"])
    with pytest.raises(
        DataError, match=r'row 0: field "image" \(see data.rewardFields\) has bytes: a reward'
    ):
        source.row(0)
    jsonl(tmp_path, '{"prompt": "a", "big": 36893488147419103232}')
    with pytest.raises(
        DataError, match=r'p.jsonl:1: field "big" has too large an integer: a reward gets integers of 64 bits'
    ):
        opened(tmp_path, jsonl={"path": "p.jsonl"}, rewardFields=["big"])


@pytest.mark.parametrize("limit", [None, 2])
def test_parquet(tmp_path: Path, limit: int | None) -> None:
    table = pyarrow.table({"prompt": [CHAT, CHAT, CHAT], "answer": [1, None, 3], "unread": [b"\xff"] * 3})
    parquet.write_table(table, tmp_path / "p.parquet")
    source = opened(tmp_path, limit=limit, parquet={"path": "p.parquet"})
    assert len(source) == (limit or 3)
    assert [source.row(i) for i in range(2)] == [Row(CHAT, "1"), Row(CHAT, None)]
    assert source.where(1).endswith("p.parquet row 1")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"prompt": "a"}\n', "the file is JSON, and no parquet: name a file of JSON Lines by data.jsonl"),
        (b"prompt,answer\na,b\n", "the file is no parquet: write it as such, with to_parquet of pandas or"),
        (b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00", "the file is compressed: unpack it with gunzip"),
        (b"PAR1 and more", "not a usable parquet file: it is cut short, for it lacks the end: copy it again"),
        (b"PAR1 and more PAR1", "not a usable parquet file: "),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"", "the file is empty: write it again"),
    ],
)
def test_a_file_that_is_no_parquet(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "p.parquet").write_bytes(content)
    with pytest.raises(DataError, match=f"p.parquet: .*{words}"):
        opened(tmp_path, parquet={"path": "p.parquet"})


def test_an_answer_that_is_not_a_number_is_none(tmp_path: Path) -> None:
    table = pyarrow.table({"prompt": ["a", "b", "c"], "answer": [1.5, float("nan"), None]})
    parquet.write_table(table, tmp_path / "p.parquet")
    source = opened(tmp_path, parquet={"path": "p.parquet"})
    assert [source.row(index).answer for index in range(3)] == ["1.5", None, None]


def test_parquet_mistakes(tmp_path: Path) -> None:
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no")
    parquet.write_table(pyarrow.table({"prompts": ["a"]}), tmp_path / "named.parquet")
    parquet.write_table(
        pyarrow.table({"prompt": pyarrow.array([], pyarrow.string())}), tmp_path / "none.parquet"
    )
    for name, message in (
        ("missing.parquet", "missing.parquet: No such file"),
        ("bad.parquet", "not a usable parquet file"),
        ("named.parquet", 'no column "prompt". Did you mean prompts'),
    ):
        with pytest.raises(DataError, match=message):
            opened(tmp_path, parquet={"path": name})
    assert len(opened(tmp_path, parquet={"path": "none.parquet"})) == 0
    assert len(opened(tmp_path, limit=5, parquet={"path": "none.parquet"})) == 0


NOT_UTF8 = pyarrow.Array.from_buffers(
    pyarrow.string(), 2, pyarrow.array([b"ab", b"\xffe"], pyarrow.binary()).buffers()
)


@pytest.mark.parametrize(
    ("column", "fields"), [("prompt", {}), ("answer", {}), ("image", {"rewardFields": ["image"]})]
)
@pytest.mark.parametrize("kind", ["parquet", "huggingFace"])
def test_text_of_a_table_that_is_not_utf8(
    tmp_path: Path, kind: str, column: str, fields: dict[str, Any]
) -> None:
    table = pyarrow.table({"prompt": ["a", "b"], "answer": ["a", "b"], column: NOT_UTF8})
    if kind == "parquet":
        parquet.write_table(table, tmp_path / "p.parquet")
        data: dict[str, Any] = {"parquet": {"path": "p.parquet"}}
    else:
        datasets.Dataset(datasets.table.InMemoryTable(table)).save_to_disk(tmp_path / "set")
        data = {"huggingFace": {"name": "set"}}
    with pytest.raises(DataError, match=rf'row 1: field "{column}" has text that is not UTF-8 \(.*0xff.*\)'):
        opened(tmp_path, **data, **fields).row(1)


def test_two_columns_of_one_name(tmp_path: Path) -> None:
    letters = pyarrow.array(["a"])
    twice = pyarrow.Table.from_arrays([letters] * 3, names=["prompt", "answer", "answer"])
    parquet.write_table(twice, tmp_path / "p.parquet")
    with pytest.raises(DataError, match=r'p.parquet: 2 columns are called "answer": .* its own'):
        opened(tmp_path, parquet={"path": "p.parquet"})
    assert opened(tmp_path, parquet={"path": "p.parquet"}, answerField="other").row(0) == Row("a", None)


def test_hugging_face_saved_folders(tmp_path: Path) -> None:
    data = datasets.Dataset.from_dict({"prompt": ["a", "b"], "answer": ["x", None], "more": [1, 2]})
    data.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": data, "test": data.select([0])}).save_to_disk(tmp_path / "splits")
    one = opened(tmp_path, huggingFace={"name": "one"})
    assert [one.row(i) for i in range(len(one))] == [Row("a", "x"), Row("b", None)]
    assert len(opened(tmp_path, huggingFace={"name": "splits", "split": "test"})) == 1
    assert len(opened(tmp_path, limit=1, huggingFace={"name": "splits"})) == 1
    with pytest.raises(DataError, match=r'no split "tset". Did you mean test\? It has: train, test'):
        opened(tmp_path, huggingFace={"name": "splits", "split": "tset"})
    with pytest.raises(DataError, match='no column "question"'):
        opened(tmp_path, huggingFace={"name": "one"}, promptField="question")


def test_hugging_face_folder_of_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "train.jsonl").write_text('{"prompt": "a"}\n')
    source = opened(tmp_path, huggingFace={"name": "files"})
    assert source.row(0) == Row("a", None)
    with pytest.raises(DataError, match=r'data set "files" does not load: .*split'):
        opened(tmp_path, huggingFace={"name": "files", "split": "test"})
    assert capfd.readouterr().err == "", "the library's progress bars"


@pytest.mark.parametrize(
    ("task", "answer"),
    [
        ("copy", lambda text: text),
        ("reverse", lambda text: text[::-1]),
        ("repeat", lambda text: text[0] * len(text)),
        ("count", lambda text: str(len(text))),
    ],
)
def test_generated_tasks(tmp_path: Path, task: str, answer: Any) -> None:
    generated = {"task": task, "rows": 200, "minLength": 2, "maxLength": 5, "letters": 3}
    source = opened(tmp_path, generated=generated)
    rows = [source.row(i) for i in range(len(source))]
    assert rows == [opened(tmp_path, generated=generated).row(i) for i in range(200)]
    assert {len(str(row.prompt)) for row in rows} == {2, 3, 4, 5}
    assert {letter for row in rows for letter in row.prompt} == {"a", "b", "c"}
    assert all(row.answer == answer(row.prompt) for row in rows)
    if task == "repeat":
        assert all(len(set(row.prompt)) == 1 for row in rows)


def test_generated_data_depends_on_the_seed() -> None:
    data = Data.model_validate({"generated": {"task": "copy", "minLength": 20, "maxLength": 20}})
    first, second = (open_source(data, Path(), seed, LETTERS).row(0) for seed in (1, 2))
    assert first != second


def test_generated_mistakes(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"letters is 30, but the tokenizer's alphabet has only 26"):
        opened(tmp_path, generated={"task": "copy", "letters": 30})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"prompt": "a"}\n'.encode("utf-16"), "the file is UTF-16 text: write it as UTF-8"),
        (b"PAR1\x15\x04\n", "the file is parquet: name it by data.parquet"),
    ],
)
def test_a_file_of_another_kind_is_told_as_such(tmp_path, content, words):
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"a.jsonl: {words}"):
        open_source(Data.model_validate({"jsonl": {"path": "a.jsonl"}}), tmp_path, seed=0, letters="")
