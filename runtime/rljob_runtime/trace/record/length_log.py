"""How long each response is: `lengths.jsonl` in the run's folder, in the form of `data.length_trace`.

Guarantees:
- a group is recorded whole, a line for each of its responses, once all of them are complete;
- no response stands there twice: where a job goes back, the groups that it generates again are cut out of the
  file;
- what is buffered reaches the file with `flush`, or with the first group `flush_seconds` later; lines are
  appended whole, so that a kill or a full disk cuts off the last line at most, which readers skip;
- a file that cannot be written ends the recording with one warning, never the work that is recorded.
"""

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from rljob_runtime.data.length_trace import LENGTHS_FILE, ResponseLine, TraceHeader
from rljob_runtime.groups.responses import Response
from rljob_runtime.samples import Prompt
from rljob_runtime.trace.record.event_log import append_line

_log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode


class _Group(msgspec.Struct):
    """What is looked at of a line that may be cut out."""

    uid: int


_group_of = msgspec.json.Decoder(_Group).decode


class LengthLog:
    """Writes a run's lengths. `begin` comes before the first `add`."""

    def __init__(
        self,
        folder: Path | None,
        header: TraceHeader,
        clock: Callable[[], float] = time.time,
        buffer_lines: int = 256,
        flush_seconds: float = 5.0,
    ) -> None:
        """`folder` is the run's; None records nothing. What is buffered is written after `buffer_lines`
        lines, or with the first group `flush_seconds` after the oldest."""
        self._path = None if folder is None else folder / LENGTHS_FILE
        self._header = _encode(header)
        self._clock = clock
        self._buffer_lines = buffer_lines
        self._flush_seconds = flush_seconds
        self._lines: list[bytes] = []
        self._buffered_since = 0.0

    def begin(self, kept: Callable[[int], bool]) -> None:
        """The job begins or goes on; all groups but those whose uids are `kept` are generated again. A file
        that was recorded with another number or limit of responses, or other data, is kept under a name of
        its own."""
        self.flush()
        if self._path is None:
            return
        try:
            if not self._path.exists():
                append_line(self._path, self._header)
            elif not self._begins_alike(self._path):
                self._path.rename(_free_name(self._path))
                append_line(self._path, self._header)
            else:
                _cut_out(self._path, kept)
        except OSError as error:
            self._give_up(error)

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
        if lines and self._path is not None:
            try:
                append_line(self._path, b"\n".join(lines))
            except OSError as error:
                self._give_up(error)

    def _begins_alike(self, path: Path) -> bool:
        with path.open("rb") as file:
            return file.readline().rstrip(b"\n") == self._header

    def _give_up(self, error: OSError) -> None:
        _log.warning(
            "lengths of responses are not recorded from here on: %s: %s",
            error.filename or self._path, error.strerror,
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


def _cut_out(path: Path, kept: Callable[[int], bool]) -> None:
    """Leave the header and the lines of the groups that are `kept`."""
    shorter = path.with_suffix(".tmp")
    with path.open("rb") as old, shorter.open("wb") as new:
        new.write(old.readline())
        new.writelines(line for line in old if _stays(line, kept))
    # By renaming: a kill leaves the file as it was, or as it is to be.
    shorter.replace(path)


def _stays(line: bytes, kept: Callable[[int], bool]) -> bool:
    # The end of a file that a kill has cut off may be a line without its end.
    if not line.endswith(b"\n"):
        return False
    try:
        return kept(_group_of(line).uid)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False


def _free_name(path: Path) -> Path:
    number = 1
    while (moved := path.with_suffix(f".{number}.jsonl")).exists():
        number += 1
    return moved
