"""How long each response is: `lengths.jsonl` in the run's folder, in the form of `data.length_trace`.

Guarantees:
- a group is recorded whole, a line for each of its responses, once all of them are complete;
- no response stands there twice: where a job goes back, the groups that it generates again are cut out of the
  file;
- after each `make_room` the file has `most_bytes` at most: where it has more, every second of its groups
  goes, but for the first `FIRST` and the newest `NEWEST` of these bytes, again and again until it is half as
  large. So a run keeps its begin, which `forcedLengths` and comparisons need, and its newest part whole, and
  what is between ever more thinly; the first line has how many groups are gone. Where there is no room for
  the copy that this takes, the file grows on, with a warning;
- what is buffered reaches the file with `flush`, or with the first group `flush_seconds` later; lines are
  appended whole, so that a kill or a full disk cuts off the last line at most, which readers skip;
- a file that cannot be written ends the recording with one warning, never the work that is recorded.
"""

import errno
import logging
import os
import shutil
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from rljob_runtime.data.length_trace import LENGTHS_FILE, ResponseLine, TraceHeader
from rljob_runtime.groups.responses import Response
from rljob_runtime.net.messages import decode_typed
from rljob_runtime.samples import Prompt
from rljob_runtime.trace.record.event_log import append_line
from rljob_runtime.trace.record.thinning import thinned_between

MOST_BYTES = 256 << 20
"""Most bytes of the file: some 1.3 million responses."""
FIRST, NEWEST = 0.25, 0.125
"""Shares of them that a run's begin and its newest part have in any case."""

_log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode


class _Group(msgspec.Struct):
    """What is looked at of a line that may be cut out."""

    uid: int


_group_decoder = msgspec.json.Decoder(_Group)
_header_decoder = msgspec.json.Decoder(TraceHeader)


