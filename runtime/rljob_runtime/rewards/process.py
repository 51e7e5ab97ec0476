"""One worker process as the pool sees it: its life, its socket, the samples it has.

Guarantees: results are matched with the samples in order; a sample that is over its time limit ends the
process; when the process is gone, what it did not answer is handed back, the sample it was at with the
reason first. Neither the process nor the processes it started outlive `stop`.
"""

import asyncio
import os
import signal
import socket
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from rljob_runtime.rewards import WORKER_DIED, RewardInput, Score
from rljob_runtime.rewards.frames import FrameBuffer, Ready, Result, Setup, Task, frame, from_worker
from rljob_runtime.rewards.launch import HostAway, Launched, launch

_DRAIN_SECONDS = 1.0
"""How long results of an ended process may still arrive; only a process that it started can delay them."""
_LOOKAHEAD_SECONDS = 0.02
"""Seconds of work that a worker is given at a time, see `window`."""
_LARGEST_WINDOW = 64
_READ_BYTES = 1 << 18


class Job:
    """A sample on its way through the pool; it ends once."""

    __slots__ = ("_report", "asked", "done", "number", "sample")

    def __init__(
        self, number: int, sample: RewardInput, report: Callable[[Score], None], asked: float = 0.0
    ) -> None:
        """`number` is unique in the pool; `report` is called once, with the score; `asked`: when the score
        was asked for, in seconds of the loop's clock."""
        self.number = number
        self.sample = sample
        self.asked = asked
        self.done = False
        self._report = report

    def finish(self, score: Score) -> None:
        """End it; a second end is ignored (a worker may answer what was cancelled meanwhile)."""
        if not self.done:
            self.done = True
            self._report(score)


class WorkerStartError(RuntimeError):
    """A worker process did not come up."""


def window(seconds: float | None) -> int:
    """How many samples a worker is given at a time, from the time it takes for one: about 20 ms of work, at
    most 64; one while the time is unknown. More would leave other workers idle behind a slow one, fewer would
    wait for the socket."""
    if seconds is None:
        return 1
    return max(1, min(_LARGEST_WINDOW, int(_LOOKAHEAD_SECONDS / max(seconds, 1e-9))))


