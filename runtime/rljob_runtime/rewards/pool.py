"""Reward functions in worker processes, with a time limit for each sample.

Guarantees: every sample given to `score` ends exactly once, with a value or a failure; one that raises,
hangs, returns no number or kills its process costs itself and nothing else; the counters sum:
submitted = scored + failed + pending.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Sequence
from functools import partial
from itertools import count
from pathlib import Path

import msgspec

from rljob_runtime.own_functions import FunctionLoadError
from rljob_runtime.rewards import RewardInput, Score, failure_reason
from rljob_runtime.rewards.calls import FunctionCall
from rljob_runtime.rewards.frames import Setup
from rljob_runtime.rewards.outcome import MOST_NAMES
from rljob_runtime.rewards.part_names import PartNames
from rljob_runtime.rewards.process import Job, WorkerProcess, WorkerStartError
from rljob_runtime.short_files import LIMIT_BYTES, keep_short, shorten

START_SECONDS = 120.0
"""Time that a worker may take to import the function."""
_START_ATTEMPTS = 3
"""Of a worker that ends or hangs at its start. A function that cannot be loaded is not tried again."""
_LOGGED_FAILURES = 5
"""Failures of each reason that are logged; all are counted."""
_LOGGED_NAMES = 2 * MOST_NAMES
"""Parts and metrics that are logged as missing, each once; some are missing for there are too many."""

logger = logging.getLogger(__name__)


class RewardPoolError(RuntimeError):
    """The pool cannot score at all."""


class Counters(msgspec.Struct):
    """What became of all samples of a pool."""

    submitted: int = 0
    scored: int = 0
    failed: Counter[str] = msgspec.field(default_factory=Counter)
    """Samples without a reward by reason (`failure_reason`); cancelled: the call of `score` was cancelled, or
    the pool closed."""
    values_failed: int = 0
    """Parts and metrics that responses with a reward lack."""
    worker_restarts: int = 0

    @property
    def pending(self) -> int:
        """Samples that wait or run."""
        return self.submitted - self.scored - self.failed.total()


class RewardPool:
    """Worker processes and the samples they share. All methods run on one event loop."""

    def __init__(
        self,
        calls: Sequence[FunctionCall],
        *,
        timeout_seconds: float = 10.0,
        workers: int = 1,
        search_path: Sequence[Path] = (),
        log: Path | None = None,
        log_bytes: int = LIMIT_BYTES,
        log_failures: bool = True,
        host: Path | None = None,
    ) -> None:
        """`calls`: one function without a name, or several with names; `search_path` are folders that they
        may be in. What a function prints, and its tracebacks, go to the file `log` (None: where this process
        writes), of which about the last `log_bytes` are kept; the first failures of each reason are warnings
        in this process's log, and so is the first response that lacks a part or metric, of each name, unless
        `log_failures` is off. `host`: the socket of the host that starts the workers (`host.py`); None: they
        are children of this process."""
        self._setup = Setup(tuple(calls), tuple(str(path.resolve()) for path in search_path))
        self._timeout = timeout_seconds
        self._size = workers
        self._log = log
        self._log_bytes = log_bytes
        self._host = host
        self._log_failures = log_failures
        self._numbers = count()
        self._waiting: deque[Job] = deque()
        self._ready: set[WorkerProcess] = set()
        self._batches: set[asyncio.Future[None]] = set()
        self._unkept: set[WorkerProcess] = set()
        """Workers whose keeper has not had its first turn."""
        self._keepers: list[asyncio.Task[None]] = []
        self._broken: RewardPoolError | None = None
        self._names = PartNames()
        self._told: set[str] = set()
        """Parts and metrics that the log has said were missing."""
        self.counters = Counters()

    async def start(self) -> None:
        """Start the workers. Raises `FunctionLoadError` when a function cannot be used, `RewardPoolError`."""
        # All at once: each imports the function's module, which may take long.
        starts = [asyncio.ensure_future(self._start_worker()) for _ in range(self._size)]
        try:
            workers = await asyncio.gather(*starts)
        except BaseException:
            # `gather` leaves the others running when one fails: those that came up meanwhile are ended.
            for start in starts:
                # A second time while one waits for the end of its process, it would not.
                if not start.cancelling():
                    start.cancel()
            for result in await asyncio.gather(*starts, return_exceptions=True):
                if isinstance(result, WorkerProcess):
                    await result.stop()
            raise
        self._unkept.update(workers)
        self._keepers = [asyncio.create_task(self._keep(worker)) for worker in workers]
        if self._log is not None:
            self._keepers.append(asyncio.create_task(self._keep_log_short(self._log)))

    async def score(self, samples: Sequence[RewardInput]) -> list[Score]:
        """A score for each sample, in order. Raises `RewardPoolError` when workers no longer start, or the
        pool is closed."""
        if self._broken is not None:
            raise self._broken
        if not self._keepers:
            raise RewardPoolError("the reward pool is not running: call start first")
        if not samples:
            return []
        scores: list[Score] = [Score(0.0)] * len(samples)
        left = len(samples)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def finish(index: int, score: Score) -> None:
            nonlocal left
            scores[index] = score = self._names.admit(score)
            self._count(score)
            left -= 1
            if left == 0 and not done.done():
                done.set_result(None)

        now = asyncio.get_running_loop().time()
        jobs = [Job(next(self._numbers), s, partial(finish, i), now) for i, s in enumerate(samples)]
        self.counters.submitted += len(jobs)
        self._waiting.extend(jobs)
        self._batches.add(done)
        try:
            self._dispatch()
            await done
        finally:
            self._batches.discard(done)
            for job in jobs:
                # Of a call that was cancelled, or a pool that broke: what is done already ignores it.
                job.finish(Score(0.0, "cancelled"))
        return scores

    async def close(self) -> None:
        """End the workers; running `score` calls raise `RewardPoolError`. May be called more than once."""
        self._break(RewardPoolError("the reward pool is closed"))
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        self._keepers = []
        # A keeper that is cancelled before its first turn has ended nothing.
        while self._unkept:
            await self._unkept.pop().stop()
        if self._log is not None:
            await asyncio.to_thread(self._shorten_log, self._log)

    async def _start_worker(self) -> WorkerProcess:
        """A worker that has the function; up to three attempts."""
        for attempt in range(1, _START_ATTEMPTS + 1):
            worker = WorkerProcess(self._timeout, self._fill)
            try:
                ready = await worker.start(self._setup, self._log, self._host, START_SECONDS)
            except WorkerStartError as error:
                logger.warning("%s (attempt %d of %d)", error, attempt, _START_ATTEMPTS)
                last = error
                continue
            if ready.refusal is None:
                return worker
            await worker.stop()
            raise FunctionLoadError(ready.refusal.message)
        raise RewardPoolError(f"{last}; {_START_ATTEMPTS} attempts failed, see the log of the reward workers")

    async def _keep(self, worker: WorkerProcess) -> None:
        """Replace one worker whenever it ends."""
        self._unkept.discard(worker)
        try:
            while True:
                self._ready.add(worker)
                self._dispatch()
                left = await worker.ended()
                self._ready.discard(worker)
                # To the front and in their order: these samples have waited longest.
                self._waiting.extendleft(reversed(left))
                self._dispatch()
                self.counters.worker_restarts += 1
                # Until it is ready the other workers take the samples.
                worker = await self._start_worker()
        except (FunctionLoadError, RewardPoolError) as error:
            self._break(RewardPoolError(f"no reward worker can be started: {error}"))
        finally:
            self._ready.discard(worker)
            await worker.stop()

    async def _keep_log_short(self, log: Path) -> None:
        try:
            await keep_short(lambda: [log], self._log_bytes)
        except OSError as error:
            logger.warning("%s is not kept short any more: %s", log, error)

    def _shorten_log(self, log: Path) -> None:
        """Once the workers have ended, of what was printed since the last look."""
        try:
            shorten(log, self._log_bytes)
        except OSError as error:
            logger.warning("%s could not be kept short: %s", log, error)

    def _dispatch(self) -> None:
        """Share waiting samples among all workers with room."""
        for worker in list(self._ready):
            self._fill(worker)

    def _fill(self, worker: WorkerProcess) -> None:
        """Give a worker its share of what waits, and no more than it has room for."""
        if worker not in self._ready or not self._waiting:
            return
        # Rounded up. Without a share the first worker would fill its window while others stay idle.
        share = -(-len(self._waiting) // len(self._ready))
        jobs: list[Job] = []
        while self._waiting and len(jobs) < min(worker.room, share):
            job = self._waiting.popleft()
            if not job.done:
                jobs.append(job)
        if jobs:
            worker.give(jobs)

    def _count(self, score: Score) -> None:
        if score.failure is None:
            self.counters.scored += 1
            self._count_complaints(score)
            return
        reason = failure_reason(score.failure)
        self.counters.failed[reason] += 1
        logged = self._log_failures and reason != "cancelled"
        if logged and self.counters.failed[reason] <= _LOGGED_FAILURES:
            logger.warning("reward failed: %s", score.told_failure)

    def _count_complaints(self, score: Score) -> None:
        for key, why in score.complaints.items():
            self.counters.values_failed += 1
            if self._log_failures and key not in self._told and len(self._told) < _LOGGED_NAMES:
                self._told.add(key)
                logger.warning("a response's reward counts without %s: %s", key, why)

    def _break(self, error: RewardPoolError) -> None:
        """No sample will be scored any more."""
        # The first reason stays: closing a broken pool must not hide why it broke.
        self._broken = self._broken or error
        self._waiting.clear()
        for done in self._batches:
            if not done.done():
                done.set_exception(self._broken)
