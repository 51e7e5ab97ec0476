"""driver.log does not grow for ever."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from rljob_runtime.driver import run_log


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root of all loggers, as it was afterwards."""
    root = logging.getLogger()
    before, level, raises = root.handlers[:], root.level, logging.raiseExceptions
    # Those that are there would be closed.
    root.handlers.clear()
    yield root
    for handler in root.handlers:
        handler.close()
    root.handlers[:] = before
    root.setLevel(level)
    logging.raiseExceptions = raises


def test_the_log_of_a_long_run_is_bounded(
    tmp_path: Path, root: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_log, "LOG_BYTES", 10_000)
    run_log.RunLog(tmp_path)
    for number in range(2000):
        logging.getLogger("rljob_runtime").info("line %d", number)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["driver.log", "driver.log.1"]
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 20_000
    assert (tmp_path / "driver.log").read_text().endswith("line 1999\n")


def test_the_log_goes_on_in_the_folder_that_takes_the_place_of_one_that_is_moved_aside(
    tmp_path: Path, root: logging.Logger
) -> None:
    run, moved = tmp_path / "run", tmp_path / "run.1"
    run.mkdir()
    log = run_log.RunLog(run)
    root.info("before")
    run.rename(moved)
    run.mkdir()
    log.follow()
    root.info("after")
    told = [(folder / "driver.log").read_text().split(": ")[-1] for folder in (moved, run)]
    assert told == ["before\n", "after\n"]
