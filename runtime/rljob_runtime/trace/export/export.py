"""Writes a run as a file of the Trace Event Format.

Guarantees: the events are read and written in blocks, so that memory does not grow with their number, only
with that of the steps; the file is whole, or as it was.
"""

import gzip
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec

from rljob_runtime.trace.analyse.event_files import Tally, read_blocks
from rljob_runtime.trace.analyse.windows import windows_from_metrics
from rljob_runtime.trace.export.trace_event import Record, Tracks
from rljob_runtime.trace.record.event_log import EVENTS_FOLDER
from rljob_runtime.trace.record.metrics_log import METRICS_FILE, read_metrics
from rljob_runtime.trace.record.start_log import read_starts


class NothingToExport(Exception):
    """The run has no events; the message says so."""


def export_trace(folder: Path, file: Path) -> tuple[int, Tally]:
    """Write the run in `folder` to `file`, compressed where its name ends in .gz; how many records there are,
    and what could not be read. Raises `NothingToExport`, and `OSError`."""
    tally = Tally()
    records = _records(folder, tally)
    first = next(records, None)
    if first is None:
        raise NothingToExport(f"{folder / EVENTS_FOLDER} has no event: was training.profiling.events false?")
    unfinished = file.with_name(f"{file.name}.part")
    encode = msgspec.json.Encoder().encode
    count = 1
    try:
        with _opened(unfinished, file.suffix == ".gz") as out:
            out.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
            out.write(encode(first))
            for record in records:
                out.write(b",\n" + encode(record))
                count += 1
            out.write(b"\n]}\n")
        os.replace(unfinished, file)
    finally:
        unfinished.unlink(missing_ok=True)
    return count, tally


def _opened(file: Path, compressed: bool) -> IO[bytes] | gzip.GzipFile:
    if compressed:
        return gzip.GzipFile(file, "wb", compresslevel=5)
    return file.open("wb", buffering=1 << 20)


def _records(folder: Path, tally: Tally) -> Iterator[Record]:
    """All records; none where there are no events."""
    tracks = Tracks()
    blocks = read_blocks(folder / EVENTS_FOLDER, tally)
    first = next(blocks, None)
    if first is None:
        return
    metrics = read_metrics(folder / METRICS_FILE)
    for window in windows_from_metrics(metrics, read_starts(folder)):
        yield from tracks.of_window(window)
    for row in metrics.rows:
        yield from tracks.of_metrics(row)
    del metrics
    for block in itertools.chain((first,), blocks):
        for event in block:
            yield from tracks.of_event(event)
