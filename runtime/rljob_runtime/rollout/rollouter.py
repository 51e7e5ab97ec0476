"""The loop that turns prompts into groups: it executes what staleness control and routing decide.

Guarantees:
- every dispatched group ends exactly once: put into the queue, refused, or cancelled with a reason; the
  counters sum;
- a response survives weight updates (its tokens so far are kept) and the loss of its engine (it goes on
  elsewhere from what earlier attempts had returned);
- prompts are dispatched in order, and only when an engine can begin at once, so that a group is as fresh as
  it can be;
- between `hold` and `restart` no group is under way;
- an unexpected error ends `run` with that error, never a silent stop.
"""

import asyncio
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol

from rljob_runtime.groups.counts import OVER_SAMPLING, GroupCounts
from rljob_runtime.groups.filter import all_equal
from rljob_runtime.groups.ledger import Ledger
from rljob_runtime.groups.responses import Response, response_seed
from rljob_runtime.groups.staleness import StalenessController
from rljob_runtime.groups.state import RolloutSettings
from rljob_runtime.rewards import Score, failure_reason
from rljob_runtime.rollout.division_log import DivisionLog
from rljob_runtime.rollout.group_times import reward_times, sibling_spread, teacher_time
from rljob_runtime.rollout.pool import EnginePool
from rljob_runtime.rollout.responder import Responder, Wanted
from rljob_runtime.rollout.sibling_texts import sibling_texts
from rljob_runtime.routing.requests import GroupRequest
from rljob_runtime.samples import Group, Prompt, Sample
from rljob_runtime.trace.record.event_log import EventLog

_GROUPS_A_TURN = 64
"""Most prompts dispatched in one turn of the loop, so that a large batch does not hold up everything else."""


class Scorer(Protocol):
    """Scores the responses of one group."""

    async def __call__(self, prompt: Prompt, responses: Sequence[Response]) -> Sequence[Score]:
        """A score for each response."""
        ...


class GroupSink(Protocol):
    """Where finished groups go: the queue, by way of the outbox."""

    async def __call__(self, group: Group) -> None:
        """Returns when the queue has the group. Admission has kept room for it since its dispatch, so that
        this waits for the queue's host alone."""
        ...


