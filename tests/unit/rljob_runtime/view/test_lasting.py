"""A view whose output goes away while the job runs."""

import logging
import os
from collections.abc import Iterator
from typing import TextIO

import pytest

from rljob_runtime.view import Header, Progress, Summary, make_view
from rljob_runtime.view.lasting import LastingView

HEADER = Header("copy-grpo", "cpu", {"trainer": 1, "fast": 1, "heavy": 0}, "vllm", "tiny Qwen3", 1)
TOLD = "the output cannot be written any more (Broken pipe); the job goes on without it"


@pytest.fixture
def unread() -> Iterator[TextIO]:
    """A pipe whose reader has gone."""
    reads, writes = os.pipe()
    os.close(reads)
    with os.fdopen(writes, "w") as out:
        yield out


def test_the_job_goes_on_and_that_is_told_once(
    unread: TextIO, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    view = LastingView(make_view(unread, live=True), unread)
    with caplog.at_level(logging.WARNING):
        view.start(Progress(HEADER, total_steps=3, activity="starting"))
        view.message("an engine was lost")
        view.finish(Summary(step=3, seconds=9.0))
        # Python does at its end.
        unread.flush()
    assert capsys.readouterr().err == f"rljob: {TOLD}\n"
    assert [each.getMessage() for each in caplog.records] == [TOLD, "an engine was lost"]
