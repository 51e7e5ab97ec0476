"""The evaluation that is under way, as the training loop sees it.

Guarantees: one at a time; it begins when the engines hold the weights that it is of, and the loop gives them
no others before it `lets_through`: it is over, or the engines that it runs on are set aside; where nothing
moves while the loop waits for it, engines that stand still with requests are started again, and the job ends
where that does not help.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from rljob_runtime.driver.first_of import first_of
from rljob_runtime.driver.silent_engines import SilentEngines
from rljob_runtime.driver.stall import Activity, Stalled, StallWatch
from rljob_runtime.rollout.pool import EnginePool
from rljob_runtime.rollout.weight_sync import WeightSync

log = logging.getLogger(__name__)

_LOOKS = 10
"""How often it is looked whether anything moves, in the time after which an evaluation is stalled."""


class Evaluating(Protocol):
    """Which evaluations are due, and how one is carried out."""

    def due(self, step: int, last: bool) -> bool:
        """Whether the weights after `step` steps are to be evaluated; `last`: no step follows."""
        ...

    async def evaluate(self, step: int, version: int, last: bool, free: Callable[[], None]) -> None:
        """Evaluate the weights after `step` steps, which the engines hold as `version`; `last`: nothing is
        trained beside it. `free` is called where other weights may be delivered before it is over."""
        ...


class EvaluationTurn:
    """See the module's guarantees."""

    def __init__(
        self,
        evaluating: Evaluating,
        pool: EnginePool,
        plan: WeightSync,
        spawn: Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"],
        activity: Callable[[], Awaitable[Activity]],
        stall_seconds: float,
        silent: SilentEngines,
    ) -> None:
        """`spawn` starts a task whose failure ends the job; `activity` tells what has been done so far;
        `silent` which engines stand still."""
        self.step: int | None = None
        """Of the evaluation under way; None where none is."""
        self._evaluating = evaluating
        self._pool = pool
        self._plan = plan
        self._spawn = spawn
        self._activity = activity
        self._stall_seconds = stall_seconds
        self._silent = silent
        self._task: asyncio.Task[None] | None = None
        self._freed = asyncio.Event()
        """Set once others may be delivered than the weights that are evaluated."""

    def begin(self, step: int, version: int, last: bool, sent: "asyncio.Task[None] | None") -> None:
        """Begin the evaluation of these weights, if it is due. `sent`: what brings them to the engines, where
        that is under way; the evaluation before is over."""
        if self._evaluating.due(step, last):
            self.step = step
            self._freed = asyncio.Event()
            self._task = self._spawn(self._evaluate(step, version, last, sent))

    async def _evaluate(self, step: int, version: int, last: bool, sent: "asyncio.Task[None] | None") -> None:
        if sent is not None:
            # Not the task itself, which is not to be cancelled with this one.
            await asyncio.wait((sent,))
        await self._plan.settled()
        await self._evaluating.evaluate(step, version, last, self._freed.set)

    def holds_up(self, step: int) -> bool:
        """Whether the weights after `step` steps may not be delivered yet: the engines are to keep those that
        are evaluated, or these are to be evaluated next."""
        return self.step is not None and (not self._freed.is_set() or self._evaluating.due(step, last=False))

    async def lets_through(self, step: int, stop: asyncio.Event) -> None:
        """Wait until the weights after `step` steps may be delivered, otherwise as `over`."""
        if self._evaluating.due(step, last=False):
            await self.over(stop)
        else:
            await self._wait(stop, self._freed)

    async def over(self, stop: asyncio.Event) -> None:
        """Wait until no evaluation is under way. One that is under way when `stop` is set is given up. Raises
        `Stalled`."""
        await self._wait(stop, asyncio.Event())

    async def _wait(self, stop: asyncio.Event, enough: asyncio.Event) -> None:
        """Wait until no evaluation is under way, or until `enough` is set."""
        task, clock = self._task, asyncio.get_running_loop().time
        if task is None:
            return
        watch, restarted = StallWatch(self._stall_seconds, clock()), False
        while not task.done():
            if enough.is_set():
                return
            ended = await first_of(
                self._stall_seconds / _LOOKS, asyncio.wait((task,)), stop.wait(), enough.wait()
            )
            if stop.is_set() and not task.done():
                await self.give_up()
                return
            if ended is None and watch.stalled(await self._activity(), clock()):
                what = (
                    f"generated nothing for {self._stall_seconds:g} s (spec.training.timeouts.stallSeconds)"
                )
                if restarted:
                    raise Stalled(
                        f"the evaluation after step {self.step} does not end: engines {what}; those with "
                        "requests were started again, and the same happened once more"
                    )
                self._pool.lose_stuck(self._silent.stuck(), what)
                watch, restarted = StallWatch(self._stall_seconds, clock()), True
        self.step = self._task = None
        task.result()

    async def give_up(self) -> None:
        """End what is under way; nothing of it is recorded. Returns when its requests have ended."""
        task = self._task
        if task is None:
            return
        if not task.done():
            log.info("the evaluation after step %s is given up", self.step)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        self.step = self._task = None
