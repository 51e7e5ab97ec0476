"""Engines that put a version in without a pause, beside others: who is paused, who gets requests when, and
what is recorded. In virtual time."""

import asyncio
from pathlib import Path

import pytest

from rljob_runtime.engines.fake import FakeEngine
from rljob_runtime.engines.protocol import EngineDied, PauseMode, WeightRef
from rljob_runtime.rollout.engine_slot import EngineSlot
from rljob_runtime.rollout.pool import EnginePool
from rljob_runtime.rollout.weight_sync import EngineSync, Push
from rljob_runtime.simulate.virtual_loop import run_virtual
from rljob_runtime.trace.analyse.event_files import Tally, read_steps
from rljob_runtime.trace.record.event_log import EVENTS_FOLDER, EventLog
from tests.support.simulated.watched_rollout import WatchedRollout

DEADLINE = 100.0
STAGE, SWAP, LOAD = 7.0, 0.25, 2.0


class SwappingEngine(FakeEngine):
    """Takes a version while it generates, where it `stages`; puts it in without a pause, says that it cannot,
    or fails."""

    def __init__(self, name: str, stages: bool, swaps: bool | Exception) -> None:
        super().__init__(name, lambda request: 1)
        self.stages = stages
        self.did: list[str] = []
        self._swaps = swaps

    async def prepare(self, ref: WeightRef) -> None:
        self.did.append("prepare")
        await asyncio.sleep(STAGE)

    async def swap(self, ref: WeightRef) -> bool:
        self.did.append("swap")
        await asyncio.sleep(SWAP)
        if isinstance(self._swaps, Exception):
            raise self._swaps
        if self._swaps:
            self.version = ref.version
        return self._swaps

    async def pause(self, mode: PauseMode) -> None:
        self.did.append("pause")
        await super().pause(mode)

    async def load(self, ref: WeightRef) -> None:
        self.did.append("load")
        await asyncio.sleep(LOAD)
        await super().load(ref)


class Site:
    def __init__(self, engines: list[SwappingEngine], folder: Path, mode: PauseMode = "keep") -> None:
        self.lost: list[str] = []
        self.pool = EnginePool(asyncio.get_running_loop().time, lambda slot, why: self.lost.append(why))
        self.push = Push(EngineSync(self.pool, DEADLINE, DEADLINE), mode)
        self.logs = []
        for number, engine in enumerate(engines):
            log = EventLog(folder / EVENTS_FOLDER, number, engine.name, "fast")
            self.logs.append(log)
            slot = EngineSlot(engine, "fast", 8, log)
            self.pool.add(slot)
            self.pool.join(slot)

    async def publish(self) -> None:
        for slot in self.pool.slots:
            await slot.engine.start(0)
        await self.push.deliver(WeightRef(1, "shm", "/versions/v1"))
        for log in self.logs:
            log.flush()


def recorded(folder: Path) -> list[str]:
    return sorted(
        f"{event.worker} {event.event}"
        for _, found in read_steps(folder / EVENTS_FOLDER, Tally())
        for event in found
    )


def test_an_engine_that_can_goes_on_without_a_pause_and_others_are_paused(tmp_path: Path) -> None:
    engines = [
        SwappingEngine("swaps", True, True),
        SwappingEngine("stages", True, False),
        SwappingEngine("loads", False, True),
    ]

    async def main() -> None:
        site = Site(engines, tmp_path)
        publishing = asyncio.ensure_future(site.publish())
        await asyncio.sleep(STAGE + SWAP + LOAD / 2)
        # It has the version; all get requests at the same moment.
        assert [(slot.version, slot.joined) for slot in site.pool.slots] == [
            (1, False),
            (0, False),
            (0, False),
        ]
        await publishing
        assert [(slot.version, slot.joined) for slot in site.pool.slots] == [(1, True)] * 3
        assert not site.lost

    run_virtual(main())
    assert [engine.did for engine in engines] == [
        ["prepare", "swap"], ["prepare", "swap", "pause", "load"], ["pause", "load"],
    ]  # fmt: skip
    loads = ["weight_load", "weight_pause", "weight_resume"]
    assert recorded(tmp_path) == sorted(
        ["swaps weight_stage", "swaps weight_swap", "stages weight_stage"]
        + [f"{name} {event}" for name in ("stages", "loads") for event in loads]
    )


@pytest.mark.parametrize(
    ("generated", "lost"),
    [(1, []), (2, ["engine engine-0 answered request 0.0#1 with tokens of version 2, and has version 1"])],
)
def test_a_response_may_be_here_before_it_is_told_that_a_version_is_in(
    generated: int, lost: list[str]
) -> None:
    """They come in different ways. A version that nobody sent is no engine's."""

    async def main() -> None:
        async with WatchedRollout((1,), 1, length=10, prompts=1) as job:
            (engine,) = job.engines
            engine.stages = True

            async def swap(ref: WeightRef) -> bool:
                engine._settle()
                for running in engine._running.values():
                    running.spans.mark(generated, running.done)
                await asyncio.sleep(SWAP)
                return True

            engine.swap = swap
            await asyncio.sleep(10 - SWAP / 2)
            push = Push(EngineSync(job.pool, DEADLINE, DEADLINE), "keep")
            await push.deliver(WeightRef(1, "shm", "/versions/v1"))
            assert job.lost == lost

    run_virtual(main())


def test_where_requests_are_interrupted_all_are_paused(tmp_path: Path) -> None:
    engine = SwappingEngine("swaps", True, True)

    async def main() -> None:
        site = Site([engine], tmp_path, "abort")
        await site.publish()
        assert [(slot.version, slot.joined) for slot in site.pool.slots] == [(1, True)]

    run_virtual(main())
    assert engine.did == ["prepare", "pause", "load"]


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (EngineDied("engine swaps: loading version 1 failed"), "engine swaps: loading version 1 failed"),
        (
            TimeoutError(),
            f"engine swaps: weight_swap took longer than {DEADLINE:g} s "
            "(spec.training.timeouts.weightUpdateSeconds)",
        ),
    ],
)
def test_one_that_fails_is_lost_and_the_others_go_on(tmp_path: Path, error: Exception, why: str) -> None:
    engines = [SwappingEngine("swaps", True, error), SwappingEngine("other", True, True)]

    async def main() -> None:
        site = Site(engines, tmp_path)
        await site.publish()
        assert [(slot.engine.name, slot.version, slot.joined) for slot in site.pool.slots] == [
            ("other", 1, True)
        ]
        assert site.lost == [why]

    run_virtual(main())
    assert engines[0].did == ["prepare", "swap"]
