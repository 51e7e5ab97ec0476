"""Length traces: what is read from a file, and which files are refused."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljob_runtime.data.fingerprint import DataFingerprint
from rljob_runtime.data.length_trace import LengthTraceError, read_length_trace
from tests.support.runtime.traces import lines

HEADER = {"format": "rljob-lengths-1", "samples_per_prompt": 2, "max_response_tokens": 100}
DATA = {"source": "p.jsonl", "rows": 8, "content": "ab", "used": "", "order": "in order"}


def line(uid: int, index: int, tokens: int, **more: Any) -> dict[str, Any]:
    return {"uid": uid, "index": index, "response_tokens": tokens, **more}


def written(path: Path, *lines: dict[str, Any] | str) -> Path:
    path.write_text("".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in lines))
    return path


def test_lines_in_any_order_become_rows_of_prompts(tmp_path: Path) -> None:
    timed = {"prompt_tokens": 7, "row": 3, "begun": 10.5, "seconds": 2.0}
    path = written(
        tmp_path / "t", {**HEADER, "data": DATA}, line(4, 1, 30), line(0, 0, 10, **timed), line(4, 0, 40),
        line(9, 0, 1), line(0, 1, 20, **timed),
    )  # fmt: skip
    trace = read_length_trace(path)
    assert trace.header.data == DataFingerprint(**DATA)  # type: ignore[arg-type]
    assert trace.uids.tolist() == [0, 4]
    assert trace.rows.tolist() == [3, 4], "who does not tell a row has a prompt of its own"
    assert trace.prompt_tokens.tolist() == [7, 0]
    assert trace.tokens.tolist() == [[10, 20], [40, 30]]
    assert trace.tokens.dtype == np.int32
    assert trace.lines.tolist() == [[3, 6], [4, 2]]
    np.testing.assert_array_equal(trace.begun, [[10.5, 10.5], [np.nan, np.nan]])
    np.testing.assert_array_equal(trace.seconds, [[2.0, 2.0], [np.nan, np.nan]])
    assert (trace.incomplete, trace.first_incomplete) == (1, 9), "prompt 9 has one response of two"
    assert trace.unreadable == 0


def test_a_header_alone_is_an_empty_trace(tmp_path: Path) -> None:
    trace = read_length_trace(written(tmp_path / "t", HEADER))
    assert trace.tokens.shape == (0, 2)
    assert (len(trace.uids), trace.covered, trace.incomplete, trace.first_incomplete) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("uids", "covered"), [([], 0), ([0], 1), ([0, 1, 2], 3), ([1, 2], 0), ([0, 1, 5, 6], 2)]
)
def test_prompts_without_a_gap_from_the_first(tmp_path: Path, uids: list[int], covered: int) -> None:
    lines = [line(uid, index, 5) for uid in uids for index in range(2)]
    assert read_length_trace(written(tmp_path / "t", HEADER, *lines)).covered == covered


def test_lines_that_were_cut_off_are_counted(tmp_path: Path) -> None:
    path = written(tmp_path / "t", HEADER, '{"uid": 0, "ind', line(0, 0, 5), line(0, 1, 6))
    with path.open("ab") as file:
        file.write(b'{"engine": "\xc3')
    trace = read_length_trace(path)
    assert (trace.tokens.tolist(), trace.unreadable, trace.first_unreadable) == ([[5, 6]], 2, 2)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], r"is no length trace: its first line must be .* \(it is empty\)"),
        ([{"step": 0, "time": 1.0}], "is no length trace"),
        (["not json"], "is no length trace"),
        ([""], r"is no length trace: its first line .* \(it is empty\)"),
        ([{**HEADER, "format": "rljob-lengths-2"}], "Invalid value 'rljob-lengths-2'"),
        ([{**HEADER, "samples_per_prompt": 0}], r"Expected `int` >= 1 - at `\$.samples_per_prompt`"),
        ([{**HEADER, "removed": -7}], r"Expected `int` >= 0 - at `\$.removed`"),
        (['{"format": "rljob-lengths-1", "x": ' + "[" * 100_000], "is no length trace.*recursion"),
        ([HEADER, '{"uid": 0, "x": ' + "[" * 100_000], "t:2: its values are nested too deeply"),
        ([{**HEADER, "data": {"rows": 3}}], r"is no length trace.*\$.data"),
        ([HEADER, line(0, 0, 5), line(0, 2, 5)], "t:3: response 2 of prompt 0: the header has 2 responses"),
        ([HEADER, line(0, 0, 101)], "t:2: 101 tokens, and the header allows 100"),
        ([HEADER, line(0, 0, 0)], r"t:2: Expected `int` >= 1 - at `\$.response_tokens`"),
        ([HEADER, line(-1, 0, 5)], r"t:2: Expected `int` >= 0 - at `\$.uid`"),
        ([HEADER, line(2**63, 0, 5)], r"t:2: Expected `int` <= 9223372036854775807 - at `\$.uid`"),
        ([HEADER, line(0, 0, 5, prompt_tokens=2**31)], r"t:2: Expected `int` <= 2147483647"),
        ([HEADER, {"uid": 0, "index": 0}], "t:2: .*missing required field `response_tokens`"),
        ([HEADER, line(0, 0, 5, finish="abort")], "t:2: Invalid enum value 'abort'"),
        (
            [HEADER, line(0, 0, 5, row=1), line(1, 0, 5), line(0, 1, 5, row=2)],
            "t:4: row 2 of prompt 0, and line 2 has 1: all responses to a prompt have one",
        ),
        (
            [HEADER, line(0, 1, 5, prompt_tokens=3), line(0, 0, 5, prompt_tokens=4)],
            "t:3: prompt_tokens 4 of prompt 0, and line 2 has 3",
        ),
        (
            [HEADER, line(3, 1, 5), line(0, 0, 5), line(3, 1, 6)],
            "t:4: response 1 of prompt 3 stands in line 2 already",
        ),
    ],
)
def test_other_files_are_refused(tmp_path: Path, lines: list[Any], message: str) -> None:
    with pytest.raises(LengthTraceError, match=message) as error:
        read_length_trace(written(tmp_path / "t", *lines))
    assert str(tmp_path / "t") in str(error.value)
    assert "\n" not in str(error.value)


def test_a_compressed_file_is_told_to_be_unpacked(tmp_path: Path) -> None:
    file = tmp_path / "lengths.jsonl.gz"
    file.write_bytes(gzip.compress(json.dumps(HEADER).encode()))
    with pytest.raises(LengthTraceError, match=f"{file} .* \\(the file is compressed: unpack it with gunzip"):
        read_length_trace(file)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(LengthTraceError, match=f"{tmp_path}/t cannot be read: No such file"):
        read_length_trace(tmp_path / "t")
    with pytest.raises(LengthTraceError, match="cannot be read: Is a directory"):
        read_length_trace(tmp_path)


@pytest.mark.parametrize(("newest", "first"), [(10**9, 0), (None, 0), (0, 50), (1000, 40)])
def test_of_a_long_trace_the_newest_may_be_read_alone(tmp_path: Path, newest: int | None, first: int) -> None:
    file = tmp_path / "lengths.jsonl"
    tokens = np.arange(1, 101).reshape(50, 2)
    written(file, *lines(tokens, 100))
    found = read_length_trace(file, newest)
    uids = found.uids.tolist()
    assert uids == list(range(50 - len(uids), 50)) and found.unreadable == 0
    assert found.tokens.tolist() == tokens[50 - len(uids) :].tolist()
    assert abs((uids[0] if uids else 50) - first) <= 5
