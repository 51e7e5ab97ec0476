"""What becomes of engines and trainer when a version is broadcast and somebody is lost, in virtual time: in
the engines' pause, and while they generate."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from rljob_runtime.engines.fake import FakeEngine
from rljob_runtime.engines.protocol import EngineDied, WeightRef
from rljob_runtime.rollout.engine_slot import EngineSlot
from rljob_runtime.rollout.pool import EnginePool
from rljob_runtime.rollout.weight_sync import EngineSync, Push
from rljob_runtime.simulate.virtual_loop import run_virtual
from rljob_runtime.trace.record.event_log import EventLog

SETTLE = 15.0
DEADLINE = 300.0


class TrainerDied(RuntimeError):
    pass


class Group:
    """A collective: whoever comes waits until all have come, and for ever where one does not."""

    def __init__(self, members: int) -> None:
        self._missing = members
        self._complete = asyncio.Event()

    async def meet(self) -> None:
        self._missing -= 1
        if self._missing == 0:
            self._complete.set()
        await self._complete.wait()


class CollectiveEngine(FakeEngine):
    """Takes weights in a group; `fault` says what else happens."""

    def __init__(self, name: str, site: "Site", fault: str | None, stages: bool) -> None:
        super().__init__(name, lambda request: 1)
        self.stages = stages
        self._site = site
        self._fault = fault
        self._staged: WeightRef | None = None

    async def prepare(self, ref: WeightRef) -> None:
        assert ref.staged and not self._paused
        self._staged = None
        await self._receive(ref)
        self._staged = ref

    async def load(self, ref: WeightRef) -> None:
        assert ref.staged is self._site.staged
        if ref.staged:
            assert self._staged == ref
        else:
            await self._receive(ref)
        await super().load(ref)

    async def _receive(self, ref: WeightRef) -> None:
        fault, self._fault = self._fault, None
        if fault == "dies":
            await asyncio.sleep(1.0)
            self.die("killed")
            raise EngineDied("killed")
        if fault == "is found dead":
            await asyncio.sleep(1.0)
            self._site.pool.lost(self._site.slots[self.name], "killed")
            await asyncio.sleep(10 * DEADLINE)
        if fault == "refuses":
            raise ValueError("not the weights of this model")
        if fault != "has it already":
            await self._site.group.meet()


class Site:
    """Engines in a pool, and a trainer that broadcasts to them."""

    def __init__(
        self, faults: list[str | None], stages: bool | list[bool], trainer: str | None = None
    ) -> None:
        """`stages`: whether the engines take versions while they generate, all or each of them."""
        each = [stages] * len(faults) if isinstance(stages, bool) else stages
        self.staged = all(each)
        """Whether versions are to come so."""
        self.lost: list[str] = []
        self.broken_off: list[str] = []
        self.meetings: list[str] = []
        self.turn = asyncio.Lock()
        self.starts = 1
        self.pool = EnginePool(asyncio.get_running_loop().time, lambda slot, why: self.lost.append(why))
        self.push = Push(EngineSync(self.pool, DEADLINE, DEADLINE), "keep", SETTLE)
        self.slots: dict[str, EngineSlot] = {}
        self._trainer = trainer
        self._broken: dict[str, asyncio.Event] = {}
        for index, (fault, so) in enumerate(zip(faults, each, strict=True)):
            engine = CollectiveEngine(f"engine-{index}", self, fault, so)
            slot = EngineSlot(engine, "fast", 8, EventLog(None, 0, engine.name, "fast"))
            self.slots[engine.name] = slot
            self.pool.add(slot)
            self.pool.join(slot)

    async def publish(self, version: int) -> float:
        """Publish; the seconds that it took."""
        began = asyncio.get_running_loop().time()
        for slot in self.pool.slots:
            await slot.engine.start(slot.version)
        self.group = Group(1 + len(self.pool.slots))
        await self.push.deliver(WeightRef(version, "nccl", f"host:{version}"), self)
        return asyncio.get_running_loop().time() - began

    # Broadcaster

    async def transmit(self, ref: WeightRef) -> bool:
        assert self.turn.locked() and ref.staged is self.staged
        self.meetings.append(ref.location.split("/")[0])
        is_broken = self._broken.setdefault(ref.location, asyncio.Event())
        if self._trainer == "dies":
            await asyncio.sleep(1.0)
            raise TrainerDied("a process of the trainer died")
        met = asyncio.ensure_future(self.group.meet())
        broken = asyncio.ensure_future(is_broken.wait())
        await asyncio.wait((met, broken), return_when=asyncio.FIRST_COMPLETED)
        met.cancel()
        broken.cancel()
        return not is_broken.is_set()

    async def break_off(self, ref: WeightRef, why: str) -> None:
        self.broken_off.append(why)
        if self._trainer == "is stuck":
            raise TrainerDied("the trainer did not answer break_off")
        self._broken.setdefault(ref.location, asyncio.Event()).set()


def in_virtual_time(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    run_virtual(main())


@pytest.fixture(params=[False, True], ids=["in the pause", "while it generates"])
def stages(request: pytest.FixtureRequest) -> bool:
    """How engines take versions."""
    return bool(request.param)


def test_everybody_gets_the_version(stages: bool) -> None:
    async def main() -> None:
        site = Site([None, None], stages)
        assert await site.publish(1) == 0
        assert await site.publish(2) == 0
        assert [(slot.version, slot.joined) for slot in site.pool.slots] == [(2, True)] * 2
        assert (site.lost, site.broken_off, site.meetings) == ([], [], ["host:1", "host:1"])

    in_virtual_time(main)


@pytest.mark.parametrize("fault", ["dies", "is found dead"])
def test_a_lost_engine_ends_the_broadcast(fault: str, stages: bool) -> None:
    """Within the time that the others get to finish, not the deadline of a load; the trainer goes on, and the
    next version is sent in a new group to those who are there."""

    async def main() -> None:
        site = Site([None, fault, "has it already"], stages)
        assert await site.publish(1) == 1.0 + SETTLE
        assert site.broken_off == ["engine engine-1 was lost"]
        assert site.lost == ["killed", "engine engine-0: the broadcast of version 1 was broken off"]
        (survivor,) = site.pool.slots
        assert (survivor.engine.name, survivor.version, survivor.joined) == ("engine-2", 1, True)
        assert not site.turn.locked()
        assert await site.publish(2) == 0
        assert survivor.version == 2
        assert site.meetings == ["host:1", "host:2"]

    in_virtual_time(main)


def test_all_engines_can_be_lost(stages: bool) -> None:
    async def main() -> None:
        site = Site(["dies", None], stages)
        await site.publish(1)
        assert len(site.lost) == 2 and not site.pool.slots
        assert await site.publish(2) == 0

    in_virtual_time(main)


def test_an_engine_that_refuses_ends_the_job_and_not_the_trainers_patience(stages: bool) -> None:
    async def main() -> None:
        site = Site([None, "refuses"], stages)
        with pytest.raises(ValueError, match="not the weights of this model"):
            await site.publish(1)
        assert site.broken_off == ["engine engine-1 was lost"]
        assert asyncio.get_running_loop().time() == SETTLE

    in_virtual_time(main)


@pytest.mark.parametrize(
    ("trainer", "faults", "seconds"),
    [("dies", [None, None], 1.0 + SETTLE), ("is stuck", [None, "dies"], 1.0 + SETTLE)],
)
def test_engines_do_not_wait_for_a_trainer_that_is_gone(
    trainer: str, faults: list[str | None], seconds: float, stages: bool
) -> None:
    async def main() -> None:
        site = Site(faults, stages, trainer)
        with pytest.raises(TrainerDied):
            await site.publish(1)
        assert asyncio.get_running_loop().time() == seconds
        assert not site.pool.slots and not site.turn.locked()

    in_virtual_time(main)


def test_a_broadcast_waits_for_the_trainers_turn_before_engines_stand_still(stages: bool) -> None:
    async def main() -> None:
        site = Site([None], stages)
        await site.turn.acquire()
        publishing = asyncio.create_task(site.publish(1))
        await asyncio.sleep(1000)
        assert site.pool.slots[0].joined, "it goes on generating during a long step"
        site.turn.release()
        await publishing
        assert site.pool.slots[0].version == 1

    in_virtual_time(main)


def test_a_job_that_is_taken_down_does_not_wait(stages: bool) -> None:
    async def main() -> None:
        site = Site([None, "is found dead"], stages)
        publishing = asyncio.create_task(site.publish(1))
        await asyncio.sleep(0.5)
        publishing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await publishing
        assert asyncio.get_running_loop().time() == 0.5

    in_virtual_time(main)


@pytest.mark.parametrize("now", [True, False], ids=["now", "with the next version"])
def test_newcomers_get_what_the_trainer_holds_after_the_step_that_it_is_at(now: bool, stages: bool) -> None:
    """Never the weights of one step under the version of another."""

    async def main() -> None:
        site = Site([None, None], stages)
        steps_done = 3

        async def current() -> WeightRef | None:
            assert site.turn.locked()
            return WeightRef(steps_done, "nccl", f"host:{steps_done}") if now else None

        for slot in site.pool.slots:
            await slot.engine.start(slot.version)
        site.group = Group(1 + len(site.pool.slots))
        await site.turn.acquire()
        sending = asyncio.create_task(site.push.again(current, site))
        await asyncio.sleep(1000)
        steps_done = 4
        site.turn.release()
        await sending
        assert [slot.version for slot in site.pool.slots] == ([4, 4] if now else [0, 0])
        assert site.push.newest == (WeightRef(4, "nccl", "host:4") if now else None)

    in_virtual_time(main)


def test_a_trainer_that_was_started_again_meets_the_engines_where_it_is(stages: bool) -> None:
    async def main() -> None:
        site = Site([None, None], stages)
        for version, site.starts in ((1, 1), (2, 1), (3, 2), (4, 2)):
            await site.publish(version)
        assert site.meetings == ["host:1", "host:1", "host:3", "host:3"]

    in_virtual_time(main)


def test_engines_stand_still_when_all_of_them_have_a_version() -> None:
    async def main() -> None:
        site = Site([None, None], stages=True)
        for slot in site.pool.slots:
            await slot.engine.start(slot.version)
        # One more than there are: this test comes last.
        site.group = Group(4)
        publishing = asyncio.create_task(site.push.deliver(WeightRef(1, "nccl", "host:1"), site))
        await asyncio.sleep(100)
        assert [(slot.version, slot.joined) for slot in site.pool.slots] == [(0, True)] * 2
        for slot in site.pool.slots:
            assert not (await slot.engine.load_snapshot()).paused
        await site.group.meet()
        await publishing
        assert [(slot.version, slot.joined) for slot in site.pool.slots] == [(1, True)] * 2

    in_virtual_time(main)


def test_all_take_a_version_in_the_pause_where_one_engine_has_no_room_for_it() -> None:
    async def main() -> None:
        site = Site([None, None], stages=[True, False])
        assert await site.publish(1) == 0
        assert [slot.version for slot in site.pool.slots] == [1, 1]
        assert not site.lost

    in_virtual_time(main)


def test_an_engine_that_comes_while_a_version_arrives_is_in_the_next_group() -> None:
    async def main() -> None:
        site = Site([None, None], stages=True)
        newcomer = site.pool.slots[1]
        site.pool.remove(newcomer)
        for slot in (*site.pool.slots, newcomer):
            await slot.engine.start(0)
        site.group = Group(3)
        publishing = asyncio.create_task(site.push.deliver(WeightRef(1, "nccl", "host:1"), site))
        await asyncio.sleep(1)
        late = EngineSlot(newcomer.engine, "fast", 8, EventLog(None, 0, "late", "fast"))
        site.pool.add(late)
        await site.group.meet()
        await publishing
        assert [slot.version for slot in site.pool.slots] == [1, 0]
        assert not late.joined and not (await late.engine.load_snapshot()).paused
        assert await site.publish(2) == 0
        assert [(slot.version, slot.joined) for slot in site.pool.slots] == [(2, True)] * 2
        assert site.meetings == ["host:1", "host:2"]

    in_virtual_time(main)
