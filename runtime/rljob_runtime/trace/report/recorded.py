"""Whether a run's folder holds anything that a report could be made of: a page without a figure would say
that a run did nothing, where its records are elsewhere, or damaged."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from rljob_runtime.trace.analyse.analysis import Analysis
from rljob_runtime.trace.analyse.event_files import Tally, read_blocks
from rljob_runtime.trace.record.evaluation_log import EVALUATIONS_FILE
from rljob_runtime.trace.record.event_log import EVENTS_FOLDER
from rljob_runtime.trace.record.metrics_log import METRICS_FILE
from rljob_runtime.trace.record.sample_log import SAMPLES_FILE, Samples
from rljob_runtime.trace.record.start_log import STARTS_FILE

_LOOKED_FOR = ", ".join((METRICS_FILE, STARTS_FILE, SAMPLES_FILE, EVALUATIONS_FILE))


class NothingRecorded(Exception):
    """There is nothing to report; the message says what was looked for."""


def check_recorded(
    run_folder: Path, analysis: Analysis, samples: Samples, others: Iterable[Sequence[object]]
) -> None:
    """Raise `NothingRecorded` where no line of the run's records could be read. `others`: what was read of
    other files."""
    metrics = analysis.metrics
    if metrics.rows or analysis.starts or samples.rows or analysis.predictions.count or any(others):
        return
    tally = Tally()
    if any(read_blocks(run_folder / EVENTS_FOLDER, tally)):
        return
    damaged = metrics.unreadable + samples.unreadable + tally.unreadable
    lines = f"{damaged:,} line{' is' if damaged == 1 else 's are'} damaged, or of another release"
    raise NothingRecorded(
        f"{run_folder} has nothing that a report could be made of: {_LOOKED_FOR} and {EVENTS_FOLDER} were "
        f"looked for, and no line of them can be read{f' ({lines})' if damaged else ''}."
    )
