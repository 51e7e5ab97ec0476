"""What the model says: `samples.jsonl` in the run's folder, a JSON object for each response that is kept.

Guarantees:
- every line is one response of a step that was trained; steps ascend, and no response stands there twice:
  where training goes back to an earlier step, the lines of the steps that are trained again are cut off;
- a step's lines are appended whole, in one write; a kill or a full disk leaves a part of the last line at
  most, which readers skip and the next start cuts off;
- the file has `MOST_BYTES` at most, or the lines of one step where these are more: before it would grow
  beyond that, every second of its steps goes, again and again until it is half as large. So a long run keeps
  its newest steps densely and older ones ever more thinly;
- a file that cannot be written ends the recording with one warning, never the work that is recorded.

What is kept may be private: it goes into no log, no status and no Kubernetes Event.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from rljob_runtime.net.messages import decode_typed
from rljob_runtime.samples import FinishReason
from rljob_runtime.trace.record.event_log import Time, append_line
from rljob_runtime.trace.record.thinning import thinned
from rljob_runtime.trace.record.whole_lines import whole_lines

_log = logging.getLogger(__name__)

SAMPLES_FILE = "samples.jsonl"
MOST_BYTES = 64 << 20
"""Most bytes of the file."""
_FOLLOWED = 32
"""Rows of the data that are followed over the run: the first that are kept."""


class SampleLine(msgspec.Struct, frozen=True, kw_only=True):
    """A response that was kept."""

    step: int
    """The step that trained it, from 0; of an evaluation how many steps its weights have behind them."""
    evaluation: str | msgspec.UnsetType = msgspec.UNSET
    """The set of prompts, where it is a response of an evaluation; those are not trained."""
    time: Time
    """When that step had been trained."""
    uid: int
    """Its group: the position of the prompt in the job's sequence of prompts."""
    epoch: int
    row: int
    """The row of the data that the prompt stands in."""
    index: int
    """Its place in the group."""
    prompt: str
    """As the model reads it, special tokens by their names."""
    response: str
    """As the model wrote it, special tokens by their names."""
    left_out: int
    """Tokens left out of the middle of a long prompt and of a long response; where, the text says."""
    prompt_tokens: int
    tokens: int
    """Of the response, its stop token included."""
    finish: FinishReason
    reward: float | None
    """With all shaping; None where there is none."""
    failure: str | None
    """Why there is no reward."""
    reward_parts: dict[str, float] = {}
    """What the reward is made of, by name; empty where it is one number alone."""
    reward_metrics: dict[str, float | None] = {}
    """What else the reward function measured; None where it does not apply to the response."""
    advantage: float
    """What it is trained with; 0 without a reward."""
    engine: str
    """The engine that finished it."""
    seconds: float
    """From its submission to its last token."""
    first_version: int | None
    """Weight version of its first token; None where it has no token."""
    last_version: int | None
    """Weight version of its last token."""
    trained_with: int
    """Weight version that the step began with: less `first_version`, the staleness of the response."""


class _Head(msgspec.Struct):
    """What is looked at of a line to know where it belongs."""

    step: int
    row: int


@dataclass
class Samples:
    """The responses of a run that were kept, as read."""

    rows: list[SampleLine] = field(default_factory=list)
    """In order of steps."""
    unreadable: int = 0
    """Lines that were cut off, or are no responses."""


_head_decoder = msgspec.json.Decoder(_Head)
_line_decoder = msgspec.json.Decoder(SampleLine)
_encode = msgspec.json.Encoder().encode


class SampleLog:
    """Writes what is kept of a run. `begin` comes before the first `write`."""

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES, file: str = SAMPLES_FILE) -> None:
        """`folder` is the run's; `file` is the name of the file in it."""
        self.followed: set[int] = set()
        """Rows of the data that are followed over the run."""
        self._path: Path | None = folder / file
        self._most_bytes = most_bytes

    def begin(self, step: int) -> None:
        """Training begins, or goes on, with `step`: lines of that step and later ones are cut off."""
        self.followed.clear()
        if self._path is None:
            return
        try:
            whole = 0
            for head, line in _lines(self._path):
                if head is not None and head.step >= step:
                    break
                whole += len(line)
                if head is not None:
                    self._follow(head.row)
            if self._path.exists():
                with self._path.open("r+b") as file:
                    file.truncate(whole)
        except OSError as error:
            self._give_up(error)

    def write(self, lines: Sequence[SampleLine]) -> None:
        """Append what is kept of a step."""
        if self._path is None or not lines:
            return
        for line in lines:
            self._follow(line.row)
        text = b"\n".join(_encode(line) for line in lines)
        try:
            self._make_room(self._path, len(text) + 1)
            append_line(self._path, text)
        except OSError as error:
            self._give_up(error)

    def _follow(self, row: int) -> None:
        if len(self.followed) < _FOLLOWED:
            self.followed.add(row)

    def _make_room(self, path: Path, more: int) -> None:
        size = path.stat().st_size if path.exists() else 0
        if size + more <= self._most_bytes:
            return
        bytes_of: dict[int, int] = {}
        for head, line in _lines(path):
            if head is not None:
                bytes_of[head.step] = bytes_of.get(head.step, 0) + len(line)
        kept = thinned(bytes_of, self._most_bytes // 2, self._most_bytes - more)
        shorter = path.with_suffix(".tmp")
        with shorter.open("wb") as file:
            file.writelines(line for head, line in _lines(path) if head is not None and head.step in kept)
        # By renaming: a kill leaves the file as it was, or as it is to be.
        shorter.replace(path)

    def _give_up(self, error: OSError) -> None:
        _log.warning(
            "samples are not recorded from here on: %s: %s", error.filename or self._path, error.strerror
        )
        self._path = None


def read_samples(folder: Path, file_name: str = SAMPLES_FILE) -> Samples:
    """What is kept of the run in `folder`; empty where there is no file. Raises `OSError`."""
    found = Samples()
    try:
        file = (folder / file_name).open("rb")
    except FileNotFoundError:
        return found
    with file:
        for line in file:
            try:
                found.rows.append(decode_typed(_line_decoder, line))
            except msgspec.DecodeError:
                found.unreadable += 1
    return found


def _lines(path: Path) -> Iterator[tuple[_Head | None, bytes]]:
    """As `whole_lines`; none where there is no file."""
    with suppress(FileNotFoundError):
        yield from whole_lines(path, _head_decoder)
