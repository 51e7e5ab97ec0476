"""What loggers did not get: `unsent.jsonl` in the run's folder, a JSON object for each logger and each end of
a driver at which something was not sent.

Guarantees: a line is appended whole, in one write; what cannot be read is skipped.
"""

from pathlib import Path

import msgspec

from rljob_runtime.trace.record.event_log import append_line
from rljob_runtime.trace.record.whole_lines import read_all

UNSENT_FILE = "unsent.jsonl"
KEPT = "metrics.jsonl and evaluations.jsonl have them (of a long run, the newer ones)"
"""Where what was not sent stands, in words: both files are thinned out, of all but their newest part."""


class Unsent(msgspec.Struct, frozen=True):
    """What one logger did not get, of one start of the driver."""

    logger: str
    """wandb, mlflow or webhook."""
    time: float
    """When it was given up, seconds since the epoch."""
    points: int
    """Steps and evaluations."""
    why: str
    """How sending failed first since it last worked, or why points were refused, in one line."""

    @property
    def sentence(self) -> str:
        """For the end of the run, and its report."""
        one = self.points == 1
        what = "1 step or evaluation was" if one else f"{self.points:,} steps or evaluations were"
        return f"{self.logger}: {what} not sent ({self.why}); {KEPT}."


_decoder = msgspec.json.Decoder(Unsent)


def append_unsent(run_folder: Path, unsent: Unsent) -> None:
    """Add a line; raises `OSError`."""
    append_line(run_folder / UNSENT_FILE, msgspec.json.encode(unsent))


def read_unsent(run_folder: Path) -> list[Unsent]:
    """All lines, in order of time; empty where there is no file."""
    return read_all(run_folder / UNSENT_FILE, _decoder)
