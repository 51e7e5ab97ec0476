"""Reads the event files of a run, step by step.

Guarantees: holds the events of one step at a time; a line that is cut off or is no event is counted and left
out, the others of its file are kept.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from rljob_runtime.trace.record.event_log import Event, WorkerInfo

_STEP = "step_"
_BLOCK_BYTES = 1 << 18
_decoder = msgspec.json.Decoder(Event)


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
        for name in sorted(os.listdir(folder)):
            if name.startswith("worker_") and name.endswith(".jsonl"):
                found.extend(parse((folder / name).read_bytes(), tally))
        yield step, found


def read_blocks(events: Path, tally: Tally) -> Iterator[list[Event]]:
    """All events, some thousands at a time, in the order of `read_steps`. Nothing where the folder does not
    exist."""
    for _, folder in sorted(_step_folders(events)):
        for name in sorted(os.listdir(folder)):
            if name.startswith("worker_") and name.endswith(".jsonl"):
                with (folder / name).open("rb") as file:
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
            found.append(msgspec.json.decode(file.read_bytes(), type=WorkerInfo))
        except msgspec.DecodeError:
            continue
    return sorted(found, key=lambda worker: worker.rank)


def parse(data: bytes, tally: Tally) -> list[Event]:
    """The events in the content of one file."""
    try:
        # All lines in one call; one by one, which is slower, only where a line is damaged.
        return _decoder.decode_lines(data)
    except msgspec.DecodeError:
        return list(_parse_singly(data, tally))


def _parse_singly(data: bytes, tally: Tally) -> Iterator[Event]:
    for line in data.splitlines():
        if not line.strip():
            continue
        try:
            yield _decoder.decode(line)
        except msgspec.DecodeError:
            tally.unreadable += 1


def _step_folders(events: Path) -> Iterator[tuple[int, Path]]:
    if not events.is_dir():
        return
    for folder in events.iterdir():
        number = folder.name.removeprefix(_STEP)
        if folder.name.startswith(_STEP) and number.isdigit():
            yield int(number), folder
