"""samples.jsonl: a line for each response that is kept, none twice, whatever interrupts the run; bounded."""

import json
import logging
from itertools import pairwise
from pathlib import Path

import pytest

from rljob_runtime.trace.record.sample_log import (
    SAMPLES_FILE,
    SampleLine,
    SampleLog,
    read_samples,
)
from rljob_runtime.trace.record.thinning import thinned
from tests.support.disks import fill, small_disk
from tests.support.runtime.said import line


def log(folder: Path, step: int = 0, most_bytes: int = 1 << 20) -> SampleLog:
    made = SampleLog(folder, most_bytes)
    made.begin(step)
    return made


def steps(folder: Path) -> list[int]:
    return [row.step for row in read_samples(folder).rows]


def record(samples: SampleLog, first: int, last: int) -> None:
    for step in range(first, last):
        samples.write([line(step, uid=step), line(step, uid=step, index=1)])


def test_a_line_says_all_that_is_known_of_a_response(tmp_path: Path) -> None:
    samples = log(tmp_path)
    samples.write([line(3, uid=7, reward=None, failure="timeout after 10 s", reward_metrics={"m": None})])
    (text,) = (tmp_path / SAMPLES_FILE).read_text().splitlines()
    assert json.loads(text) == {
        "step": 3, "time": 1000.0, "uid": 7, "epoch": 0, "row": 7, "index": 0, "prompt": "<bos>ab<sep>",
        "response": "ab<eos>", "left_out": 0, "prompt_tokens": 4, "tokens": 3, "finish": "stop",
        "reward": None, "failure": "timeout after 10 s", "reward_parts": {}, "reward_metrics": {"m": None},
            "advantage": 0.0, "engine": "fast-0",
        "seconds": 1.5, "first_version": 2, "last_version": 3, "trained_with": 3,
    }  # fmt: skip
    # Those of evaluations alone say of which set they are.
    assert {*json.loads(text), "evaluation"} == set(SampleLine.__struct_fields__)


HOSTILE = 'a\x00\x1b[2J\x07\u202e\u2028\r\n\t"\\</script>\ufffd\U0001f600\x7f\x9b'


def test_bytes_that_mean_something_elsewhere_are_one_line_of_json(tmp_path: Path) -> None:
    log(tmp_path).write([line(0, response=HOSTILE), line(0, index=1)])
    lines = (tmp_path / SAMPLES_FILE).read_bytes().split(b"\n")
    assert len(lines) == 3 and lines[2] == b""
    assert json.loads(lines[0])["response"] == HOSTILE
    assert [row.response for row in read_samples(tmp_path).rows] == [HOSTILE, "ab<eos>"]


@pytest.mark.parametrize(("again", "left"), [(0, []), (3, [0, 0, 1, 1, 2, 2]), (9, [0, 0, 1, 1, 2, 2, 3, 3])])
def test_what_is_trained_again_stands_there_once(tmp_path: Path, again: int, left: list[int]) -> None:
    samples = log(tmp_path)
    record(samples, 0, 4)
    samples.begin(again)
    assert steps(tmp_path) == left
    record(samples, again, again + 1)
    assert steps(tmp_path) == [*left, again, again]


def test_a_resumed_run_goes_on_behind_a_line_that_was_cut_off(tmp_path: Path) -> None:
    record(log(tmp_path), 0, 2)
    path = tmp_path / SAMPLES_FILE
    path.write_bytes(path.read_bytes() + b'{"step": 2, "time": 10')
    assert read_samples(tmp_path).unreadable == 1
    record(log(tmp_path, 2), 2, 3)
    assert steps(tmp_path) == [0, 0, 1, 1, 2, 2]
    assert read_samples(tmp_path).unreadable == 0


def test_the_first_prompts_are_followed_also_after_a_resume(tmp_path: Path) -> None:
    samples = log(tmp_path)
    record(samples, 0, 40)
    assert samples.followed == set(range(32))
    assert log(tmp_path, 5).followed == set(range(5))


def test_the_file_stays_small_and_keeps_the_newest_steps_densely(tmp_path: Path) -> None:
    samples = log(tmp_path, most_bytes=20_000)
    for step in range(400):
        samples.write([line(step, response="x" * 500)])
        assert (tmp_path / SAMPLES_FILE).stat().st_size <= 20_000
        assert steps(tmp_path)[-1] == step
    kept = steps(tmp_path)
    assert kept == sorted(set(kept)) and len(kept) > 10
    gaps = [later - earlier for earlier, later in pairwise(kept)]
    assert gaps == sorted(gaps, reverse=True) and gaps[-1] == 1 and gaps[0] > 8


def test_a_step_that_is_larger_than_the_file_may_be_stands_alone(tmp_path: Path) -> None:
    samples = log(tmp_path, most_bytes=5000)
    record(samples, 0, 2)
    samples.write([line(2, response="x" * 9000)])
    assert steps(tmp_path) == [2]
    record(samples, 3, 4)
    assert steps(tmp_path) == [3, 3]


@pytest.mark.parametrize(
    ("sizes", "wanted", "most", "stay"),
    [
        ({}, 10, 20, set()),
        ({1: 5, 2: 5}, 10, 20, {1, 2}),
        ({1: 5, 2: 5, 3: 5}, 10, 20, {1, 3}),
        ({1: 5, 2: 5, 3: 5, 4: 5}, 10, 20, {2, 4}),
        (dict.fromkeys(range(8), 5), 10, 20, {3, 7}),
        ({1: 5, 2: 15}, 10, 20, {2}),
        ({1: 5, 2: 25}, 10, 20, set()),
    ],
)
def test_every_second_step_goes(sizes: dict[int, int], wanted: int, most: int, stay: set[int]) -> None:
    assert thinned(sizes, wanted, most) == stay


def test_a_full_disk_ends_the_recording_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with small_disk(tmp_path / "disk", 1) as disk, caplog.at_level(logging.WARNING):
        samples = log(disk, most_bytes=1 << 30)
        record(samples, 0, 2)
        ballast = fill(disk, 0)
        for step in range(2, 8):
            samples.write([line(step, response="secret" * 2000)])
        ballast.unlink()
        record(samples, 8, 9)
        assert steps(disk) == [0, 0, 1, 1]
    (warning,) = caplog.messages
    assert "samples are not recorded from here on" in warning and "secret" not in warning
