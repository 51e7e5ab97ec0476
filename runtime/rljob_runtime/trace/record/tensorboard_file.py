"""TensorBoard's files of a run: scalars and texts, in parts.

Guarantees:
- the parts have `MOST_BYTES` together at most, but for texts and marks of restarts, which are few: before
  they would have more, every second point of each curve goes, of all but the newest, again and again until
  they have half. The two newest parts are never touched: TensorBoard reads files in the order of their names,
  and is through with those before;
- a part is replaced whole;
- what cannot be written ends the recording with one warning, never the work that is recorded.
"""

import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rljob_runtime.trace.record.thinning import thinned_between

_log = logging.getLogger(__name__)

TENSORBOARD_FOLDER = "tensorboard"
MOST_BYTES = 64 << 20
"""Most bytes of all parts."""
_PARTS = 8
"""Parts into which so many bytes are cut."""
_FRAME = 16
"""Bytes around each record: its length and two checksums."""


class TensorBoardFile:
    """Writes them as they come."""

    def __init__(self, folder: Path, clock: Callable[[], float], most_bytes: int = MOST_BYTES) -> None:
        self._clock = clock
        self._folder = folder
        self._most_bytes = most_bytes
        self._records: Any = None
        self._size = 0
        """Of the part that is written, in bytes."""
        self._begin_part()

    def scalars(self, step: int, found: Mapping[str, float]) -> None:
        """Add a point to each curve."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in found.items()]
        self._add(step=step, summary=Summary(value=values))

    def texts(self, step: int, found: Mapping[str, str]) -> None:
        """Add a text, in Markdown, to each list of texts."""
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.types_pb2 import DT_STRING

        about = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        values = [
            Summary.Value(
                tag=tag, metadata=about, tensor=TensorProto(dtype=DT_STRING, string_val=[text.encode()])
            )
            for tag, text in found.items()
        ]
        self._add(step=step, summary=Summary(value=values))

    def supersede(self, step: int) -> None:
        """The run starts again at `step`: TensorBoard drops what it has from there on."""
        from tensorboard.compat.proto.event_pb2 import SessionLog

        self._add(step=step, session_log=SessionLog(status=SessionLog.START))

    def close(self) -> None:
        """Everything is written by now."""
        if self._records is not None:
            self._records.close()
            self._records = None

    def _add(self, **event: Any) -> None:
        """Write an `Event` of these fields."""
        from tensorboard.compat.proto.event_pb2 import Event

        if self._records is None:
            return
        text = Event(wall_time=self._clock(), **event).SerializeToString()
        try:
            self._records.write(text)
            self._records.flush()
        except OSError as error:
            self._give_up(error)
            return
        self._size += len(text) + _FRAME
        if self._size >= self._most_bytes // _PARTS:
            self.close()
            self._begin_part()

    def _begin_part(self) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._make_room()
            # TensorBoard reads its files in the order of their names.
            # The second number is for two parts within a second.
            number = f"{int(time.time()):010d}.{len(os.listdir(self._folder)):04d}"
            file = self._folder / f"events.out.tfevents.{number}.{socket.gethostname()}.{os.getpid()}"
            self._records = RecordWriter(file.open("xb"))
        except OSError as error:
            self._give_up(error)
        self._size = 0
        # The first record of an event file. From version 2 on points are superseded by a record of their own
        # (`supersede`), not by any step that goes back.
        self._add(file_version="brain.Event:2")

    def _make_room(self) -> None:
        """Thin out the parts that are closed, for one more."""
        parts = sorted(self._folder.glob("events.out.tfevents.*"))
        size = sum(part.stat().st_size for part in parts)
        if size <= self._most_bytes - self._most_bytes // _PARTS:
            return
        # TensorBoard may still be reading the newest.
        thin_out(parts[:-1], self._most_bytes // 2 - parts[-1].stat().st_size)

    def _give_up(self, error: OSError) -> None:
        _log.warning(
            "nothing more is written for TensorBoard to %s (%s); metrics.jsonl goes on",
            self._folder, error.strerror,
        )  # fmt: skip
        self._records = None


def thin_out(parts: Sequence[Path], wanted: int) -> None:
    """Have the points of these files, in the order of their names, take `wanted` bytes: of each kind of
    record (those of steps, those of evaluations) every second step goes, again and again, but for the newest
    quarter. Raises `OSError`."""
    sizes: dict[str, dict[int, int]] = {}
    for part in parts:
        for record in _records(part):
            if (point := _point(record)) is not None:
                of_kind = sizes.setdefault(point[0], {})
                of_kind[point[1]] = of_kind.get(point[1], 0) + len(record)
    total = sum(sum(of_kind.values()) for of_kind in sizes.values())
    kept: set[tuple[str, int]] = set()
    for kind, of_kind in sizes.items():
        steps = sorted(of_kind)
        bytes_of = np.array([of_kind[step] for step in steps])
        share = max(0, wanted) * int(bytes_of.sum()) // total
        stays = thinned_between(bytes_of, share, first=0, newest=share // 4)
        kept |= {(kind, step) for step, stay in zip(steps, stays, strict=True) if stay}
    for part in parts:
        # A name that TensorBoard does not look at.
        shorter = part.with_name(".thinner")
        try:
            with shorter.open("wb") as file:
                file.writelines(
                    record for record in _records(part) if (point := _point(record)) is None or point in kept
                )
            # By renaming: a kill leaves the file as it was, or as it is to be.
            shorter.replace(part)
        finally:
            shorter.unlink(missing_ok=True)


def _records(part: Path) -> Iterator[bytes]:
    """The whole records of a file, with their frames: 8 bytes that have the length of what is recorded, 4 of
    a checksum, what is recorded, 4 of a checksum."""
    with part.open("rb") as file:
        while len(head := file.read(12)) == 12:
            rest = file.read(int.from_bytes(head[:8], "little") + 4)
            if len(rest) < int.from_bytes(head[:8], "little") + 4:
                # Cut off by a kill.
                return
            yield head + rest


def _point(record: bytes) -> tuple[str, int] | None:
    """Of a record of scalars, what kind they are, by the first part of the first tag, and their step; None
    for any other."""
    from google.protobuf.message import DecodeError
    from tensorboard.compat.proto.event_pb2 import Event

    try:
        event = Event.FromString(record[12:-4])
    except DecodeError:
        return None
    if not event.HasField("summary") or not event.summary.value:
        return None
    first = event.summary.value[0]
    return (first.tag.partition("/")[0], event.step) if first.HasField("simple_value") else None
