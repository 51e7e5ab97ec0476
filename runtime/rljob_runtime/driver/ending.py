"""What a run leaves behind when its training has ended: the trained model and the report.

Guarantees: both are made while the rest of the run is taken down; the report in a process of its own, which
is waited for a limited time, for it reads every event of the run.
"""

import asyncio
import logging
import subprocess
import sys
from pathlib import Path

from rljob_runtime.driver.export import ADAPTER, MODEL, export, export_adapter
from rljob_runtime.trace.report.page import REPORT_FILE
from rljob_runtime.trainer.checkpoint import newest

log = logging.getLogger(__name__)


class ReportWriter:
    """Runs `rljob report` on a run's folder while the rest of the run is taken down."""

    def __init__(self, run_folder: Path) -> None:
        self._folder = run_folder
        self._process: subprocess.Popen[str] | None = None
        self._given_up = False

    def start(self) -> None:
        """Begin, unless it has begun or was given up; what is recorded by now will be in the report."""
        if self._process is None and not self._given_up:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rljob_runtime.cli", "report", str(self._folder)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )

    def give_up(self) -> None:
        """`finish` returns soon, without a report. To be called by a signal's handler, at any moment."""
        self._given_up = True
        if self._process is not None:
            self._process.kill()

    def finish(self, seconds: float) -> Path | None:
        """Wait up to `seconds` for the report; its path, None where there is none."""
        self.start()
        if self._given_up:
            self.give_up()  # again: the signal may have come while the process was being started
        if self._process is None:
            return None
        try:
            _, errors = self._process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            # Returns at once, and lets the system forget the process.
            self._process.communicate()
            log.warning("the report took longer than %g s; rljob report %s writes it", seconds, self._folder)
            return None
        if self._given_up:
            return None
        if self._process.returncode:
            log.warning("the report was not written: %s", errors.strip())
            return None
        return self._folder / REPORT_FILE


async def export_model(run_folder: Path, checkpoints: Path, adapter: bool = False) -> Path | None:
    """Write the model of the newest checkpoint into the run's folder, and beside it with `adapter` what was
    trained of it; the model's path, None where the run has no checkpoint. Raises `CheckpointError`."""
    if newest(checkpoints) is None:
        return None
    if adapter:
        await asyncio.to_thread(export_adapter, run_folder, run_folder / ADAPTER)
    destination = run_folder / MODEL
    await asyncio.to_thread(export, run_folder, destination)
    return destination
