"""How long the responses of a run were: the file `lengths.jsonl` in the run's folder.

The first line is a `TraceHeader`, each further one a `ResponseLine`. Of a line that is made by hand, only
`uid`, `index` and `response_tokens` are needed, and the header then needs no `data`: such a trace fits any
data set.

Guarantees of reading: a line that was cut off (a kill, a full disk) is counted and left out; anything else
that is wrong raises `LengthTraceError`, which names the file and the line. Pure but for reading the file.
"""

import os
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from rljob_runtime.data.errors import COMPRESSED, GZIP, DataError
from rljob_runtime.data.fingerprint import DataFingerprint
from rljob_runtime.given_files import open_regular

LENGTHS_FILE = "lengths.jsonl"
"""Name of the file in a run's folder."""
FORMAT = "rljob-lengths-1"
"""What the header calls the file's format."""

# What the arrays of a `LengthTrace` hold.
_Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_Tokens = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


class LengthTraceError(DataError):
    """A file cannot be used as a length trace; the message says why."""


class TraceHeader(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="format", tag=FORMAT):
    """What the lengths were recorded from."""

    samples_per_prompt: _Tokens
    """Responses to one prompt."""
    max_response_tokens: _Tokens
    """Longest response that the run allowed, in tokens."""
    data: DataFingerprint | None = None
    """The prompts that the uids stand for; None where the lengths fit any."""
    removed: _Number = 0
    """Groups whose lines were taken out again, to keep the file small."""


# Without gc: no line is in a cycle, and a run has millions of them.
class ResponseLine(msgspec.Struct, frozen=True, gc=False):
    """One response."""

    uid: _Number
    """Its group: the position of the prompt in the job's sequence."""
    index: _Count
    """Its place in the group, from 0."""
    response_tokens: _Tokens
    epoch: _Count = 0
    row: _Number | None = None
    """Row of the data set. None: one of its own; were it any other's, two prompts would count as one in two
    epochs."""
    prompt_tokens: _Count = 0
    finish: Literal["stop", "length"] = "length"
    engine: str = ""
    """Name of the engine that finished it."""
    pool: str = ""
    """The engine's pool, "fast" or "heavy"."""
    begun: float | None = None
    """When it was asked for, in seconds since the epoch."""
    seconds: float | None = None
    """From then to its last token, waiting for an engine included."""
    moves: _Count = 0
    """How often it went on at another engine than before."""
    version: int | None = None
    """Version of the weights that its first token came from."""
    expected: _Count | None = None
    """Tokens that routing expected of it when it was placed on its first engine; None where it expected
    nothing in particular."""
    cut: _Count | None = None
    """Tokens from which on it would have counted as long then; None where none would have."""


@dataclass(frozen=True)
class LengthTrace:
    """A trace as arrays: a row for each prompt, in order of uids, a column for each of its responses.

    Prompts of which a response is missing are left out, such as those that were under way when the run
    ended, and counted."""

    header: TraceHeader
    uids: NDArray[np.int64]
    """Shape (prompts,), ascending."""
    rows: NDArray[np.int64]
    """Shape (prompts,): row of the data set; equal rows are the same prompt in another epoch."""
    prompt_tokens: NDArray[np.int32]
    """Shape (prompts,)."""
    tokens: NDArray[np.int32]
    """Shape (prompts, samples): length of each response."""
    begun: NDArray[np.float64]
    """Shape (prompts, samples), seconds since the epoch: when each response was asked for; NaN where the
    trace does not say."""
    seconds: NDArray[np.float64]
    """Shape (prompts, samples): from then to the last token; NaN where the trace does not say."""
    lines: NDArray[np.int64]
    """Shape (prompts, samples): number of each response's line, from 1; where only the file's newest part was
    read, not its number in the file."""
    incomplete: int
    """Prompts that were left out."""
    first_incomplete: int
    """Uid of the first of them; 0 where there is none."""
    unreadable: int
    """Lines that were cut off."""
    first_unreadable: int
    """Number of the first of them, from 1; 0 where there is none."""

    @property
    def left_out(self) -> str:
        """What is told of lines that were cut off; nothing where there are none."""
        if not self.unreadable:
            return ""
        if self.unreadable == 1:
            return f"line {self.first_unreadable}, which is no whole JSON object"
        return f"{self.unreadable:,} lines that are no whole JSON objects, line {self.first_unreadable} first"

    @property
    def covered(self) -> int:
        """How many prompts from the first one on (uid 0, 1, …) the trace has without a gap."""
        gaps = np.flatnonzero(self.uids != np.arange(len(self.uids)))
        return int(gaps[0]) if len(gaps) else len(self.uids)


def read_length_trace(path: Path, newest: int | None = None) -> LengthTrace:
    """The trace at `path`; of a file with more than `newest` bytes only what is in the last ones, where that
    is given. Raises `LengthTraceError`."""
    try:
        with open_regular(path) as file:
            columns = _Columns(path, _header(path, file.readline(_HEADER_BYTES)))
            begin = file.tell()
            if newest is not None and (left := file.seek(0, os.SEEK_END) - newest) > begin:
                file.seek(left)
                # The rest of a line that begins before.
                file.readline()
            else:
                file.seek(begin)
            for line in file:
                columns.add(line)
    except OSError as error:
        raise LengthTraceError(f"{path} cannot be read: {error.strerror or error}") from error
    return columns.trace()


def read_header(path: Path) -> TraceHeader:
    """The first line of the trace at `path`. Raises `LengthTraceError`."""
    try:
        with open_regular(path) as file:
            return _header(path, file.readline(_HEADER_BYTES))
    except OSError as error:
        raise LengthTraceError(f"{path} cannot be read: {error.strerror or error}") from error