class LengthLog:
    """Writes a run's lengths. `begin` comes before the first `add`."""

    def __init__(
        self,
        folder: Path | None,
        header: TraceHeader,
        clock: Callable[[], float] = time.time,
        buffer_lines: int = 256,
        flush_seconds: float = 5.0,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        """`folder` is the run's; None records nothing. What is buffered is written after `buffer_lines`
        lines, or with the first group `flush_seconds` after the oldest."""
        self._path = None if folder is None else folder / LENGTHS_FILE
        self._header = header
        self._most_bytes = most_bytes
        self._thin_from = most_bytes
        """Bytes of the file above which it is thinned out: more, where that failed."""
        self._rewriting = threading.Lock()
        """Held as long as the file is written anew."""
        self._appending = threading.Lock()
        """Held while a line is appended, and while a file that was written anew takes the place of the old
        one."""
        self._clock = clock
        self._buffer_lines = buffer_lines
        self._flush_seconds = flush_seconds
        self._lines: list[bytes] = []
        self._buffered_since = 0.0

    @property
    def records(self) -> bool:
        """Whether anything is written."""
        return self._path is not None

    def begin(self, kept: Callable[[int], bool]) -> None:
        """The job begins or goes on; all groups but those whose uids are `kept` are generated again. A file
        that was recorded with another number or limit of responses, or other data, is kept under a name of
        its own."""
        self.flush()
        with self._rewriting:
            path = self._path
            if path is None:
                return
            try:
                # A kill while it was written.
                _copy_of(path).unlink(missing_ok=True)
                if path.exists() and not self._begins_alike(path):
                    path.rename(_free_name(path))
                if path.exists():
                    _cut_out(path, kept)
                else:
                    append_line(path, _encode(self._header))
            except OSError as error:
                self._give_up(path, error)

    def add(self, prompt: Prompt, responses: Sequence[Response]) -> None:
        """Record a group whose responses are complete."""
        if self._path is None:
            return
        now = self._clock()
        if not self._lines:
            self._buffered_since = now
        self._lines.extend(
            _encode(_line(prompt, index, response)) for index, response in enumerate(responses)
        )
        if len(self._lines) >= self._buffer_lines or now - self._buffered_since >= self._flush_seconds:
            self.flush()

    def flush(self) -> None:
        """Write what is buffered."""
        lines, self._lines = self._lines, []
        with self._appending:
            # Another thread may give up meanwhile.
            path = self._path
            if lines and path is not None:
                try:
                    append_line(path, b"\n".join(lines))
                except OSError as error:
                    self._give_up(path, error)

    def make_room(self) -> None:
        """Thin the file out, where it has too many bytes. Blocking, some seconds where there is something to
        do; other threads may `add` and `flush` meanwhile."""
        with self._rewriting:
            path = self._path
            if path is None:
                return
            try:
                size = path.stat().st_size
            except OSError as error:
                self._give_up(path, error)
                return
            if size <= self._thin_from:
                return
            try:
                self._thin_out(path)
                self._thin_from = self._most_bytes
            except OSError as error:
                # What is to be recorded may still fit; if not, that ends the recording.
                _log.warning("%s grows beyond %d bytes: %s", path, self._most_bytes, error.strerror)
                self._thin_from = size + self._most_bytes // 8

    def _thin_out(self, path: Path) -> None:
        # Whole lines alone: the newest may be in the middle of being appended.
        lines, upto = _lines_of(path)
        stays, gone = groups_that_stay(lines, self._most_bytes)
        if shutil.disk_usage(path.parent).free < lines[stays, 1].sum():
            # Not tried: meanwhile the copy would take the room of what others write there.
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        shorter = _copy_of(path)
        try:
            with path.open("rb") as old, shorter.open("wb") as new:
                header = decode_typed(_header_decoder, old.readline())
                header = msgspec.structs.replace(header, removed=header.removed + gone)
                new.write(_encode(header) + b"\n")
                new.writelines(line for line, stay in zip(old, stays, strict=False) if stay)
                with self._appending:
                    old.seek(upto)
                    new.write(old.read())
                    new.flush()
                    # By renaming: a kill leaves the file as it was, or as it is to be.
                    shorter.replace(path)
        finally:
            shorter.unlink(missing_ok=True)

    def _begins_alike(self, path: Path) -> bool:
        with path.open("rb") as file:
            try:
                found = decode_typed(_header_decoder, file.readline())
            except msgspec.DecodeError:
                return False
        return msgspec.structs.replace(found, removed=0) == self._header

    def _give_up(self, path: Path, error: OSError) -> None:
        _log.warning(
            "lengths of responses are not recorded from here on: %s: %s",
            error.filename or path, error.strerror,
        )  # fmt: skip
        self._path = None


def _line(prompt: Prompt, index: int, response: Response) -> ResponseLine:
    return ResponseLine(
        uid=prompt.uid,
        index=index,
        response_tokens=len(response.tokens),
        epoch=prompt.epoch,
        row=prompt.row,
        prompt_tokens=len(prompt.tokens),
        finish="stop" if response.finish == "stop" else "length",
        engine=response.engine,
        pool=response.pool,
        begun=response.began,
        seconds=response.seconds,
        moves=response.moves,
        version=response.spans[0].version if response.spans else None,
        expected=None if response.expected is None else round(response.expected),
        cut=None if response.cut is None else round(response.cut),
    )


def groups_that_stay(lines: NDArray[np.int64], most: int) -> tuple[NDArray[np.bool_], int]:
    """Which lines of a file stay where it is thinned out, and how many groups go. `lines`: shape (lines, 2),
    of each its group, -1 for a line that was cut off and goes, and its bytes; `most`: as `MOST_BYTES`.
    Pure."""
    whole = lines[:, 0] >= 0
    groups, places = np.unique(lines[whole, 0], return_inverse=True)
    bytes_of = np.bincount(places, lines[whole, 1], len(groups)).astype(np.int64)
    kept = thinned_between(bytes_of, most // 2, first=int(FIRST * most), newest=int(NEWEST * most))
    stays = np.zeros(len(lines), bool)
    stays[whole] = kept[places]
    return stays, int((~kept).sum())


def _lines_of(path: Path) -> tuple[NDArray[np.int64], int]:
    """Of each line behind the header its group and its bytes; and where the last whole line ends."""
    found, upto = array("q"), 0
    with path.open("rb") as file:
        upto += len(file.readline())
        for line in file:
            if not line.endswith(b"\n"):
                break
            try:
                found.append(decode_typed(_group_decoder, line).uid)
            except msgspec.DecodeError:
                found.append(-1)
            found.append(len(line))
            upto += len(line)
    return np.array(found, np.int64).reshape(-1, 2), upto


def _cut_out(path: Path, kept: Callable[[int], bool]) -> None:
    """Leave the header and the lines of the groups that are `kept`."""
    shorter = _copy_of(path)
    try:
        with path.open("rb") as old, shorter.open("wb") as new:
            new.write(old.readline())
            new.writelines(line for line in old if _stays(line, kept))
        # By renaming: a kill leaves the file as it was, or as it is to be.
        shorter.replace(path)
    finally:
        shorter.unlink(missing_ok=True)


def _copy_of(path: Path) -> Path:
    """What takes the file's place when it is written."""
    return path.with_suffix(".tmp")


def _stays(line: bytes, kept: Callable[[int], bool]) -> bool:
    # The end of a file that a kill has cut off may be a line without its end.
    if not line.endswith(b"\n"):
        return False
    try:
        return kept(decode_typed(_group_decoder, line).uid)
    except msgspec.DecodeError:
        return False


def _free_name(path: Path) -> Path:
    number = 1
    while (moved := path.with_suffix(f".{number}.jsonl")).exists():
        number += 1
    return moved
