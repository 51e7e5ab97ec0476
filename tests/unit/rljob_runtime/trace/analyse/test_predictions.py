"""What was expected of responses, against what they became."""

import itertools
import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljob_runtime.trace.analyse.predictions import POINTS, Predictions, read_predictions
from tests.support.runtime.traces import lines, written


def read(folder: Path, responses: list[dict[str, Any]]) -> Predictions:
    """The predictions of a trace of these responses."""
    made = lines(np.ones((len(responses), 1), int), 100_000)
    path = folder / "lengths.jsonl"
    return read_predictions(
        written(path, [made[0], *(line | more for line, more in zip(made[1:], responses, strict=True))])
    )


def test_errors_are_of_the_logarithm(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        [{"response_tokens": 100, "expected": expected} for expected in (200, 50, 100)],
    )
    assert found.count == 3
    assert found.mean_error == pytest.approx(2 / 3 * math.log(2)) and found.ratio == pytest.approx(350 / 300)
    assert sorted(found.points) == [(50, 100), (100, 100), (200, 100)]


def test_real_lengths_are_told_by_what_was_expected(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        [
            {"response_tokens": tokens, "expected": expected}
            for expected, tokens in ((60, 10), (70, 30), (1000, 900))
        ],
    )
    assert {power: sketch.count for power, sketch in found.by_expected.items()} == {6: 2, 10: 1}
    assert found.by_expected[6].mean == 20


@pytest.mark.parametrize(
    ("expected", "tokens", "pool", "counted"),
    [
        (100, 100, "heavy", "rightly_long"), (100, 99, "heavy", "wrongly_long"),
        (99, 100, "fast", "missed"), (99, 99, "fast", "rightly_short"),
    ],
)  # fmt: skip
def test_calls_go_by_the_cut_of_their_time(
    tmp_path: Path, expected: int, tokens: int, pool: str, counted: str
) -> None:
    calls = read(
        tmp_path, [{"response_tokens": tokens, "expected": expected, "cut": 100, "pool": pool}]
    ).calls
    assert getattr(calls, counted) == calls.count == 1 and calls.missed_to_heavy == 0


def test_one_that_was_missed_may_have_been_found_while_it_ran(tmp_path: Path) -> None:
    missed = {"response_tokens": 500, "expected": 9, "cut": 100}
    calls = read(tmp_path, [missed | {"pool": "heavy"}, missed | {"pool": "fast"}]).calls
    assert (calls.missed, calls.missed_to_heavy) == (2, 1)


def test_without_a_cut_nothing_was_called(tmp_path: Path) -> None:
    found = read(tmp_path, [{"response_tokens": 5, "expected": 9, "cut": None}])
    assert found.count == 1 and found.calls.count == 0


def test_the_error_of_one_guess_is_that_of_the_mean(tmp_path: Path) -> None:
    rng = random.Random(0)
    tokens = [max(1, round(rng.lognormvariate(5, 0.8))) for _ in range(2000)]
    found = read(tmp_path, [{"response_tokens": count, "expected": 150} for count in tokens])
    logs = np.log(tokens)
    assert found.error_of_one_guess == pytest.approx(
        float(np.abs(logs - np.log(np.mean(tokens))).mean()), rel=0.02
    )


def test_errors_are_told_by_version(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        [{"response_tokens": 10, "expected": 20, "version": version} for version in (0, 0, 3, None)],
    )
    assert {version: count for version, (count, _) in found.by_version.items()} == {0: 2, 3: 1}


def test_points_are_bounded_and_from_the_whole_file(tmp_path: Path) -> None:
    count = 10 * POINTS
    found = read(tmp_path, [{"response_tokens": place + 1, "expected": 1} for place in range(count)])
    reals = [real for _, real in found.points]
    assert POINTS / 2 <= len(reals) <= POINTS and found.count == count
    gaps = {later - earlier for earlier, later in itertools.pairwise(reals)}
    assert reals[0] == 1 and len(gaps) == 1, "evenly"


@pytest.mark.parametrize("content", [None, b"", b"{}\n", b'{"format": "rljob-lengths-1"}\n{"uid": 1, "resp'])
def test_what_tells_no_expectation_gives_none(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "lengths.jsonl"
    if content is not None:
        path.write_bytes(content)
    assert read_predictions(path).count == 0


def test_a_trace_of_before_expectations_and_lines_that_are_cut_off_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "lengths.jsonl"
    content = [*lines(np.array([[5, 6]]), 10), {"uid": 1, "index": 0, "response_tokens": 7, "expected": 7}]
    written(path, content)
    with path.open("ab") as file:
        file.write(json.dumps({"uid": 2}).encode()[:-3])
    assert read_predictions(path).count == 1
