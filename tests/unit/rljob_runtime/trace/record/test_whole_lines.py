"""What is appended to in a run's folder is read line by line, whatever stands there."""

from collections.abc import Callable, Sized
from pathlib import Path

import msgspec
import pytest

from rljob_runtime.data.length_trace import LENGTHS_FILE
from rljob_runtime.trace.analyse.predictions import read_predictions
from rljob_runtime.trace.record.evaluation_log import EVALUATIONS_FILE, read_evaluations
from rljob_runtime.trace.record.metrics_log import METRICS_FILE, read_metrics
from rljob_runtime.trace.record.sample_log import SAMPLES_FILE, read_samples
from rljob_runtime.trace.record.start_log import STARTS_FILE, read_starts
from rljob_runtime.trace.record.unsent_log import UNSENT_FILE, read_unsent
from rljob_runtime.trace.record.whole_lines import read_all, whole_lines


class Number(msgspec.Struct):
    n: int


NUMBER = msgspec.json.Decoder(Number)
DEEP = b"[" * 20_000 + b"]" * 20_000
UNREADABLE = {
    "cut off": b'{"n": 1',
    "another form": b'{"m": 1}',
    "no UTF-8": b'{"n": "\xff"}',
    "nested too deeply": DEEP,
    "empty": b"",
}
READERS: dict[str, Callable[[Path], Sized]] = {
    EVALUATIONS_FILE: read_evaluations,
    LENGTHS_FILE: lambda folder: read_predictions(folder / LENGTHS_FILE).points,
    METRICS_FILE: lambda folder: read_metrics(folder / METRICS_FILE).rows,
    SAMPLES_FILE: lambda folder: read_samples(folder).rows,
    STARTS_FILE: read_starts,
    UNSENT_FILE: read_unsent,
}


@pytest.mark.parametrize("line", UNREADABLE.values(), ids=UNREADABLE)
def test_a_line_that_cannot_be_decoded_has_no_head_and_the_others_are_given(
    line: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'{"n": 1}\n' + line + b'\n{"n": 2}\n{"n": 3}')
    assert [head and head.n for head, _ in whole_lines(path, NUMBER)] == [1, None, 2]
    assert [each.n for each in read_all(path, NUMBER)] == [1, 2]


def test_without_a_file_nothing_is_read(tmp_path: Path) -> None:
    assert read_all(tmp_path / "none.jsonl", NUMBER) == []


@pytest.mark.parametrize("file", READERS)
def test_every_file_of_lines_is_read_past_what_cannot_be(file: str, tmp_path: Path) -> None:
    (tmp_path / file).write_bytes(b"".join(line + b"\n" for line in UNREADABLE.values()))
    assert len(READERS[file](tmp_path)) == 0
