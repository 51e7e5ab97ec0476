"""Reads the event files of a run, step by step.

Guarantees: holds the events of one step at a time; a line that is cut off or is no event is counted and left
out, the others of its file are kept.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from rljob_runtime.net.messages import decode_typed
from rljob_runtime.trace.record.event_log import Event, WorkerInfo

_STEP_FOLDER = re.compile("step_([0-9]{1,18})")
_BLOCK_BYTES = 1 << 18
_decoder = msgspec.json.Decoder(Event)
_worker_decoder = msgspec.json.Decoder(WorkerInfo)


@dataclass
class Tally:
    """What could not be read, counted while it is read."""

    unreadable: int = 0
    """Lines."""


def read_steps(events: Path, tally: Tally, first: int = 0) -> Iterator[tuple[int, list[Event]]]:
    """The events of every step from `first` on, steps ascending; those of a step by worker, each worker's in
    the order in which it wrote them. Nothing where the folder does not exist."""
    for step, folder in sorted(_step_folders(events)):
        if step < first:
            continue
        found: list[Event] = []
        for file in _worker_files(folder):
            found.extend(parse(file.read_bytes(), tally))
        yield step, found


def read_blocks(events: Path, tally: Tally) -> Iterator[list[Event]]:
    """All events, some thousands at a time, in the order of `read_steps`. Nothing where the folder does not
    exist."""
    for _, folder in sorted(_step_folders(events)):
        for worker_file in _worker_files(folder):
            with worker_file.open("rb") as file:
                # Whole lines, of this many bytes together.
                while lines := file.readlines(_BLOCK_BYTES):
                    if found := parse(b"".join(lines), tally):
                        yield found


def first_step(events: Path) -> int:
    """The first step of which events are there: those of earlier ones were removed, to make room; 0 where
    there are none."""
    return min((step for step, _ in _step_folders(events)), default=0)


def read_workers(events: Path) -> list[WorkerInfo]:
    """Who recorded, by rank."""
    found = []
    for file in events.glob("worker_*.json"):
        try:
            found.append(decode_typed(_worker_decoder, file.read_bytes()))
        except msgspec.DecodeError:
            continue
    return sorted(found, key=lambda worker: worker.rank)


def parse(data: bytes, tally: Tally) -> list[Event]:
    """The events in the content of one file."""
    try:
        # All lines in one call; one by one, which is slower, only where a line is damaged.
        return _decoder.decode_lines(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return list(_parse_singly(data, tally))


def _parse_singly(data: bytes, tally: Tally) -> Iterator[Event]:
    for line in data.splitlines():
        if not line.strip():
            continue
        try:
            yield decode_typed(_decoder, line)
        except msgspec.DecodeError:
            tally.unreadable += 1


def _step_folders(events: Path) -> Iterator[tuple[int, Path]]:
    if not events.is_dir():
        return
    for folder in events.iterdir():
        if (named := _STEP_FOLDER.fullmatch(folder.name)) is not None and folder.is_dir():
            yield int(named[1]), folder


def _worker_files(folder: Path) -> list[Path]:
    """The event files of a step, by name."""
    names = (name for name in os.listdir(folder) if name.startswith("worker_") and name.endswith(".jsonl"))
    return [folder / name for name in sorted(names) if (folder / name).is_file()]