class Rollouter:
    """See the module's guarantees."""

    def __init__(
        self,
        settings: RolloutSettings,
        pool: EnginePool,
        controller: StalenessController,
        prompts: Callable[[int], Prompt],
        ledger: Ledger,
        todo: Iterator[int],
        scorer: Scorer,
        sink: GroupSink,
        events: EventLog,
    ) -> None:
        """`prompts` gives the prompt of a uid; `todo` yields the uids to dispatch, oldest first; refused ones
        are recorded in `ledger`."""
        self.counts = GroupCounts()
        self.group_ready = asyncio.Event()
        """Set whenever a group was put or refused; whoever waits for groups clears it."""
        self.pool = pool
        self._settings = settings
        self._controller = controller
        self._prompts = prompts
        self._ledger = ledger
        self._todo = todo
        self._scorer = scorer
        self._sink = sink
        self._events = events
        self._division = DivisionLog(events)
        # By name: whoever restores a job sets other counts.
        self.responder = Responder(pool, events, lambda: self.counts, sibling_texts(settings.speculation))
        """Generates single responses."""
        self.waits_from = -math.inf
        """Since when engines with room wait for admission, and not for the trainer's start; by the events'
        clock."""
        self._wake = asyncio.Event()
        """Set when admission may have another answer than before."""
        self._on_hold = False
        self._groups: dict[int, asyncio.Task[None]] = {}
        """The groups under way, by uid."""
        self._ending: dict[int, asyncio.Task[None]] = {}
        """Groups that were aborted, by uid, until their requests have ended."""
        pool.listen(self._wake.set)

    async def run(self) -> None:
        """Dispatch prompts as admission and routing allow, until cancelled.

        After some prompts, or when none may be dispatched, it waits until something has changed: a request
        has left its engine, an engine has joined, the job has a new version or step. It has no deadline: the
        training loop watches how long its step waits for groups."""
        try:
            async with asyncio.TaskGroup() as tasks:
                await self._dispatch(tasks)
        finally:
            self._division.close()
            self._give_up(self._groups)

    async def _dispatch(self, tasks: asyncio.TaskGroup) -> None:
        held_since: float | None = None
        while True:
            self._wake.clear()
            dispatched = 0
            while dispatched < _GROUPS_A_TURN and (prompt := self._dispatch_next()) is not None:
                dispatched += 1
                task = tasks.create_task(self._grow(prompt), name=f"group-{prompt.uid}")
                self._groups[prompt.uid] = task
            # Not before all are dispatched that are to be: the first plan would know only a few of them.
            more = dispatched == _GROUPS_A_TURN
            placed = not self._on_hold and not more and self.pool.decide()
            self._division.look(self.pool.division, self.pool.step)
            if dispatched and held_since is not None:
                self._waited(held_since)
            if dispatched or self._on_hold:
                held_since = None
            # Engines have room, and admission lets no prompt begin: that time is recorded.
            elif held_since is None and not placed and self.pool.wants_group():
                held_since = self._events.clock()
            if dispatched or placed:
                # There may be more to dispatch: in the next turn of the loop, so that others have theirs.
                asyncio.get_running_loop().call_soon(self._wake.set)
            await self._wake.wait()

    def _waited(self, since: float) -> None:
        """Engines had room `since` then, and admission let no prompt begin until now."""
        began, now = max(since, self.waits_from), self._events.clock()
        if began < now:
            self._events.add("admission_wait", self.pool.step, began, now - began)

    @property
    def steps_left(self) -> int:
        """Steps that the job has yet to train."""
        return self._controller.steps_left

    def poke(self) -> None:
        """Something that admission depends on has changed."""
        self._wake.set()

    async def hold(self, reason: str) -> None:
        """Cancel every group that is not in the queue, which ends its requests on their engines, and dispatch
        none until `restart`: the engines that are freed would get groups of a state that is given up.

        Returns when the groups have ended: what they wait for, they stop waiting for at once."""
        self._on_hold = True
        tasks = dict(self._groups)
        for uid, task in tasks.items():
            task.cancel()
            del self._groups[uid]
        self.counts.cancel(reason, len(tasks))
        await asyncio.gather(*tasks.values(), *self._ending.values(), return_exceptions=True)
        self._give_up(tasks)

    def _give_up(self, uids: Iterable[int]) -> None:
        """The tasks of these groups have ended; what the pool still has of them is no use any more."""
        for uid in uids:
            self.pool.cancel(uid)

    def taken(self, step: int, uids: Sequence[int]) -> None:
        """Step `step` trains these groups; what it has no use for any more is aborted."""
        self._controller.taken(step, uids)
        self._abort_surplus()

    def _abort_surplus(self) -> None:
        """Abort the groups that over-sampling has no use for any more, at once; their prompts may be
        dispatched again when their requests have ended."""
        controller = self._controller
        for uid in controller.surplus():
            task = self._ending[uid] = self._groups.pop(uid)
            self.counts.cancel(OVER_SAMPLING, 1)
            task.add_done_callback(partial(self._ended, controller, uid))
            task.cancel()
            # Its place is free.
            self.poke()

    def _ended(self, controller: StalenessController, uid: int, task: "asyncio.Task[None]") -> None:
        """A group that was aborted has ended."""
        del self._ending[uid]
        self._give_up([uid])
        controller.ended(uid)
        self.poke()

    def restart(self, controller: StalenessController, ledger: Ledger, todo: Iterator[int]) -> None:
        """Go on from another state of the job, for which the engines have their weights."""
        if self._groups:
            raise RuntimeError(f"{len(self._groups)} groups of the state before are under way")
        self._controller, self._ledger, self._todo = controller, ledger, todo
        self._on_hold = False
        self.poke()

    def _dispatch_next(self) -> Prompt | None:
        """Dispatch the next prompt, if admission and routing let it; which it was."""
        if self._on_hold:
            return None
        version = self.pool.oldest_version()
        if version is None or not self.pool.wants_group(self._controller.awaits_group(version)):
            return None
        uid = self._next_uid(version)
        if uid is None:
            return None
        self._controller.dispatched(uid, version)
        self.counts.dispatch()
        with self._events.span("prompt_fetch", self.pool.step, uid=uid):
            prompt = self._prompts(uid)
        samples, deadline = self._settings.samples_per_prompt, self._controller.deadline(uid)
        self.pool.dispatch(GroupRequest(uid, prompt.row, len(prompt.tokens), samples, deadline))
        # One that is not aborted again takes a slot of those that may be.
        self._abort_surplus()
        return prompt

    def _next_uid(self, version: int) -> int | None:
        """The prompt that admission lets begin now."""
        held = self._controller.held_prompt(version)
        if held is not None or self._controller.room(version) == 0:
            return held
        return next(self._todo, None)

    async def _grow(self, prompt: Prompt) -> None:
        """One group, from prompt to queue, unless it is refused. Nothing here has a deadline of its own:
        engines end their requests or die, the scorer has a time limit for each reward, and so has the sink
        for its put."""
        # Kept: after a `hold` there is another controller, which does not know this group.
        controller, uid = self._controller, prompt.uid
        version = controller.dispatch_version(uid)
        async with asyncio.TaskGroup() as tasks:
            growing = [
                tasks.create_task(self._respond(prompt, index))
                for index in range(self._settings.samples_per_prompt)
            ]
        responses = [task.result() for task in growing]
        # Before it is scored: its responses are complete, and recorded as such.
        controller.claim(uid)
        self._abort_surplus()
        with self._events.span("reward", self.pool.step, uid=uid) as extra:
            scores = await self._scorer(prompt, responses)
            extra["rewards"] = [None if each.failure is not None else each.value for each in scores]
            extra |= reward_times(scores) | teacher_time(scores) | {"spread": sibling_spread(responses)}
        found = [(each.value, each.failure) for each in scores]
        reason = self._settings.filter.reason(found)
        # Without an await between them, as in what follows the put: whoever looks finds it in one place.
        if reason is not None and controller.refuse(uid):
            del self._groups[uid]
            self._ledger.refuse(uid, reason)
            self.counts.refuse(reason)
            # A step may be ready without it, and another prompt may take its place.
            self.group_ready.set()
            self.poke()
            return
        with self._events.span("group_assembly", self.pool.step, uid=uid):
            group = self._assemble(prompt, responses, scores, version)
        with self._events.span("put", self.pool.step, uid=uid):
            await self._sink(group)
        # The queue has it: from here on `hold` must not count it as cancelled. What is cancelled before is
        # generated again, so that nothing of it counts until now.
        del self._groups[uid]
        for each in scores:
            if each.failure is not None:
                self.counts.reject(failure_reason(each.failure))
        lengths = [len(response.tokens) for response in responses]
        outside = self._settings.filter.outside(found)
        self.counts.accept(lengths, all_equal(found), controller.again(uid), outside)
        controller.put(uid)
        self.group_ready.set()

    def _assemble(
        self,
        prompt: Prompt,
        responses: Sequence[Response],
        scores: Sequence[Score],
        version: int,
    ) -> Group:
        samples = []
        for response, score in zip(responses, scores, strict=True):
            samples.append(
                Sample(
                    tokens=response.tokens,
                    log_probs=response.log_probs,
                    spans=response.spans,
                    finish=response.finish,
                    reward=score.value,
                    failure=score.failure,
                    engine=response.engine,
                    seconds=response.seconds,
                    reward_parts=score.parts,
                    reward_metrics=score.metrics,
                    reward_values_failed=len(score.complaints),
                    teacher_log_probs=score.teacher_log_probs,
                )
            )
        return Group(prompt.uid, prompt.epoch, prompt.row, prompt.tokens, tuple(samples), version)

    async def _respond(self, prompt: Prompt, index: int) -> Response:
        wanted = Wanted(
            self._settings.most_tokens(prompt.uid, index),
            response_seed(self._settings.seed, prompt.uid, index),
            exact=self._settings.forced is not None,
        )
        return await self.responder.respond(prompt, index, wanted)