_HEADER_BYTES = 1 << 20
"""Longest first line that is read, of what may be any file."""
_decode_header = msgspec.json.Decoder(TraceHeader).decode
_decode_line = msgspec.json.Decoder(ResponseLine).decode


def _header(path: Path, line: bytes) -> TraceHeader:
    try:
        return _decode_header(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LengthTraceError(
            f"{path} is no length trace: its first line must be a JSON object with format: {FORMAT}, "
            f"samples_per_prompt and max_response_tokens ({_what(line, error)}); {LENGTHS_FILE} in a run's "
            "folder is one"
        ) from error


def _what(line: bytes, error: Exception) -> str:
    """What is wrong with a first line."""
    if not line.strip():
        return "it is empty"
    if line.startswith(GZIP):
        return COMPRESSED
    return str(error)


class _Columns:
    """The lines read so far, as columns: a run has millions of them."""

    def __init__(self, path: Path, header: TraceHeader) -> None:
        self._path = path
        self._header = header
        self._number = 1
        """Of the line read last, from 1."""
        self._unreadable = self._first_unreadable = 0
        self._numbers = array("q")
        """Of each line that is kept."""
        self._uids, self._rows, self._indexes = array("q"), array("q"), array("q")
        self._prompt_tokens, self._tokens = array("q"), array("q")
        self._begun, self._seconds = array("d"), array("d")

    def add(self, text: bytes) -> None:
        """Take the next line."""
        self._number += 1
        try:
            line = _decode_line(text)
        except msgspec.ValidationError as error:
            raise self._wrong(str(error)) from error
        except RecursionError as error:
            raise self._wrong("its values are nested too deeply") from error
        except (msgspec.DecodeError, UnicodeDecodeError):
            self._unreadable += 1
            self._first_unreadable = self._first_unreadable or self._number
            return
        header = self._header
        if line.index >= header.samples_per_prompt:
            raise self._wrong(
                f"response {line.index} of prompt {line.uid}: the header has {header.samples_per_prompt} "
                f"responses to a prompt, numbered from 0"
            )
        if line.response_tokens > header.max_response_tokens:
            raise self._wrong(
                f"{line.response_tokens} tokens, and the header allows {header.max_response_tokens}"
            )
        self._numbers.append(self._number)
        self._uids.append(line.uid)
        self._rows.append(line.uid if line.row is None else line.row)
        self._indexes.append(line.index)
        self._prompt_tokens.append(line.prompt_tokens)
        self._tokens.append(line.response_tokens)
        self._begun.append(np.nan if line.begun is None else line.begun)
        self._seconds.append(np.nan if line.seconds is None else line.seconds)

    def trace(self) -> LengthTrace:
        """All lines as arrays. Raises `LengthTraceError`."""
        samples = self._header.samples_per_prompt
        uids, indexes = np.array(self._uids), np.array(self._indexes)
        order = np.lexsort((indexes, uids))
        uids, indexes = uids[order], indexes[order]
        twice = np.flatnonzero((np.diff(uids) == 0) & (np.diff(indexes) == 0))
        if len(twice):
            uid, index = uids[twice[0]], indexes[twice[0]]
            # The order is stable: of like ones the later line comes second.
            first, self._number = (self._numbers[order[twice[0] + place]] for place in (0, 1))
            raise self._wrong(f"response {index} of prompt {uid} stands in line {first} already")
        # Without duplicates a prompt has so many lines only if it has each of them.
        prompts, counts = np.unique(uids, return_counts=True)
        complete = counts == samples
        whole = np.repeat(complete, counts)

        self._check_prompts(order, uids)

        def column(values: "array[Any]", kind: type[Any]) -> NDArray[Any]:
            found: NDArray[Any] = np.array(values, kind)[order][whole].reshape(-1, samples)
            return found

        return LengthTrace(
            header=self._header,
            uids=prompts[complete],
            rows=column(self._rows, np.int64)[:, 0],
            prompt_tokens=column(self._prompt_tokens, np.int32)[:, 0],
            tokens=column(self._tokens, np.int32),
            begun=column(self._begun, np.float64),
            seconds=column(self._seconds, np.float64),
            lines=column(self._numbers, np.int64),
            incomplete=int((~complete).sum()),
            first_incomplete=0 if complete.all() else int(prompts[complete.argmin()]),
            unreadable=self._unreadable,
            first_unreadable=self._first_unreadable,
        )

    def _check_prompts(self, order: NDArray[np.int64], uids: NDArray[np.int64]) -> None:
        """All lines of a prompt say the same of it, where they say anything. `order`: of the lines by
        uids."""
        for name, column in (("row", self._rows), ("prompt_tokens", self._prompt_tokens)):
            values = np.array(column)[order]
            # No prompt has 0 tokens: such a line does not say.
            said_at = np.flatnonzero(values) if name == "prompt_tokens" else np.arange(len(values))
            other = np.flatnonzero((np.diff(uids[said_at]) == 0) & (np.diff(values[said_at]) != 0))
            if len(other):
                before, at = (int(said_at[other[0] + place]) for place in (0, 1))
                first, self._number = sorted(self._numbers[order[place]] for place in (before, at))
                said = {self._numbers[order[place]]: int(values[place]) for place in (before, at)}
                raise self._wrong(
                    f"{name} {said[self._number]} of prompt {uids[at]}, and line {first} has "
                    f"{said[first]}: all responses to a prompt have one"
                )

    def _wrong(self, why: str) -> LengthTraceError:
        return LengthTraceError(f"{self._path}:{self._number}: {why}")
