"""The rollout workers of a job: started, watched, replaced, moved with the cluster.

Guarantees:
- a worker joins the pool only with the weights of the newest published version;
- a worker that dies is replaced on its slot and its replacement joins the same way; one that keeps dying ends
  the job (`GivenUp`). One whose node is gone is not replaced, and that is charged to nobody: the next node
  that comes with a free slot gets a worker;
- `fleet.scaling` decides which slots have workers. A worker that has to go gets no more requests, those it
  runs go on elsewhere with the tokens they have, and it has ended before its pod is reported as released.
"""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from typing import Any

from rljob_runtime.engines.protocol import Engine, EngineDied, WeightRef
from rljob_runtime.fleet.member import FleetTimes, Member
from rljob_runtime.fleet.reporting import Reporting
from rljob_runtime.fleet.scaling import WorkerSlot, decide
from rljob_runtime.fleet.worker_spec import Workers, WorkerSpec
from rljob_runtime.restarts import RestartBudget
from rljob_runtime.rollout.engine_slot import EngineSlot
from rljob_runtime.rollout.pool import EnginePool
from rljob_runtime.rollout.weight_sync import WeightSync
from rljob_runtime.site.nodes import RayNode
from rljob_runtime.site.site import RESOURCES, Site
from rljob_runtime.weights.shm import WeightsGone
from rljob_runtime.weights.transport import STORED

POOLS = ("fast", "heavy")
_AGAIN_SECONDS = 30.0
"""Time after which a version that could not be had is asked for again."""
_SETTLED_SECONDS = 60.0
"""A worker that lived, and was not silent, for so long did its work: its next death is not one in a row."""

log = logging.getLogger(__name__)


class NoWorkers(RuntimeError):
    """No rollout worker came up."""