class WorkerProcess(asyncio.Protocol):
    """A process and the samples it has. All methods run on the event loop."""

    def __init__(self, timeout_seconds: float, on_room: Callable[["WorkerProcess"], None]) -> None:
        """`on_room` is called when the worker may be given more samples."""
        self._timeout = timeout_seconds
        self._on_room = on_room
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[Any] = self._loop.create_future()
        self._closed: asyncio.Future[Any] = self._loop.create_future()
        self._buffer = FrameBuffer()
        self._jobs: deque[Job] = deque()
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._seconds: float | None = None
        self._transport: asyncio.Transport | None = None
        self._process: Launched | None = None
        self._stopped = False
        self.reason: str | None = None
        """Why the pool ended it; None while it runs, or when it ended by itself."""

    @property
    def room(self) -> int:
        """How many more samples it should be given."""
        if self._transport is None or self._transport.is_closing() or self._stopped:
            return 0
        return max(0, window(self._seconds) - len(self._jobs))

    async def start(
        self, setup: Setup, log: Path | None, host: Path | None, deadline_seconds: float
    ) -> Ready:
        """Start the process, by `host` if there is one (`launch`), and wait for its answer to `setup`. Raises
        `WorkerStartError`."""
        try:
            await self._connect(log, host)
            assert self._transport is not None
            self._transport.write(frame(setup))
            await asyncio.wait(
                [self._ready, self._closed], timeout=deadline_seconds, return_when=asyncio.FIRST_COMPLETED
            )
        except HostAway as error:
            raise WorkerStartError(str(error)) from error
        except OSError as error:
            # Of this machine: it has no memory, processes or descriptors left, at this moment.
            await self.stop()
            raise WorkerStartError(f"a reward worker could not be started: {error}") from error
        except BaseException:  # cancelled, or `setup` cannot be sent
            await self.stop()
            raise
        if self._ready.done():
            ready: Ready = self._ready.result()
            return ready
        died = self._closed.done()
        code = await self.stop()
        raise WorkerStartError(
            f"a reward worker ended at its start ({describe_exit(code)})"
            if died
            else f"a reward worker was not ready after {deadline_seconds:g} s"
        )

    async def _connect(self, log: Path | None, host: Path | None) -> None:
        # A socket and not the standard streams: a reward function may print.
        ours, theirs = socket.socketpair()
        # Closed here once the process has its copy: else its end would not be seen on ours.
        with theirs:
            try:
                self._process = await launch(theirs.fileno(), log, host)
                await self._loop.create_connection(lambda: self, sock=ours)
            except BaseException:
                ours.close()
                raise

    def give(self, jobs: Sequence[Job]) -> None:
        """Send samples. The time limit holds for each; that of the first begins now if the worker is idle."""
        assert self._transport is not None
        data = b"".join(frame(Task(job.number, job.sample)) for job in jobs)
        if not self._jobs:
            self._deadline = self._loop.time() + self._timeout
        self._jobs.extend(jobs)
        self._transport.write(data)
        self._watch()

    async def ended(self) -> list[Job]:
        """Wait until the process is gone; the samples that it did not begin. The one that it was at fails."""
        assert self._process is not None
        exited: asyncio.Future[Any] = asyncio.ensure_future(self._process.wait())
        try:
            # First either, then both: results from before the end may still be in the socket.
            await asyncio.wait([exited, self._closed], return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait([exited, self._closed], timeout=_DRAIN_SECONDS)
        finally:
            exited.cancel()
        code = await self.stop()
        # With a reason the pool ended it, and the sample it was at has failed with that already.
        if self._jobs and self.reason is None:
            self._jobs.popleft().finish(Score(0.0, f"{WORKER_DIED} ({describe_exit(code)})"))
        left = list(self._jobs)
        self._jobs.clear()
        return left

    async def stop(self) -> int:
        """Kill the process and what it started, and wait until it is gone, also when cancelled meanwhile. Its
        exit code, negative for a signal."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        self._kill()
        if self._process is None:
            return 0
        gone = asyncio.ensure_future(self._process.wait())
        try:
            return await asyncio.shield(gone)
        except asyncio.CancelledError:
            # It was killed: this takes no longer than the kernel does.
            await gone
            raise

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._read_rest()
        if not self._closed.done():
            self._closed.set_result(None)

    def data_received(self, data: bytes) -> None:
        if self._stopped:
            return
        try:
            for body in self._buffer.feed(data):
                self._take(from_worker.decode(body))
        except msgspec.DecodeError as error:
            self._fail(f"{WORKER_DIED} (sent a malformed answer: {error})")
            return
        self._on_room(self)

    def _read_rest(self) -> None:
        """What the process had answered before its end: asyncio reads no more once a write has failed."""
        assert self._transport is not None
        descriptor = self._transport.get_extra_info("socket").fileno()
        # It does not block. Nothing, or an error, is the end of it.
        with suppress(OSError):
            while not self._stopped and (data := os.read(descriptor, _READ_BYTES)):
                self.data_received(data)

    def _take(self, message: Ready | Result) -> None:
        if isinstance(message, Ready):
            if not self._ready.done():
                self._ready.set_result(message)
            return
        if not self._jobs or self._jobs[0].number != message.number:
            raise msgspec.DecodeError(f"an answer to sample {message.number}, which it was not given")
        # Results come in order: the worker begins with the next sample now.
        self._deadline = self._loop.time() + self._timeout
        before = self._seconds
        # A mean in which each older sample weighs half as much: it follows a function whose speed changes.
        self._seconds = message.seconds if before is None else (before + message.seconds) / 2
        job = self._jobs.popleft()
        job.finish(score_of(message, self._waited(job, message.seconds)))

    def _watch(self) -> None:
        # One timer is enough, however often the deadline moves: it looks when it fires, and is set again.
        if self._timer is None:
            self._timer = self._loop.call_at(self._deadline, self._check)

    def _check(self) -> None:
        self._timer = None
        if not self._jobs or self._stopped:
            return
        if self._loop.time() < self._deadline:
            self._watch()
        else:
            self._fail(f"timeout after {self._timeout:g} s")

    def _fail(self, reason: str) -> None:
        """End the process because of the sample it is at."""
        self._stopped = True
        self.reason = reason
        if self._jobs:
            job = self._jobs.popleft()
            job.finish(Score(0.0, reason, self._timeout, waited=self._waited(job, self._timeout)))
        self._kill()

    def _waited(self, job: Job, seconds: float) -> float:
        """How long a sample that ends now had waited before the function, which took so many seconds."""
        return max(0.0, self._loop.time() - job.asked - seconds)

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()


def score_of(result: Result, waited: float) -> Score:
    """What a worker says of a sample, which had waited for it for so many seconds."""
    return Score(
        result.value, result.failure, result.seconds, result.parts, result.metrics, result.complaints, waited,
        failure_outline=result.failure_outline,
    )  # fmt: skip


def describe_exit(code: int) -> str:
    """`exit code 3` or `signal SIGSEGV`."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
