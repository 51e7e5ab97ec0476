"""`evaluations.jsonl`: each evaluation once, whole or not at all."""

from pathlib import Path

import numpy as np
import pytest

from rljob_runtime.evaluation.scores import GradedResponse, score_set
from rljob_runtime.trace.record.evaluation_log import (
    EVALUATION_SAMPLES_FILE,
    EVALUATIONS_FILE,
    EvaluationLine,
    EvaluationLog,
    failing,
    read_evaluations,
)
from rljob_runtime.trace.record.sample_log import read_samples
from tests.support.runtime.said import line as said

SCORE = score_set([[GradedResponse(1.0, 4), GradedResponse(0.0, 4)]], 1.0)


def line(step: int) -> EvaluationLine:
    return EvaluationLine(step=step, version=step, time=1.0, seconds=1.0, sets={"x": SCORE})


def recorded(folder: Path, *steps: int) -> EvaluationLog:
    log = EvaluationLog(folder)
    log.begin(0)
    for step in steps:
        log.write(line(step), [said(step, evaluation="x")])
    return log


def test_what_is_written_is_read(tmp_path: Path) -> None:
    log = recorded(tmp_path, 0, 4)
    assert read_evaluations(tmp_path) == [line(0), line(4)]
    assert log.newest == line(4)


def test_a_run_without_evaluations(tmp_path: Path) -> None:
    assert read_evaluations(tmp_path) == []
    log = EvaluationLog(tmp_path)
    log.begin(3)
    assert log.newest is None and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("step", "kept"), [(0, [0]), (3, [0]), (4, [0, 4]), (7, [0, 4]), (8, [0, 4, 8]), (99, [0, 4, 8])]
)
def test_going_back_cuts_off_what_counts_no_more(tmp_path: Path, step: int, kept: list[int]) -> None:
    recorded(tmp_path, 0, 4, 8)
    log = EvaluationLog(tmp_path)
    log.begin(step)
    assert [each.step for each in read_evaluations(tmp_path)] == kept
    assert [each.step for each in read_samples(tmp_path, EVALUATION_SAMPLES_FILE).rows] == kept
    assert log.newest == line(kept[-1])


def test_a_long_run_keeps_its_newest_evaluations_and_ever_fewer_of_the_older_ones(tmp_path: Path) -> None:
    log = EvaluationLog(tmp_path, most_bytes=20_000)
    log.begin(0)
    for step in range(600):
        log.write(line(step), [])
        assert (tmp_path / EVALUATIONS_FILE).stat().st_size <= 20_000
    kept = [each.step for each in read_evaluations(tmp_path)]
    gaps = np.diff(kept)
    assert gaps[0] > 4 and gaps[-1] == 1 and gaps.tolist() == sorted(gaps, reverse=True) and kept[-1] == 599
    assert log.newest == line(599)
    assert [path.name for path in tmp_path.iterdir()] == [EVALUATIONS_FILE]


def test_one_that_a_kill_cut_off_is_none(tmp_path: Path) -> None:
    recorded(tmp_path, 0, 4)
    file = tmp_path / EVALUATIONS_FILE
    file.write_bytes(file.read_bytes()[:-9])
    log = EvaluationLog(tmp_path)
    log.begin(4)
    assert log.newest == line(0)
    assert [each.step for each in read_samples(tmp_path, EVALUATION_SAMPLES_FILE).rows] == [0]
    log.write(line(4), [])
    assert read_evaluations(tmp_path) == [line(0), line(4)]


def lost(failed: int, step: int = 20) -> EvaluationLine:
    """4 responses, of which so many have no reward."""
    words = "error: KeyError: 'also'\n (judge.py:3, in score)"
    graded = [GradedResponse(None, 4, failure=words)] * failed + [GradedResponse(1.0, 4)] * (4 - failed)
    sets = {"good": SCORE, "bad": score_set([graded], 1.0)}
    return EvaluationLine(step=step, version=1, time=1.0, seconds=1.0, sets=sets)


@pytest.mark.parametrize("failed", [0, 1, 2])
def test_a_few_failures_are_not_told(failed: int) -> None:
    assert failing(lost(failed)) == []


@pytest.mark.parametrize(
    ("failed", "step", "when"), [(3, 20, "after step 20"), (4, 0, "of the initial weights")]
)
def test_most_failures_are_told_in_a_line_with_the_words_of_the_first(
    failed: int, step: int, when: str
) -> None:
    assert failing(lost(failed, step)) == [
        f"evaluation {when}: the reward failed for {failed} of 4 responses of bad, whose numbers say nothing "
        "of the model; the first failure: KeyError: 'also' (judge.py:3, in score)"
    ]


def test_a_line_of_an_earlier_release_is_read(tmp_path: Path) -> None:
    recorded(tmp_path, 4)
    file = tmp_path / EVALUATIONS_FILE
    text = file.read_text()
    assert ',"first_failure":""' in text
    file.write_text(text.replace(',"first_failure":""', ""))
    assert read_evaluations(tmp_path) == [line(4)]
