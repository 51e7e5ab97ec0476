"""Reads the event files of a run, step by step.

Guarantees: holds the events of one step at a time; a line that is cut off or is no event is counted and left
out, the others of its file are kept. It is told where the first of them stands, and what is wrong with it.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from rljob_runtime.net.messages import decode_typed
from rljob_runtime.trace.record.event_extra import wrong_extra
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
    first: str = ""
    """Where the first of them stands, and what is wrong with it."""

    @property
    def left_out(self) -> str:
        """What a person is told of them; nothing where there are none."""
        if not self.unreadable:
            return ""
        if self.unreadable == 1:
            return f"1 line is no event and is left out: {self.first}"
        return f"{self.unreadable:,} lines are no events and are left out; the first: {self.first}"

    def why_no(self, event: str) -> str:
        """Why a run has no event of some kind, for the end of a sentence that says so."""
        if self.unreadable:
            return f"{event} that can be read: {self.left_out}."
        return f"{event}: was training.profiling.events false?"

    def leave_out(self, file: Path | None, number: int, why: str) -> None:
        """Count a line of `file`, and remember the first."""
        self.unreadable += 1
        self.first = self.first or f"{file or ''} line {number}: {why}"


def read_steps(events: Path, tally: Tally, first: int = 0) -> Iterator[tuple[int, list[Event]]]:
    """The events of every step from `first` on, steps ascending; those of a step by worker, each worker's in
    the order in which it wrote them. Nothing where the folder does not exist."""
    for step, folder in sorted(_step_folders(events)):
        if step < first:
            continue
        found: list[Event] = []
        for file in _worker_files(folder):
            found.extend(parse(file.read_bytes(), tally, file))
        yield step, found


def read_blocks(events: Path, tally: Tally) -> Iterator[list[Event]]:
    """All events, some thousands at a time, in the order of `read_steps`. Nothing where the folder does not
    exist."""
    for _, folder in sorted(_step_folders(events)):
        for worker_file in _worker_files(folder):
            with worker_file.open("rb") as file:
                before = 0
                # Whole lines, of this many bytes together.
                while lines := file.readlines(_BLOCK_BYTES):
                    if found := parse(b"".join(lines), tally, worker_file, before):
                        yield found
                    before += len(lines)


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


def parse(data: bytes, tally: Tally, file: Path | None = None, before: int = 0) -> list[Event]:
    """The events in the content of `file`, or in the part of it that comes after `before` lines."""
    try:
        # All lines in one call; one by one, which is slower, only where a line is damaged.
        found = _decoder.decode_lines(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    else:
        if wrong_extra(found) is None:
            return found
    return list(_parse_singly(data, tally, file, before))


def _parse_singly(data: bytes, tally: Tally, file: Path | None, before: int) -> Iterator[Event]:
    for number, line in enumerate(data.split(b"\n"), before + 1):
        if not line.strip():
            continue
        try:
            event = decode_typed(_decoder, line)
        except msgspec.DecodeError as error:
            tally.leave_out(file, number, str(error))
            continue
        if (wrong := wrong_extra([event])) is None:
            yield event
        else:
            tally.leave_out(file, number, wrong.replace("`$[0]", "`$.extra"))


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
