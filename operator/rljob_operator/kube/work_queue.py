"""Calls a handler for each key that needs it: a queue of keys, not of events.

Guarantees:
- a key that is added while it waits is handled once; one that is added while it is being handled is handled
  once more afterwards; no key is handled twice at the same time;
- ready keys are handled in the order in which they became ready, those that were added as `first` before all
  others, at most `workers` at a time;
- a handler that fails, or takes too long, is called again after a back-off of its key; other keys do not wait
  for that, and an `add` cuts it short;
- after `stop` no handler runs.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from random import Random
from typing import Generic, TypeVar

from rljob_client.backoff import Backoff
from rljob_client.errors import ApiError
from rljob_client.retry import asked_seconds
from rljob_operator.kube.fence import LeaseLost
from rljob_operator.kube.observer import KubeObserver

_log = logging.getLogger(__name__)

KeyT = TypeVar("KeyT", bound=Hashable)

_BACKOFF = Backoff(base_seconds=0.5, cap_seconds=300.0)
"""The cap is what a job waits at most once the cause of its failures is gone."""


@dataclass(frozen=True)
class QueueSettings:
    """How keys are worked off."""

    workers: int = 8
    limit_seconds: float = 120.0
    """A handler that takes longer is cancelled, and has failed."""
    backoff: Backoff = _BACKOFF


class NotNow(Exception):
    """What a handler raises that has failed, has told why, and knows when its key is to be tried again."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"to be tried again in {seconds:.1f} s")
        self.seconds = seconds


class WorkQueue(Generic[KeyT]):
    """Lives on one asyncio loop and goes by its clock. Keys may be added before `start`."""

    def __init__(
        self,
        handle: Callable[[KeyT], Awaitable[float | None]],
        observer: KubeObserver,
        random: Random,
        settings: QueueSettings | None = None,
    ) -> None:
        """`handle` returns the seconds after which the key is due again, or None: when it is added. This
        replaces every delay that was set before it began. A key whose handler raises has failed; `NotNow`
        says itself when it is due again."""
        self._handle = handle
        self._observer = observer
        self._random = random
        self._settings = settings or QueueSettings()
        self._ready: dict[KeyT, float] = {}
        """Keys that wait for their turn, in order; since when."""
        self._first: dict[KeyT, None] = {}
        """Those of them whose turn comes before that of all others, in order."""
        self._delayed: dict[KeyT, asyncio.TimerHandle] = {}
        self._running: dict[KeyT, asyncio.Task[None]] = {}
        self._again: set[KeyT] = set()
        """Keys that were added while they are being handled."""
        self._failures: dict[KeyT, int] = {}
        self._open = False
        self._beginning = False
        self._stopped = False

    def start(self) -> None:
        """Begin to handle keys."""
        self._open = True
        self._begin_soon()

    async def stop(self, grace_seconds: float) -> None:
        """Begin nothing more. Handlers that run have so long to end, then they are cancelled."""
        self._stopped = True
        self._ready.clear()
        self._first.clear()
        self._again.clear()
        for timer in self._delayed.values():
            timer.cancel()
        self._delayed.clear()
        # A copy: a handler that ends takes its key out.
        running = list(self._running.values())
        if running:
            await asyncio.wait(running, timeout=grace_seconds)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        self._measure()

    def add(self, key: KeyT, delay: float = 0.0, first: bool = False) -> None:
        """The key is due now, or in `delay` seconds. Of several delays the shortest counts. `first`: a key
        that is due now and waits for its turn goes before others; not for keys that come time and again."""
        if self._stopped:
            return
        if delay > 0:
            self._add_later(key, delay)
        elif key in self._running:
            self._again.add(key)
        else:
            # A key that waits keeps its place.
            self._ready.setdefault(key, asyncio.get_running_loop().time())
            if first:
                self._first.setdefault(key)
            self._begin_soon()
        self._measure()

    def _add_later(self, key: KeyT, delay: float) -> None:
        loop = asyncio.get_running_loop()
        timer = self._delayed.get(key)
        if timer is not None:
            # The sooner one counts, and does what the later one was for.
            if timer.when() <= loop.time() + delay:
                return
            timer.cancel()
        self._delayed[key] = loop.call_later(delay, self._due, key)

    def _due(self, key: KeyT) -> None:
        del self._delayed[key]
        self.add(key)

    def _begin_soon(self) -> None:
        # Not at once: whoever adds a key often adds it several times in a row.
        if self._open and not self._beginning:
            self._beginning = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._beginning = False
        loop = asyncio.get_running_loop()
        while self._ready and len(self._running) < self._settings.workers:
            key = next(iter(self._first or self._ready))
            self._first.pop(key, None)
            self._observer.queue_waited(loop.time() - self._ready.pop(key))
            # The turn that begins now does what a later one was set for.
            if timer := self._delayed.pop(key, None):
                timer.cancel()
            self._running[key] = loop.create_task(self._work(key))

    async def _work(self, key: KeyT) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        outcome = "failed"
        due: float | None = None
        try:
            async with asyncio.timeout(self._settings.limit_seconds) as limit:
                due = await self._handle(key)
            outcome = "done"
            self._failures.pop(key, None)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one key, it is tried again and reported
            outcome = "late" if limit.expired() else "failed"
            due = self._failed(key, error, outcome)
        finally:
            self._observer.handled(outcome, loop.time() - began)
            # Before `add`, which would take the key for one that is still being handled.
            del self._running[key]
            # What was added during the turn may be newer than what the turn has seen.
            if key in self._again:
                self._again.discard(key)
                self.add(key)
            if due is not None:
                self.add(key, due)
            self._begin_soon()
            self._measure()

    def _failed(self, key: KeyT, error: Exception, outcome: str) -> float:
        """Report it; the seconds to wait."""
        if isinstance(error, NotNow):
            return error.seconds
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        wait = max(self._settings.backoff.delay(failures, self._random), asked_seconds(error))
        text = (
            f"not done within {self._settings.limit_seconds:g} s"
            if outcome == "late"
            else str(error) or repr(error)
        )
        # A stack trace helps with a bug, not with an API server that is away.
        trace = None if outcome == "late" or isinstance(error, (ApiError, LeaseLost)) else error
        _log.warning("%s: %s; next try in %.1f s", key, text, wait, exc_info=trace)
        return wait

    def _measure(self) -> None:
        self._observer.queue_length(len(self._ready), len(self._delayed))
