"""`starts.jsonl` in the run's folder: when training began, and each time that it began again.

A run is started once and may be interrupted many times: the job is stopped or killed and resumed, the trainer
is lost and brought back from a checkpoint, or stopped to be given another number of workers. The report needs
to know each of these moments: what was done before them may have been thrown away, and the time before the
first of them, in which engines start and models load, is no step's.

Guarantees: one whole line for each beginning, in order of time; a line that was cut off is left out.
"""

from pathlib import Path
from typing import Literal

import msgspec

from rljob_runtime.trace.record.event_log import Time, append_line
from rljob_runtime.trace.record.whole_lines import read_all

STARTS_FILE = "starts.jsonl"

Cause = Literal["new", "resumed", "trainer lost", "trainer resized"]


class Start(msgspec.Struct, frozen=True):
    """A line of the file."""

    time: Time
    """When the first step to come could begin: trainer and engines were ready."""
    step: int
    """The first step to come."""
    cause: Cause
    """Why training began: a new run, or what had interrupted it."""
    why: str = ""
    """What broke, in words; empty where nothing did."""
    stopped: Time | None = None
    """When training was interrupted; for a resumed run, when its last step had been recorded. None for a new
    run, and where no step had been."""
    repeated: int = 0
    """Steps that had been trained before the interruption and are trained again."""

    @property
    def goes_back(self) -> bool:
        """Whether work after `step` that was done before `time` was thrown away. A trainer that is resized
        writes a checkpoint before, and the engines go on meanwhile."""
        return self.cause in ("resumed", "trainer lost")


_decoder = msgspec.json.Decoder(Start)


def append_start(run_folder: Path, start: Start) -> None:
    """Add a line; raises `OSError`."""
    append_line(run_folder / STARTS_FILE, msgspec.json.encode(start))


def read_starts(run_folder: Path) -> list[Start]:
    """All beginnings, in order of time; empty where there is no file."""
    return read_all(run_folder / STARTS_FILE, _decoder)
