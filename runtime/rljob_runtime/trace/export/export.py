"""Writes a run as a file for other tools: of the Trace Event Format, or with spans of OpenTelemetry.

Guarantees: the events are read and written in blocks, so that memory does not grow with their number, only
with that of the steps; the file is whole, or as it was.
"""

import gzip
import itertools
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, TypeAlias

import msgspec

from rljob_runtime.given_files import no_file, no_place, unfinished_name
from rljob_runtime.trace.analyse.event_files import Tally, read_blocks, read_workers
from rljob_runtime.trace.analyse.windows import windows_from_metrics
from rljob_runtime.trace.export.otlp import Spans, TracesData
from rljob_runtime.trace.export.trace_event import Record, Tracks
from rljob_runtime.trace.record.event_log import EVENTS_FOLDER
from rljob_runtime.trace.record.metrics_log import METRICS_FILE, read_metrics
from rljob_runtime.trace.record.start_log import read_starts


class NothingToExport(Exception):
    """The run has no events; the message says so."""


class NoFile(Exception):
    """What would be replaced is something else than an earlier export, or there is no folder for it; the
    message says so."""


Format: TypeAlias = Literal["trace-event", "otlp"]
"""The Trace Event Format, one JSON document; or OTLP in JSON, a line for each block of spans."""
FILES: Mapping[Format, str] = {"trace-event": "trace.json.gz", "otlp": "trace.otlp.jsonl"}
"""What a file is called in a run's folder."""


@dataclass(frozen=True)
class _Shape:
    """What stands around the parts of a file."""

    head: bytes
    between: bytes
    tail: bytes


_SHAPES: Mapping[Format, _Shape] = {
    "trace-event": _Shape(b'{"displayTimeUnit":"ms","traceEvents":[\n', b",\n", b"\n]}\n"),
    "otlp": _Shape(b"", b"\n", b"\n"),
}
_BEGINS = (b'{"displayTimeUnit"', b'{"resourceSpans"')
"""How what is written begins."""
_LOOKED_AT = 32


def _check_kind(file: Path) -> None:
    """Raise `NoFile` where its folder is not, or what is there must not be replaced."""
    if (why := no_place(file, "--output") or no_file(file, "--output")) is not None:
        raise NoFile(f"{why}.")


def _check_export(folder: Path, file: Path) -> None:
    """Raise `NoFile` where a file is there that no export has written."""
    there = file.resolve()
    if not there.is_file():
        return
    with there.open("rb") as plain, gzip.GzipFile(fileobj=plain) as packed:
        begin = plain.read(_LOOKED_AT)
        plain.seek(0)
        if begin.startswith(b"\x1f\x8b"):
            with suppress(OSError, EOFError):
                begin = packed.read(_LOOKED_AT)
    if begin and not begin.startswith(_BEGINS):
        own = there.is_relative_to(folder.resolve())
        what = "one of the run's own files" if own else "there already, and is no export"
        raise NoFile(f"{file} is {what}, and would be written over: name another with --output.")


def export_trace(folder: Path, file: Path, form: Format = "trace-event") -> tuple[int, Tally]:
    """Write the run in `folder` to `file`, compressed where its name ends in .gz; how many records or spans
    there are, and what could not be read. Raises `NothingToExport`, `NoFile`, and `OSError`."""
    _check_kind(file)
    _check_export(folder, file)
    tally = Tally()
    parts = _parts(folder, form, tally)
    unfinished = unfinished_name(file)
    try:
        with _opened(unfinished, file.suffix == ".gz") as out:
            count = _write(parts, form, out)
        os.replace(unfinished, file)
    except OSError as error:
        # Where the disk is full, it has no name.
        read = error.filename not in (None, str(unfinished))
        raise OSError(error.errno, error.strerror, error.filename if read else str(file)) from error
    finally:
        unfinished.unlink(missing_ok=True)
    return count, tally


def print_trace(folder: Path, out: IO[bytes], form: Format = "trace-event") -> tuple[int, Tally]:
    """The same to what is open, never compressed. Raises `NothingToExport`, `OSError`."""
    tally = Tally()
    return _write(_parts(folder, form, tally), form, out), tally


def _parts(folder: Path, form: Format, tally: Tally) -> Iterator[Record | TracesData]:
    """What the run is written in. Raises `NothingToExport` where there is nothing."""
    parts = _spans(folder, tally) if form == "otlp" else _records(folder, tally)
    first = next(parts, None)
    if first is None:
        raise NothingToExport(f"{folder / EVENTS_FOLDER} has no {tally.why_no('event')}")
    return itertools.chain((first,), parts)


def _write(parts: Iterator[Record | TracesData], form: Format, out: IO[bytes] | gzip.GzipFile) -> int:
    """Write them; how many records or spans there are. There is one part at least."""
    encode, shape = msgspec.json.Encoder().encode, _SHAPES[form]
    before, count = shape.head, 0
    for part in parts:
        out.write(before + encode(part))
        before, count = shape.between, count + _size(part)
    out.write(shape.tail)
    return count


def _size(part: Record | TracesData) -> int:
    """Records or spans in a part of a file."""
    if "resourceSpans" not in part:
        return 1
    return sum(len(scope["spans"]) for each in part["resourceSpans"] for scope in each["scopeSpans"])


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


def _spans(folder: Path, tally: Tally) -> Iterator[TracesData]:
    """All spans, in blocks of one worker; none where there are no events."""
    blocks = read_blocks(folder / EVENTS_FOLDER, tally)
    first = next(blocks, None)
    if first is None:
        return
    windows = windows_from_metrics(read_metrics(folder / METRICS_FILE), read_starts(folder))
    spans = Spans(folder.resolve().name, windows, read_workers(folder / EVENTS_FOLDER))
    if windows:
        yield spans.of_steps()
    for block in itertools.chain((first,), blocks):
        if (found := spans.of_events(block)) is not None:
            yield found
