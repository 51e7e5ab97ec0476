"""Events as JSON Lines, one file per step and worker: `step_{n}/worker_{rank}.jsonl`.

Guarantees:
- an event is written once, after it ended; lines are appended whole, in one write per file and flush, so that
  a kill or a full disk cuts off the last line at most, which the reader skips;
- what is buffered reaches the file with `flush`, or with the first event `flush_seconds` later;
- a file that cannot be written ends the recording with one warning, never the work that is recorded;
- threads may share a log.

A line is {"event": str, "start": s since the epoch, "duration": s, "step": int, "worker": str,
"pool": str, "extra": {...}}. `worker_{rank}.json` beside the step folders says who the worker is.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec

EVENTS_FOLDER = "events"
"""Folder of the events in a run's folder."""

EVENTS = {
    "start": "a part of a worker's start",
    "prompt_fetch": "the driver reads and tokenizes a prompt",
    "admission_wait": "an engine has room, and the staleness bound admits no prompt",
    "evaluation_wait": "the next version, or a checkpoint, waits until an evaluation is over",
    "generate": "an engine generates a response, or a part of it until it is taken out",
    "evaluate": "an engine generates a response of an evaluation, or a part of it until it is taken out",
    "reward": "a group's responses are scored",
    "group_assembly": "a group is put together from its scored responses",
    "put": "a group is handed to the queue",
    "queue_wait": "a finished group waits to be trained",
    "get": "a trainer rank fetches a step's groups",
    "share": "the trainer's ranks agree on who trains what of a step, and get its tokens",
    "gather": "a rank gathers the weights of all ranks for the passes that follow",
    "reference_forward": "log-probabilities of the initial model or, with why: teacher, of the teacher",
    "forward": "the model's forward pass of a micro-batch",
    "backward": "its backward pass",
    "optimizer": "the weights are updated",
    "reduce": "a step's figures are summed over all ranks, which waits for the slowest of them",
    "division": "so many engines are for long responses, and responses are long from so many tokens on",
    "usage": "what a worker's processes used: processors, memory, accelerators, the engine's cache",
    "weight_publish": "the trainer makes its weights available as a version",
    "weight_write": "the trainer writes a version to where engines read it, while its next step trains",
    "weight_fetch": "an engine's machine fetches a version while the engine generates on",
    "weight_stage": "an engine takes a version into its memory while it generates on",
    "weight_pause": "an engine is stopped for a new version",
    "weight_load": "it loads the version",
    "weight_resume": "it goes on",
    "weight_swap": "an engine goes on with a version that it has staged, without being stopped",
    "checkpoint": "a checkpoint is written",
    "idle": "a worker has nothing to do, or the driver waits for a step's groups",
}
"""What is recorded, and what each event means."""

STATES = frozenset({"division", "usage"})
"""Those that say what was so in a time, and not what a worker did in it."""

_log = logging.getLogger(__name__)

# What is read outside of these bounds is a damaged line.
LATEST = 1e11
"""A time in seconds since the epoch."""
Time = Annotated[float, msgspec.Meta(ge=-LATEST, le=LATEST)]
"""Seconds since the epoch."""
Seconds = Annotated[float, msgspec.Meta(ge=-1, le=LATEST)]
"""From a begin to an end: a little below 0 by rounding, and far below where the host's clock was set back."""


# Without gc: no event is in a cycle, and a report holds a step's many thousands of them at a time.
class Event(msgspec.Struct, gc=False):
    """One line of an event file."""

    event: str
    """One of `EVENTS`."""
    start: Time
    """By the clock of the worker's host."""
    duration: Seconds
    step: int
    """Step that was being trained when the event ended."""
    worker: str
    """Name of whose time it is: "driver", "trainer-0", "fast-3"."""
    pool: str
    """"driver", "trainer", "fast" or "heavy"."""
    extra: dict[str, Any]
    """What else is known, by kind of event: a request's id and tokens, a group's uid, a version."""

    @property
    def end(self) -> float:
        return self.start + self.duration


class WorkerInfo(msgspec.Struct):
    """Who writes `worker_{rank}.jsonl`."""

    rank: int
    worker: str
    pool: str
    """As in `Event`."""
    host: str
    pid: int
    kv_tokens: int | None = None
    """Tokens that its engine's KV cache holds, as it said last; None where it has none, or does not say."""


