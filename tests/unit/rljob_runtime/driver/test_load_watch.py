"""What is seen of busy pools while a step takes long: in the view at once, in the status now and then."""

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from rljob_runtime.driver.load_watch import LOOK_SECONDS, TELL_SECONDS, LoadWatch
from rljob_runtime.driver.tracker import Tracker
from rljob_runtime.engines.fake import FakeEngine
from rljob_runtime.groups.counts import GroupCounts
from rljob_runtime.rollout.engine_slot import EngineSlot
from rljob_runtime.rollout.pool import EnginePool
from rljob_runtime.routing.requests import GroupRequest, RequestKey
from rljob_runtime.simulate.virtual_loop import run_virtual
from rljob_runtime.site.status_draft import StatusDraft
from rljob_runtime.trace.record.event_log import EventLog
from rljob_runtime.trace.record.metrics_log import MetricsLog
from rljob_runtime.view.progress import Progress
from tests.support.runtime.steps import HEADER, step_metrics


class Shown:
    """A view that keeps what it is shown, and the status that would be written."""

    def __init__(self, folder: Path) -> None:
        loop = asyncio.get_running_loop()
        self.shown: list[tuple[float, Progress]] = []
        self.written: list[tuple[float, dict[str, Any] | None]] = []
        """When the status was changed, and its `load` then."""
        self.pool = EnginePool(loop.time, lambda slot, why: None)
        log = MetricsLog(folder, clock=loop.time)
        self.tracker = Tracker(HEADER, self.pool, log, loop.time, 0, 100, 64, with_kl=False)
        self.draft = StatusDraft(attempt=1)
        self.draft.take()
        view: Any = self
        self.watch = LoadWatch(self.tracker, self.draft, view, loop.time)
        self.slots = [self.add(pool) for pool in ("fast", "fast", "heavy")]

    def add(self, pool: str) -> EngineSlot:
        name = f"{pool}-{len(self.pool.slots)}"
        slot = EngineSlot(FakeEngine(name, lambda request: 1), pool, 4, EventLog(None, 1, name, pool))
        self.pool.add(slot)
        self.pool.join(slot)
        return slot

    def generate(self, uid: int, responses: int) -> None:
        self.pool.dispatch(GroupRequest(uid, uid, 4, responses))
        self.pool.decide()

    def finish(self, uid: int, responses: int) -> None:
        for sample in range(responses):
            self.pool.finished(RequestKey(uid, sample), 10)
        self.pool.decide()

    def step_done(self, step: int, seconds: float) -> None:
        self.tracker.step_done(step_metrics(step), [step], 0, step, seconds, GroupCounts())
        self.draft.progress(self.tracker.progress)
        self.watch.told()

    def update(self, progress: Progress) -> None:
        now = asyncio.get_running_loop().time()
        self.shown.append((now, progress))
        if self.draft.changed.is_set():
            self.written.append((now, self.draft.take().get("load")))


Script = Callable[[Shown], Coroutine[Any, Any, None]]


@pytest.fixture
def watched(tmp_path: Path) -> Callable[[Script], Shown]:
    """Runs a script beside the watch, in virtual time."""

    def run(script: Script) -> Shown:
        async def main() -> Shown:
            shown = Shown(tmp_path)
            watching = asyncio.create_task(shown.watch.run())
            await script(shown)
            watching.cancel()
            return shown

        return run_virtual(main())

    return run


def test_nothing_is_shown_before_training_begins(watched: Callable[[Script], Shown]) -> None:
    async def script(job: Shown) -> None:
        await asyncio.sleep(100)

    found = watched(script)
    assert found.shown == [] and not found.draft.changed.is_set()


def test_a_long_step_is_followed(watched: Callable[[Script], Shown]) -> None:
    """All three engines generate for an hour; the trainer begins half way, with groups that are complete."""

    async def script(job: Shown) -> None:
        job.tracker.begin(0)
        job.generate(1, 14)
        await asyncio.sleep(1800)
        job.tracker.step_begins()
        await asyncio.sleep(1800)
        job.step_done(0, 1800)

    found = watched(script)
    assert len(found.shown) == pytest.approx(3600 / LOOK_SECONDS, abs=2)
    (_, half), (_, end) = (found.shown[len(found.shown) // 2 - 1], found.shown[-1])
    assert half.busy == pytest.approx({"fast": 1.0, "heavy": 1.0, "trainer": 0.0}, abs=0.01)
    assert end.busy == pytest.approx({"fast": 1.0, "heavy": 1.0, "trainer": 0.5}, abs=0.01)
    assert end.running == {"fast": 8, "heavy": 4} and end.waiting == 2
    summaries = [load["summary"] for _, load in found.written if load]
    # The trainer's share goes from 0 to 50, and is told anew with each five percent.
    assert summaries[0] == "0/100/100" and 46 <= int(summaries[-1].split("/")[0]) <= 50
    assert len(summaries) <= 11
    times = [time for time, _ in found.written]
    assert min(b - a for a, b in itertools.pairwise(times)) >= TELL_SECONDS


def test_a_steady_load_is_told_once(watched: Callable[[Script], Shown]) -> None:
    async def script(job: Shown) -> None:
        job.tracker.begin(0)
        job.generate(1, 12)
        await asyncio.sleep(3600)

    assert len(watched(script).written) == 1


def test_the_tail_of_a_step_is_told(watched: Callable[[Script], Shown]) -> None:
    """Within a step of a job that is under way the fast pool runs dry, while one long response goes on."""

    async def script(job: Shown) -> None:
        job.tracker.begin(0)
        for step in range(3):
            job.generate(step, 12)
            await asyncio.sleep(100)
            job.finish(step, 12)
            job.step_done(step, 50)
        job.generate(3, 12)
        await asyncio.sleep(100)
        (running,) = [slot for slot in job.slots if slot.pool == "heavy"]
        for key in [key for key, slot in job.pool._placed.items() if slot is not running]:
            job.pool.finished(key, 10)
        await asyncio.sleep(300)

    found = watched(script)
    last = found.draft.training["load"]
    trainer, fast, heavy = last["pools"]
    # From the end of the second step on, 500 s ago: the trainer was at one of 50 s, and the fast pool
    # generated for the first 200 s. The status was told a minute ago at most.
    assert 430 <= last["windowSeconds"] <= 500
    assert trainer["name"] == "trainer" and 10 <= trainer["busyPercent"] <= 12
    assert fast["name"] == "fastRollout" and fast["running"] == 0 and 40 <= fast["busyPercent"] <= 47
    assert heavy == {"name": "heavyRollout", "busyPercent": 100, "running": 4}
    assert last["waiting"] == 0
    assert last["summary"] == f"{trainer['busyPercent']}/{fast['busyPercent']}/100"


def test_a_pool_that_is_resized_keeps_its_share(watched: Callable[[Script], Shown]) -> None:
    """A heavy engine that was busy for all its time goes, and two that are idle come."""

    async def script(job: Shown) -> None:
        job.tracker.begin(0)
        job.generate(1, 12)
        await asyncio.sleep(100)
        job.pool.lost(job.slots[2], "its pod is gone")
        await asyncio.sleep(100)
        job.add("heavy")
        job.add("heavy")
        await asyncio.sleep(49.9)

    busy = watched(script).shown[-1][1].busy
    assert busy["fast"] == pytest.approx(1.0)
    assert busy["heavy"] == pytest.approx(0.5, abs=0.05)
