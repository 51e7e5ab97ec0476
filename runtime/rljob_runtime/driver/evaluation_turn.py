"""The evaluation that is under way, as the training loop sees it.

Guarantees: one at a time; it begins when the engines hold the weights that it is of, and the loop gives them
no others before it is `over`; where nothing moves while the loop waits for it, engines that hold requests are
started again, and the job ends where that does not help.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from rljob_runtime.driver.first_of import first_of
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

    async def evaluate(self, step: int, version: int) -> None:
        """Evaluate the weights after `step` steps, which the engines hold as `version`."""
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
    ) -> None:
        """`spawn` starts a task whose failure ends the job; `activity` tells what has been done so far."""
        self.step: int | None = None
        """Of the evaluation under way; None where none is."""
        self._evaluating = evaluating
        self._pool = pool
        self._plan = plan
        self._spawn = spawn
        self._activity = activity
        self._stall_seconds = stall_seconds
        self._task: asyncio.Task[None] | None = None

    def begin(self, step: int, version: int, last: bool, sent: "asyncio.Task[None] | None") -> None:
        """Begin the evaluation of these weights, if it is due. `sent`: what brings them to the engines, where
        that is under way; the evaluation before is over."""
        if self._evaluating.due(step, last):
            self.step = step
            self._task = self._spawn(self._evaluate(step, version, sent))

    async def _evaluate(self, step: int, version: int, sent: "asyncio.Task[None] | None") -> None:
        if sent is not None:
            # Not the task itself, which is not to be cancelled with this one.
            await asyncio.wait((sent,))
        await self._plan.settled()
        await self._evaluating.evaluate(step, version)

    async def over(self, stop: asyncio.Event) -> None:
        """Wait until no evaluation is under way. One that is under way when `stop` is set is given up. Raises
        `Stalled`."""
        task, clock = self._task, asyncio.get_running_loop().time
        if task is None:
            return
        watch, restarted = StallWatch(self._stall_seconds, clock()), False
        while not task.done():
            ended = await first_of(self._stall_seconds / _LOOKS, asyncio.wait((task,)), stop.wait())
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
                self._pool.lose_stuck(what)
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