class Fleet:
    """See the module's guarantees."""

    def __init__(
        self,
        workers: Workers,
        pool: EnginePool,
        weights: WeightSync,
        push_again: Callable[[], Awaitable[None]],
        may_join: asyncio.Event,
        site: Site,
        spawn: Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"],
        say: Callable[[str], None],
        times: FleetTimes,
        clock: Callable[[], float],
    ) -> None:
        """`push_again` sends all engines what the trainer holds; nobody joins before `may_join`; `spawn`
        starts a task whose failure ends the job; `say` tells a person; `clock`: in seconds, of any clock that
        does not go back."""
        self._workers = workers
        self._pool = pool
        self._weights = weights
        self._push_again = push_again
        self._may_join = may_join
        self._site = site
        self._spawn = spawn
        self._say = say
        self._times = times
        self._clock = clock
        self._members: dict[str, Member] = {}
        """The workers that are wanted or leaving, by the keys of their worker slots."""
        self._released: set[str] = set()
        """Keys of the slots whose pods may go, or may once their workers have left."""
        self._specs: dict[str, WorkerSpec] = {}
        self._tending: set[asyncio.Task[None]] = set()
        self._reporting = Reporting(pool)
        self._closing = False

    async def started(self, stopping: Callable[[], bool]) -> None:
        """Wait until the workers that could be started at first serve, one at least; or until `stopping`.
        Raises `NoWorkers`."""
        changes, times = self._site.changes, self._times
        try:
            await changes.until(lambda: stopping() or bool(self._members), times.pods)
        except TimeoutError:
            raise NoWorkers(
                f"no pod of a rollout pool came within {times.pods:g} s (spec.runPolicy.startDeadlineSeconds)"
            ) from None
        # Those of the pods that are here by now: pods that come later do not hold up the start.
        first = dict(self._members)
        # Each worker has deadlines and a budget, which end it before this does; unless its pod is lost.
        seconds = times.pods + (1 + RestartBudget.limit) * (times.start + times.load)
        try:
            await changes.until(lambda: stopping() or self._all_serve(first), seconds)
        except TimeoutError:
            raise NoWorkers(f"no rollout worker came up within {seconds:g} s: their pods were lost") from None

    def lost(self, slot: EngineSlot, why: str) -> None:
        """An engine of the pool died: its worker learns why, and is replaced where it should be."""
        for member in self._members.values():
            if member.slot is slot and member.died is not None and not member.died.done():
                member.moved = len(slot.requests)
                member.died.set_result(why)
        self._relieve_newcomers()

    @property
    def starting(self) -> bool:
        """Whether an engine is started or loads its first weights, which has a deadline."""
        return any(member.starting for member in self._members.values())

    def flush_events(self) -> None:
        """Write out what is buffered of the workers' events."""
        for worker in self._specs.values():
            worker.events.flush()

    async def close(self) -> None:
        """End all workers. An engine's `close` has a deadline of its own."""
        # From here on nobody is started in the place of one that ends.
        self._closing = True
        for task in self._tending:
            task.cancel()
        await asyncio.gather(*self._tending, return_exceptions=True)
        await asyncio.gather(
            *(slot.engine.close() for slot in list(self._pool.slots)), return_exceptions=True
        )

    # Deciding

    def adjust(self) -> None:
        """Begin what the RLJob asks for now and the nodes allow; to be called when either has changed."""
        site, desired = self._site, self._site.desired()
        for member in self._members.values():
            if member.node.id not in site.table:
                self._gone(member)
        for pool in POOLS:
            nodes = dict(self._slots(pool))
            # Ray gives no id twice: a slot whose node is gone does not come back.
            self._released &= {key for key, _ in self._all_slots()}
            change = decide(
                desired.workers(pool),
                [self._worker_slot(key, node) for key, node in nodes.items()],
                desired.doomed,
            )
            self._released |= set(change.release)
            self._released -= set(change.rejoin)
            for key in change.release:
                if (leaver := self._members.get(key)) is not None:
                    leaver.leave.set()
            for key in change.start:
                self._begin(key, nodes[key], pool)
        # Only pods whose workers have ended: the operator may remove them at once.
        site.draft.released(
            node.pod for key, node in self._all_slots() if key in self._released and key not in self._members
        )

    def _slots(self, pool: str) -> Iterator[tuple[str, RayNode]]:
        """The worker slots of a pool: their keys and the nodes they are on."""
        resource = RESOURCES[pool]
        for node in self._site.table.having(resource):
            for unit in range(node.units(resource)):
                yield f"{pool}/{node.id}/{unit}", node

    def _all_slots(self) -> Iterator[tuple[str, RayNode]]:
        return itertools.chain.from_iterable(map(self._slots, POOLS))

    def _worker_slot(self, key: str, node: RayNode) -> WorkerSlot:
        """The state of a slot that `fleet.scaling` decides by."""
        member, released = self._members.get(key), key in self._released
        offered = node.pod in self._site.draft.offered
        if member is None:
            return WorkerSlot(key, node.pod, released=released, offered=offered)
        requests = member.slot.running if member.slot is not None else 0
        return WorkerSlot(key, node.pod, member.occupant, requests, member.joined_at, released, offered)

    def _begin(self, key: str, node: RayNode, pool: str) -> None:
        # The smallest number that is free, so that names stay few, however often pools are resized.
        taken = {member.worker.name for member in self._members.values()}
        name = next(name for index in itertools.count() if (name := f"{pool}-{index}") not in taken)
        worker = self._specs[name] = self._workers.spec(name, pool)
        member = Member(worker, node, RestartBudget(worker.described))
        self._members[key] = member
        self._reporting.workers(len(self._members))
        log.info("rollout worker %s starts on %s", name, node.pod or node.address)
        task = self._spawn(self._tend(key, member))
        self._tending.add(task)
        task.add_done_callback(self._tending.discard)
        # `started` waits for the first one, whose engine may take longer to start than its pod to come.
        self._site.changes.notify()

    def _gone(self, member: Member) -> None:
        """The member's node is not there any more: it leaves, and its engine counts as lost."""
        member.leave.set()
        if member.slot is not None:
            self._pool.lost(member.slot, f"{member.node.pod or member.node.address} is gone")

    # One worker

    async def _tend(self, key: str, member: Member) -> None:
        """A worker's life, over as many engines as its budget allows."""
        try:
            while True:
                slot = await self._come_up(member)
                if slot is None:
                    break
                why = await self._until_over(member)
                # It did not die: it has to leave.
                if why is None:
                    await self._take_off(member, slot)
                    break
                member.generated |= slot.generated
                await self._close(member, slot.engine)
                if not await self._still_there(member, why):
                    break
                self._charge(member, slot, why)
                self._say(f"{why}; {member.moved} requests move, a replacement starts")
        finally:
            if not self._closing:
                del self._members[key]
                self._reporting.workers(len(self._members))
                self._site.changes.notify()

    async def _until_over(self, member: Member) -> str | None:
        """Wait until the worker has died, and return why; or until it has to leave."""
        assert member.died is not None
        # No deadline: it lasts as long as the engine serves. A lost process, connection or node sets `died`.
        leaving = asyncio.ensure_future(member.leave.wait())
        try:
            await asyncio.wait((member.died, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
        return member.died.result() if member.died.done() else None

    async def _still_there(self, member: Member, why: str) -> bool:
        """Whether the node of a worker that died is still there."""
        node = member.node
        # The driver itself runs there.
        if node.id == self._site.home:
            return True
        there = node.id in self._site.table and await self._site.table.confirm(node.id)
        if not there:
            self._say(f"{why}: {node.pod or node.address} is gone; {member.moved} requests move")
        return there and not member.leave.is_set()

    async def _take_off(self, member: Member, slot: EngineSlot) -> None:
        """End a worker that has to leave, once its requests have moved."""
        moved = slot.running
        await self._pool.clear(slot, self._times.clear)
        await self._weights.remove(slot)
        self._relieve_newcomers()
        await self._close(member, slot.engine)
        where = member.node.pod or member.node.address
        self._say(f"rollout worker {member.worker.name} on {where} is released; {moved} requests moved")

    async def _close(self, member: Member, engine: Engine) -> None:
        try:
            await engine.close()
        except EngineDied as error:
            log.info("closing what is left of %s: %s", member.worker.name, error)
        member.slot = None

    def _charge(self, member: Member, slot: EngineSlot, why: str) -> None:
        if self._clock() - slot.silent_seconds - member.joined_at > _SETTLED_SECONDS:
            member.budget.worked()
        member.budget.failed(why, untried=not member.generated)

    async def _come_up(self, member: Member) -> EngineSlot | None:
        """Start the worker and let it join; None when it has to leave before."""
        back = member.joined_at > 0
        while not member.leave.is_set():
            coming = asyncio.ensure_future(self._bring_up(member))
            leaving = asyncio.ensure_future(member.leave.wait())
            try:
                await asyncio.wait((coming, leaving), return_when=asyncio.FIRST_COMPLETED)
                # It has to leave: what was begun is cancelled below.
                if not coming.done():
                    break
                slot = coming.result()
            except EngineDied as error:
                why = str(error)
            except TimeoutError:
                why = member.too_slow(self._times)
            else:
                self._welcome(member, back)
                return slot
            finally:
                leaving.cancel()
                await _cancel(coming)
                member.starting = member.loading = False
            if await self._still_there(member, why):
                member.budget.failed(why, untried=not member.generated)
                self._say(f"rollout worker {member.worker.name}: {why}; it is started again")
            else:
                break
        return None

    def _welcome(self, member: Member, back: bool) -> None:
        if back:
            self._say(f"rollout worker {member.worker.name} is back")
        elif not self._site.one_machine:
            self._say(f"rollout worker {member.worker.name} serves on {member.node.pod}")

    async def _bring_up(self, member: Member) -> EngineSlot:
        member.starting = True
        async with asyncio.timeout(self._times.start):
            engine = await self._workers.make(member.worker, member.node)
        member.starting = False
        worker = member.worker
        slot = EngineSlot(engine, worker.pool, worker.limit, worker.events, devices=worker.devices)
        try:
            async with asyncio.timeout(self._times.start):
                slot.kv_tokens = (await engine.load_snapshot()).kv_tokens
            if slot.kv_tokens is not None and slot.kv_tokens < 1:
                raise EngineDied(f"engine {engine.name} says that its KV cache holds {slot.kv_tokens} tokens")
            worker.events.has_cache(slot.kv_tokens)
            await self._enter(member, slot)
        # Also when it is cancelled: a process without a slot would keep its accelerators.
        except BaseException:
            self._pool.remove(slot)
            await self._close(member, engine)
            raise
        return slot

    async def _enter(self, member: Member, slot: EngineSlot) -> None:
        """Bring the engine to the newest version and let it join."""
        loaded: WeightRef | None = None
        # No deadline: the start of the trainer has one, and the job ends where it keeps failing.
        await self._may_join.wait()
        # Again where a newer version was published while one was loaded. None: the initial weights, with
        # which every engine starts, are the newest.
        while (ref := self._weights.newest) != loaded and ref is not None:
            if ref.transport not in STORED:
                # It is sent to all engines together, this one among them, and then they join.
                self._add(member, slot)
                self._spawn(self._push_to_all())
                return
            if await self._load(member, slot, ref):
                loaded = ref
            else:
                await self._another_version(ref)
        # No await since `newest` was looked at: from here on each version is sent to this engine too.
        self._add(member, slot)
        self._pool.join(slot)
        self._site.changes.notify()

    async def _another_version(self, ref: WeightRef) -> None:
        """After a version could not be had: wait for another one, which may take a step; not for long, for
        it may have been the network, and there may be nobody else to generate for that step."""
        with suppress(TimeoutError):
            await self._weights.newest_changed.until(lambda: self._weights.newest != ref, _AGAIN_SECONDS)

    def _relieve_newcomers(self) -> None:
        """Engines that have yet to join may wait for the next version, which waits for steps; with nobody
        else left to generate for those, they are to get what the trainer holds."""
        newest = self._weights.newest
        broadcast = newest is not None and newest.transport not in STORED
        if broadcast and self._pool.only_newcomers and not self._closing:
            self._spawn(self._push_to_all())

    async def _push_to_all(self) -> None:
        await self._push_again()
        self._site.changes.notify()

    def _add(self, member: Member, slot: EngineSlot) -> None:
        member.slot, member.joined_at = slot, self._clock()
        member.died = asyncio.get_running_loop().create_future()
        self._pool.add(slot)
        self._reporting.begin(slot)

    async def _load(self, member: Member, slot: EngineSlot, ref: WeightRef) -> bool:
        """Load a version; False where it was not there any more, and the engine has the weights that it
        had."""
        engine, there, member.starting = slot.engine, True, True
        member.loading = True
        async with asyncio.timeout(self._times.load):
            # It runs nothing yet, but `load` is legal only while an engine is paused.
            await engine.pause("abort")
            try:
                await engine.load(ref)
                # Not through the pool, which does not have it yet.
                slot.version = ref.version
            except WeightsGone as error:
                log.info("%s waits for another version: %s", engine.name, error)
                there = False
            await engine.resume()
        member.starting = member.loading = False
        return there

    def _all_serve(self, members: Mapping[str, Member]) -> bool:
        """Whether none of these is still on its way, and some engine has joined."""
        coming = any(self._members.get(key) is member and member.coming for key, member in members.items())
        return not coming and any(slot.joined for slot in self._pool.slots)


async def _cancel(task: "asyncio.Future[Any]") -> None:
    """Cancel a task and wait for its end; its outcome is of no interest any more."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
