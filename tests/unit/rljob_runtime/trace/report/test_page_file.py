"""Where the page of `rljob report` goes, and what it does not write over."""

import os
from pathlib import Path

import pytest

from rljob_runtime.cli import main
from tests.support.runtime.synthetic_run import Job, write_run


def test_a_report_goes_where_the_option_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, elsewhere = write_run(tmp_path / "run", Job(steps=2)), tmp_path / "page.html"
    for _ in range(2):
        assert main(["report", str(run), "--output", str(elsewhere)]) == 0
        assert capsys.readouterr().out == f"{elsewhere}\n"
    assert not (run / "report.html").exists()
    assert main(["report", str(run), "--output", "-"]) == 0
    assert capsys.readouterr().out.startswith("<!doctype html>")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["page.html", "run"]


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("run/metrics.jsonl", 2, "metrics.jsonl is there already, and is no page: name another file with"),
        ("pipe", 2, "pipe is a device, a pipe or a socket: name a file with --output."),
        ("run", 1, "run: Is a directory."),
    ],
)
def test_what_a_report_does_not_write_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, code: int, words: str
) -> None:
    run = write_run(tmp_path / "run", Job(steps=2))
    os.mkfifo(tmp_path / "pipe")
    before = (run / "metrics.jsonl").read_bytes()
    assert main(["report", str(run), "--output", str(tmp_path / name)]) == code
    assert words in capsys.readouterr().err
    assert (run / "metrics.jsonl").read_bytes() == before
