"""The live engines, and the requests that wait for one or run on one.

Guarantees:
- which request runs on which engine is the router's decision (`routing.router`), and `decide` carries it out;
- a request is placed only on an engine that has joined, and never above the engine's limit;
- what is placed counts on its engine until it is finished, interrupted or cancelled, once;
- an engine that is set aside gets no request but those that are dispatched for engines set aside, which no
  other engine gets, and its version is none that is generated with for training;
- what is done for each request takes the same time for any number of engines, but for the router, which takes
  O(log engines).
"""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

from rljob_runtime.engines.answers import wrong_progress
from rljob_runtime.engines.protocol import Request
from rljob_runtime.rollout.aborts import Aborts
from rljob_runtime.rollout.engine_slot import EngineSlot
from rljob_runtime.rollout.pool_use import PoolUse
from rljob_runtime.rollout.step_costs import StepCosts
from rljob_runtime.rollout.versions_held import VersionsHeld
from rljob_runtime.routing.policy import Division, Expectation, Policy
from rljob_runtime.routing.requests import GroupRequest, Move, MoveReason, Place, RequestKey
from rljob_runtime.routing.router import Router

LeftReason: TypeAlias = MoveReason | Literal["drained", "set_aside", "update", "engine", "lost"]
"""Why a response has left its engine without being complete: routing moved it, its engine leaves, or was set
aside, a weight update took it out, its engine gave it up by itself, or its engine was lost."""


