"""What `rljob trace responses` prints."""

import json
import re
import shutil
from pathlib import Path

import pytest

from rljob_runtime.cli import main
from rljob_runtime.trace.analyse.analysis import analyse_run
from rljob_runtime.trace.analyse.step_detail import REQUESTS
from rljob_runtime.trace.report.responses_text import NoSuchStep, responses_text
from rljob_runtime.trace.report.section_predictions import calls_sentence, sentence
from tests.support.runtime.synthetic_run import Job, write_run


def test_the_longest_responses_are_lines_over_time(tmp_path: Path) -> None:
    run = write_run(tmp_path, Job(steps=12, by_length=True))
    text = responses_text(run, None)
    lines = [line for line in text.splitlines() if "│" in line]
    assert len(lines) == REQUESTS and len({line.index("│") for line in lines}) == 1
    bars = [line.split("│")[1] for line in lines]
    assert {len(bar) for bar in bars} == {48} and all(bar.strip() for bar in bars)
    moved = [line for line in lines if "→" in line]
    assert moved and all("┃" in line for line in moved)
    assert any(re.search(r"fast-\d → heavy-0 \(long\)$", line) for line in moved)
    # A stay on the heavy pool is drawn as one for long responses.
    alone = [line for line in lines if line.endswith("│ heavy-0")]
    assert all("█" in line and "░" not in line for line in alone)


def test_the_figures_are_those_of_the_report(tmp_path: Path) -> None:
    run = write_run(tmp_path, Job(steps=12, by_length=True))
    found, text = analyse_run(run), responses_text(run, None)
    heavy = found.scheduling.shares["heavy"]
    assert re.search(rf"heavy pool +{heavy.lengths.count} +{heavy.tokens:,} ", text)
    assert re.search(rf"long +fast pool +heavy pool +{found.scheduling.moved} ", text)
    assert sentence(found.predictions) in text and calls_sentence(found.predictions.calls) in text


def test_any_step_may_be_asked_for(tmp_path: Path) -> None:
    run = write_run(tmp_path, Job(steps=60))
    kept = {detail.window.step for detail in analyse_run(run).details}
    step = next(step for step in range(60) if step not in kept)
    text = responses_text(run, step + 1)
    assert text.startswith(f"Step {step + 1}, ") and "Expected" not in text
    assert "No response moved from one engine to another." in text


def test_a_step_that_is_not_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path, Job(steps=4))
    with pytest.raises(NoSuchStep, match=r"has 4 steps, 1 to 4, and not step 7\."):
        responses_text(run, 7)
    assert main(["trace", "responses", str(run), "--step", "7"]) == 2
    assert "and not step 7" in capsys.readouterr().err


def test_a_step_whose_row_is_gone_is_refused_with_those_beside_it(tmp_path: Path) -> None:
    run = write_run(tmp_path, Job(steps=8))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    kept = [{**rows[step], "began": rows[max(step - 1, 0)]["time"]} for step in (0, 3, 6, 7)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))
    there = r"has 4 steps, 1 to 8 \(of older ones not all are kept; nearest: 4 and 7\), and not step 5\."
    with pytest.raises(NoSuchStep, match=there):
        responses_text(run, 5)


def test_a_folder_without_a_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "responses", str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err


def test_a_run_without_a_step_has_nothing_to_print(tmp_path: Path) -> None:
    with pytest.raises(NoSuchStep, match="has no step"):
        responses_text(tmp_path, None)


def test_a_run_without_events_says_so(tmp_path: Path) -> None:
    run = write_run(tmp_path, Job(steps=2))
    shutil.rmtree(run / "events")
    assert "no events: was training.profiling.events false?" in responses_text(run, None)
