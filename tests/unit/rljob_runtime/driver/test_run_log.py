"""driver.log does not grow for ever."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from rljob_runtime.driver import run
from rljob_runtime.run_folder import RunOptions


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
    monkeypatch.setattr(run, "LOG_BYTES", 10_000)
    run._log_to(RunOptions(tmp_path, tmp_path, resume=False, live=False))
    for number in range(2000):
        logging.getLogger("rljob_runtime").info("line %d", number)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["driver.log", "driver.log.1"]
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 20_000
    assert (tmp_path / "driver.log").read_text().endswith("line 1999\n")