class EnginePool:
    """See the module's guarantees."""

    def __init__(
        self,
        clock: Callable[[], float],
        on_lost: Callable[[EngineSlot, str], None],
        policy: Policy | None = None,
    ) -> None:
        """`clock`: in seconds, of any clock that does not go back. `on_lost` is told, once, of each engine
        that died, and why. `policy`: where requests go; the least loaded engine where it is not given."""
        self.slots: list[EngineSlot] = []
        """The live engines, in the order in which they were added."""
        self.step = 0
        """The step that is being trained; labels events."""
        self.router = Router(policy or Policy())
        self.aside = Router(Policy())
        """Decides for the engines that are set aside; `router` for all others."""
        self._clock = clock
        self._on_lost = on_lost
        self._by_number: dict[int, EngineSlot] = {}
        self._added = 0
        self._joined = 0
        """How many have joined."""
        self._versions = VersionsHeld()
        """Of the live engines that have entered."""
        self._placed: dict[RequestKey, EngineSlot] = {}
        """The engine of each request that is placed, those that are gone among them."""
        self._waiters: dict[RequestKey, asyncio.Future[EngineSlot]] = {}
        """Who waits for its request to be placed."""
        self._aborts = Aborts(self.lost)
        self._costs = StepCosts()
        self._gone: dict[str, PoolUse] = {}
        """What engines that are gone have done, by pool."""
        self._listeners: list[Callable[[], None]] = []

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever `decide` may have something to do: a request has left its engine, running
        ones have progressed, or an engine joined or is gone."""
        self._listeners.append(listener)

    # Engines

    def add(self, slot: EngineSlot) -> None:
        """Add a live engine; it gets requests once it joins."""
        slot.drained.set()
        self.slots.append(slot)
        self._give_number(slot)

    def join(self, slot: EngineSlot) -> None:
        """Give this engine requests: it is ready and holds the weights of `slot.version`. One that is leaving
        or gone gets none."""
        if slot.leaving or slot.joined or slot.aside or not slot.alive:
            return
        if not slot.entered:
            slot.entered = True
            self._versions.add(slot.version)
        self._joined += 1
        self._serve(slot)

    def leave(self, slot: EngineSlot) -> None:
        """Give this engine no further requests until it joins again; those it runs go on."""
        if slot.joined:
            slot.joined = False
            slot.pauses += 1
            self._joined -= not slot.aside
            self._router(slot).leave(slot.number)
            self._costs.paused(slot)

    def loaded(self, slot: EngineSlot, version: int) -> None:
        """This engine holds the weights of `version` now."""
        if slot.entered and slot.alive:
            self._versions.remove(slot.version)
            self._versions.add(version)
        slot.version = version

    async def clear(self, slot: EngineSlot, seconds: float) -> None:
        """Make this engine leave for good. Returns when its requests have moved on, with the tokens that they
        have, or when it is gone; one that keeps requests for longer than `seconds` is lost."""
        slot.leaving = True
        self.leave(slot)
        await self._aborts.all_of(slot, seconds)

    def set_aside(self, slot: EngineSlot) -> None:
        """Take this engine, which gets requests of training, from training: it keeps its version, which
        counts no more, and serves once `serve_aside` has cleared it."""
        self.leave(slot)
        self._versions.remove(slot.version)
        slot.entered = False
        self._give_number(slot)
        slot.aside = True

    async def serve_aside(self, slot: EngineSlot, seconds: float) -> None:
        """Move what this engine, which was set aside, runs of training, and give it requests of its own. One
        that keeps requests for longer than `seconds` is lost."""
        await self._aborts.all_of(slot, seconds)
        if slot.aside and slot.alive and not slot.leaving:
            self._serve(slot)

    def take_back(self, slot: EngineSlot) -> None:
        """This engine, on which nothing is, is set aside no more: it gets requests of training once it
        joins."""
        if slot.aside and slot.alive:
            self.leave(slot)
            self._give_number(slot)
            slot.aside = False

    @property
    def training_slots(self) -> list[EngineSlot]:
        """The live engines that are not set aside."""
        return [slot for slot in self.slots if not slot.aside]

    @property
    def aside_slots(self) -> list[EngineSlot]:
        """The live engines that are set aside and do not leave."""
        return [slot for slot in self.slots if slot.aside and not slot.leaving]

    def remove(self, slot: EngineSlot) -> None:
        """Forget an engine that has left, or that was never added."""
        if self._has(slot):
            self._forget(slot)
            self._changed()

    def lost(self, slot: EngineSlot, why: str, silent: bool = False) -> None:
        """This engine died: it is taken out, and `on_lost` is told. A second time nothing happens. `silent`:
        it did not die by itself, but has not done its work since it told of tokens last."""
        if self._has(slot):
            if silent:
                slot.silent_seconds = math.inf if slot.told_at is None else self._clock() - slot.told_at
            self._forget(slot)
            self._on_lost(slot, why)
            self._changed()

    def lose_stuck(self, slots: Sequence[EngineSlot], why: str) -> None:
        """Nothing moves although these engines hold requests: they count as lost, so that the requests go on
        on others. `why`: what they did or did not do, as a clause."""
        for slot in slots:
            self.lost(slot, f"engine {slot.engine.name} {why}", silent=True)

    def lose_newer(self, version: int) -> None:
        """The job went back to `version`: what engines hold above it are weights of steps that do not count,
        and nothing may be generated with them."""
        for slot in [slot for slot in self.slots if slot.version > version]:
            what = f"could not go back from version {slot.version} to {version}"
            self.lost(slot, f"engine {slot.engine.name} {what}")

    def oldest_version(self) -> int | None:
        """Oldest version with which tokens may be generated: that of the live engines, without those that
        have yet to join, for they join with the newest. None when none gets requests."""
        return self._versions.oldest() if self._joined else None

    def use(self) -> dict[str, PoolUse]:
        """What the engines of each pool have done until now."""
        found, now = dict(self._gone), self._clock()
        for slot in self.slots:
            found[slot.pool] = found.get(slot.pool, PoolUse()) + slot.use(now)
        return found

    @property
    def only_newcomers(self) -> bool:
        """Whether the engines that are there for training all have yet to join."""
        return self._versions.oldest() is None and any(not slot.aside for slot in self.slots)

    # Requests

    def wants_group(self, awaited: bool = False) -> bool:
        """Whether another group is to be dispatched, as far as engines go; see the router's."""
        return self._joined > 0 and self.router.wants_group(awaited)

    def dispatch(self, group: GroupRequest, aside: bool = False) -> None:
        """A group is to be generated: each of its responses may be awaited by `acquire` from now on. `aside`:
        by engines that are set aside."""
        (self.aside if aside else self.router).dispatch(group, self._clock())

    async def acquire(self, key: RequestKey) -> EngineSlot:
        """The engine on which a response of a dispatched group was placed; waits until it is.

        It has no deadline, for a full house may be busy as long as it likes: engines end their requests or
        die, and the fleet replaces them or ends the job."""
        if (slot := self._placed.get(key)) is not None:
            return slot
        future: asyncio.Future[EngineSlot] = asyncio.get_running_loop().create_future()
        self._waiters[key] = future
        try:
            return await future
        finally:
            del self._waiters[key]

    def expects(self, key: RequestKey) -> Expectation | None:
        """What routing believes of a response that was placed and has not begun; None: nothing."""
        router = self._decider(key.uid)
        return router.policy.expects(router.book.request(key))

    def for_long(self, slot: EngineSlot) -> bool:
        """Whether an engine is one of those for long responses now."""
        return self.division is not None and slot.number in self.division.engines

    @property
    def division(self) -> Division | None:
        """How routing divides work by length now."""
        return self.router.policy.division

    def may_submit(self, slot: EngineSlot, key: RequestKey) -> bool:
        """Whether a response that was placed on this engine may be submitted to it: not where the engine was
        told to leave, or set aside, or the response to move, in the meantime."""
        set_aside = self._router(slot) is not self._decider(key.uid)
        return not slot.leaving and not set_aside and not self.moves(key)

    def take_out(self, slot: EngineSlot, request_id: str) -> None:
        """Have a response for which its engine does nothing leave it, as one does that moves."""
        key, _ = slot.requests[request_id]
        if self._decider(key.uid).take_out(key):
            self._aborts.begin(slot, request_id)

    def moves(self, key: RequestKey) -> bool:
        """Whether routing has told a response that is placed to leave its engine."""
        return self._decider(key.uid).book.request(key).moving

    def reason_left(self, slot: EngineSlot, key: RequestKey) -> LeftReason:
        """Why a response has left this live engine without being complete. Asked before `interrupted`."""
        request = self._decider(key.uid).book.request(key)
        if request.moving:
            return request.reason
        if slot.leaving:
            return "drained"
        if self._router(slot) is not self._decider(key.uid):
            return "set_aside"
        return "engine" if slot.joined else "update"

    def submitted(self, slot: EngineSlot, key: RequestKey, request: Request) -> None:
        """A response is about to be submitted to its engine, as this request."""
        name = request.request_id
        if slot.joined:
            self._costs.given(slot, request, self._clock())
        slot.requests[name] = key, request.generated
        slot.most_tokens[name] = request.max_tokens
        slot.promised += request.max_tokens
        slot.given += len(request.tokens)

    def left(self, slot: EngineSlot, request_id: str, tokens: int) -> None:
        """What was submitted to this engine has ended there, with so many tokens of that stay."""
        slot.tell({request_id: tokens}, self._clock())
        del slot.requests[request_id], slot.most_tokens[request_id]
        slot.told.pop(request_id, None)
        self._costs.ended(slot, request_id)

    def progressed(self, slot: EngineSlot, tokens: Mapping[str, int], prefilled: int = 0) -> None:
        """Requests that were submitted to this engine have generated so many tokens there, by request id, and
        it has prefilled so many tokens. An engine that says what cannot be is lost."""
        if (wrong := wrong_progress(tokens, slot.most_tokens)) is not None:
            self.lost(slot, f"engine {slot.engine.name} {wrong}")
            return
        known = slot.requests
        progress = {
            known[request_id][0]: known[request_id][1] + count
            for request_id, count in tokens.items()
            if request_id in known
        }
        slot.generated |= any(tokens.values())
        slot.reports += 1
        now = self._clock()
        slot.tell(tokens, now)
        self._router(slot).progressed(progress, now)
        if slot.joined:
            kv_tokens = self._router(slot).book.engines[slot.number].kv_tokens
            here = {request_id: count for request_id, count in tokens.items() if request_id in known}
            for other in self._costs.report(slot, here, kv_tokens, prefilled, self.slots, now):
                if other.joined:
                    self._router(other).join(other.number, other.shape)
        self._changed()

    def finished(self, key: RequestKey, tokens: int) -> None:
        """A response is complete, with so many tokens."""
        slot = self._placed.pop(key)
        slot.generated = True
        slot.vacate(self._clock())
        self._decider(key.uid).finished(key, tokens, self._clock())
        self._changed()

    def interrupted(self, key: RequestKey, tokens: int) -> bool:
        """A response left its engine with so many tokens and is not complete; `acquire` waits for its next
        engine. Returns whether it begins anew, without its tokens."""
        self._placed.pop(key).vacate(self._clock())
        restart = self._decider(key.uid).interrupted(key, tokens, self._clock())
        self._changed()
        return restart

    def cancel(self, uid: int) -> None:
        """A group is given up; nobody awaits its responses any more, and none of them is on an engine."""
        router = self._decider(uid)
        group = router.book.groups.get(uid)
        if group is not None:
            for request in list(group.requests.values()):
                if (slot := self._placed.pop(request.key, None)) is not None:
                    slot.vacate(self._clock())
            router.cancel(uid)
            self._changed()

    def decide(self) -> bool:
        """Carry out what the router decides; whether it placed anything."""
        actions = [*self.router.decide(self._clock()), *self.aside.decide(self._clock())]
        for action in actions:
            match action:
                case Place(key, number):
                    slot = self._placed[key] = self._occupy(number)
                    waiter = self._waiters.get(key)
                    if waiter is not None and not waiter.done():
                        waiter.set_result(slot)
                case Move(key):
                    self._take_out(key)
        return any(isinstance(action, Place) for action in actions)

    def _take_out(self, key: RequestKey) -> None:
        """Have a response leave its engine; `interrupted` follows when it has, or `finished`."""
        slot = self._placed[key]
        # One that was placed and not submitted yet is interrupted by the rollouter, which asks `may_submit`.
        if (request_id := slot.has(key)) is not None:
            self._aborts.begin(slot, request_id)

    # Accounts

    def _router(self, slot: EngineSlot) -> Router:
        return self.aside if slot.aside else self.router

    def _decider(self, uid: int) -> Router:
        """The router that has a group."""
        return self.aside if uid in self.aside.book.groups else self.router

    def _give_number(self, slot: EngineSlot) -> None:
        """A number that no router knows. One that knew the slot takes it for an engine that is gone."""
        if self._has(slot):
            self._router(slot).remove(slot.number)
            del self._by_number[slot.number]
        slot.number = self._added
        self._added += 1
        self._by_number[slot.number] = slot

    def _serve(self, slot: EngineSlot) -> None:
        slot.serve(self._clock())
        self._costs.serves(slot)
        self._router(slot).join(slot.number, slot.shape)
        self._changed()

    def _has(self, slot: EngineSlot) -> bool:
        return slot.number in self._by_number

    def _forget(self, slot: EngineSlot) -> None:
        self.leave(slot)
        self._router(slot).remove(slot.number)
        slot.alive = False
        slot.drained.set()
        use = replace(slot.use(self._clock()), running=0)
        self._gone[slot.pool] = self._gone.get(slot.pool, PoolUse()) + use
        self.slots.remove(slot)
        del self._by_number[slot.number]
        if slot.entered:
            self._versions.remove(slot.version)

    def _changed(self) -> None:
        for listener in self._listeners:
            listener()

    def _occupy(self, number: int) -> EngineSlot:
        slot = self._by_number[number]
        slot.occupy(self._clock(), self.step)
        return slot
