"""A page is made of whatever was recorded, and of nothing none is made."""

from pathlib import Path

import pytest

from rljob_runtime.trace.report.page import write_report
from rljob_runtime.trace.report.recorded import NothingRecorded
from tests.support.runtime.synthetic_run import Job, write_run

GARBAGE = b"\xff\xfe{\n\x00\n"


@pytest.mark.parametrize(
    ("files", "end"),
    [
        ([], "."),
        (["metrics.jsonl"], " (2 lines are damaged, or of another release)."),
        (
            ["metrics.jsonl", "samples.jsonl", "evaluations.jsonl", "events/step_000000/worker_0.jsonl"],
            " (6 lines are damaged, or of another release).",
        ),
    ],
    ids=["nothing", "metrics", "all kinds"],
)
def test_nothing_that_can_be_read_makes_no_report(tmp_path: Path, files: list[str], end: str) -> None:
    (tmp_path / "report.html").write_text("of another day")
    for name in files:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(GARBAGE)
    with pytest.raises(NothingRecorded) as caught:
        write_report(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path} has nothing that a report could be made of: metrics.jsonl, starts.jsonl, samples.jsonl, "
        f"evaluations.jsonl and events were looked for, and no line of them can be read{end}"
    )
    assert (tmp_path / "report.html").read_text() == "of another day"


@pytest.mark.parametrize(
    ("kept", "text"),
    [
        ("metrics.jsonl", "No events were recorded"),
        ("events", "metrics.jsonl is missing or empty"),
        ("starts.jsonl", "No step has been recorded"),
    ],
)
def test_one_kind_of_record_makes_a_report(tmp_path: Path, kept: str, text: str) -> None:
    run = write_run(tmp_path / "run", Job(steps=20, restart_at=12))
    for item in run.iterdir():
        if item.name != kept and item.is_file():
            item.write_bytes(GARBAGE)
        elif item.name != kept:
            item.rename(tmp_path / item.name)
    assert text in write_report(run).read_text()