class EventLog:
    """Writes one worker's events."""

    def __init__(
        self,
        folder: Path | None,
        rank: int,
        worker: str,
        pool: str,
        synchronize: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.time,
        buffer_lines: int = 256,
        flush_seconds: float = 5.0,
    ) -> None:
        """`folder` None records nothing. `rank` is the worker's own number among all workers of the job
        (`event_ranks.py`), so that no two write to one file. `synchronize` waits for the device, whose work
        would otherwise count in a later event, before the clock is read. What is buffered is written after
        `buffer_lines` events, or with the first event `flush_seconds` after the oldest."""
        self._folder = folder
        self._rank = rank
        self._worker = worker
        self._pool = pool
        self._synchronize = synchronize
        self.clock = clock
        self._buffer_lines = buffer_lines
        self._flush_seconds = flush_seconds
        self._encode = msgspec.json.Encoder(enc_hook=_plain_number).encode
        self._lock = threading.Lock()
        self._lines: dict[int, list[bytes]] = {}
        self._buffered = 0
        self._buffered_since = 0.0
        if folder is not None:
            self._introduce(folder)

    def has_cache(self, kv_tokens: int | None) -> None:
        """The worker's engine is up, and its KV cache holds so many tokens; None where that is not known."""
        if self._folder is not None and kv_tokens is not None:
            self._introduce(self._folder, kv_tokens)

    def span(self, event: str, step: int, **extra: Any) -> "Span":
        """Time the body of a `with`; the dict that it yields may be given more `extra`."""
        return Span(self, event, step, extra)

    def add(self, event: str, step: int, start: float, duration: float, **extra: Any) -> None:
        """Record an event that was timed elsewhere: `start` and `duration` in seconds, by the log's clock."""
        if self._folder is not None:
            self._record(event, step, start, duration, extra)

    def _record(self, event: str, step: int, start: float, duration: float, extra: dict[str, Any]) -> None:
        # Outside the lock: other threads that record wait for the list alone.
        line = self._encode(Event(event, start, duration, step, self._worker, self._pool, extra))
        with self._lock:
            lines = self._lines.get(step)
            if lines is None:
                lines = self._lines[step] = []
            if self._buffered == 0:
                self._buffered_since = start + duration
            lines.append(line)
            self._buffered += 1
            old = start + duration - self._buffered_since >= self._flush_seconds
            if old or self._buffered >= self._buffer_lines:
                self._write_out()

    def flush(self) -> None:
        """Write what is buffered."""
        with self._lock:
            self._write_out()

    def _write_out(self) -> None:
        if self._folder is not None:
            try:
                for step, lines in self._lines.items():
                    path = self._folder / f"step_{step}" / f"worker_{self._rank}.jsonl"
                    _append(path, b"\n".join(lines))
            except OSError as error:
                self._give_up(error)
        # Also after an error: what is buffered is given up with the log.
        self._lines.clear()
        self._buffered = 0

    def _introduce(self, folder: Path, kv_tokens: int | None = None) -> None:
        host = socket.gethostname()
        who = WorkerInfo(self._rank, self._worker, self._pool, host, os.getpid(), kv_tokens)
        path = folder / f"worker_{self._rank}.json"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # By renaming, so that a reader sees all of it or nothing.
            whole = path.with_suffix(f".{who.pid}.tmp")
            whole.write_bytes(msgspec.json.encode(who))
            whole.replace(path)
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        _log.warning(
            "events of %s are not recorded from here on: %s: %s", self._worker, error.filename, error.strerror
        )
        self._folder = None


class Span:
    """An event that lasts as long as the body of a `with`; recorded also when the body raises."""

    __slots__ = ("_event", "_extra", "_log", "_start", "_step")

    def __init__(self, log: EventLog, event: str, step: int, extra: dict[str, Any]) -> None:
        self._log = log
        self._event = event
        self._step = step
        self._extra = extra

    def __enter__(self) -> dict[str, Any]:
        log = self._log
        if log._folder is not None:
            log._synchronize()
            self._start = log.clock()
        return self._extra

    def __exit__(self, *_: object) -> None:
        log = self._log
        if log._folder is not None:
            log._synchronize()
            log._record(self._event, self._step, self._start, log.clock() - self._start, self._extra)


def _append(path: Path, text: bytes) -> None:
    """Append to a file of a step whose folder may have to be made."""
    for last in (False, True):
        # At each write: any worker may be the first to write of this step.
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            append_line(path, text)
            return
        except FileNotFoundError:
            # It was removed in this moment, for the events take too much room (`event_room.py`).
            if last:
                raise


def append_line(path: Path, text: bytes) -> None:
    """Append `text` and a newline in one write; raises `OSError`, also when the disk took only a part.

    A line that an earlier writer left unfinished is ended first, so that it spoils nothing but itself.
    """
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        size = os.fstat(handle).st_size
        torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
        data = b"%b%b\n" % (b"\n" if torn else b"", text)
        try:
            written = os.write(handle, data)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from None
        if written < len(data):
            # 28 is ENOSPC. A disk that fills up takes a part, and says so only at the next write.
            raise OSError(28, f"only {written} of {len(data)} bytes fit", str(path))
    finally:
        os.close(handle)


def _plain_number(value: Any) -> Any:
    """The Python number in a numpy or torch scalar."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"an event's extra holds a {type(value).__name__}; give it a number, a text or a list")
