"""Engines that are one to everybody else: who runs what, what holds for all of them, how they end. Those
inside are fake ones, in virtual time."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from rljob_runtime.engines.fake import FakeEngine, FakeTiming
from rljob_runtime.engines.joint import JointEngine
from rljob_runtime.engines.joint_progress import JointProgress
from rljob_runtime.engines.protocol import EngineDied, FinishedText, LoadSnapshot, Request, WeightRef
from rljob_runtime.simulate.virtual_loop import run_virtual
from rljob_runtime.weights.shm import WeightsGone, WeightStore

STEP = FakeTiming(step_seconds=0.01)


class Fake(FakeEngine):
    """One that can be told to fail, counts, and knows when it was started."""

    def __init__(self, name: str, kv_tokens: int | None = 100) -> None:
        super().__init__(name, lambda request: request.max_tokens, 8, STEP, kv_tokens=kv_tokens)
        self.fails: Exception | None = None
        self.counted: dict[str, float] = {}
        self.begun: list[str] = []
        self.heard: list[FinishedText] = []

    async def submit(self, request: Request):  # type: ignore[no-untyped-def]
        self.begun.append(request.request_id)
        return await super().submit(request)

    async def load(self, ref: WeightRef) -> None:
        if self.fails is not None:
            raise self.fails
        await super().load(ref)

    def learn(self, texts: Sequence[FinishedText]) -> None:
        self.heard += texts

    def counters(self) -> Mapping[str, float]:
        return self.counted


def asked(name: str, tokens: int = 10) -> Request:
    return Request(name, np.arange(4, dtype=np.int32), tokens, 0, exact=True)


def stored(folder: Path) -> WeightRef:
    """Version 2."""
    return WeightRef(2, "shm", str(WeightStore(folder / "store", 1).publish(2, lambda _: None)))


def two() -> tuple[JointEngine, list[Fake]]:
    inside = [Fake("e/0"), Fake("e/1")]
    return JointEngine("e", inside), inside


def test_a_request_goes_to_the_one_that_runs_the_fewest() -> None:
    async def run() -> None:
        joint, inside = two()
        await joint.start(0)
        long = asyncio.create_task(joint.submit(asked("long", 100)))
        await asyncio.sleep(0)
        # The second one is free again each time.
        for name in "abc":
            await joint.submit(asked(name))
        await asyncio.gather(*(joint.submit(asked(name)) for name in "de"))
        await long
        assert [each.begun for each in inside] == [["long", "e"], ["a", "b", "c", "d"]]

    run_virtual(run())


def test_the_others_start_when_the_first_one_is_up_and_what_is_between_is_done() -> None:
    order: list[str] = []

    class Slow(Fake):
        async def start(self, version: int) -> None:
            order.append(f"{self.name} begins")
            await asyncio.sleep(1.0)
            await super().start(version)
            order.append(f"{self.name} is up")

    async def between() -> None:
        order.append("between")

    async def run() -> None:
        await JointEngine("e", [Slow("0"), Slow("1"), Slow("2")], between).start(0)

    run_virtual(run())
    assert order == ["0 begins", "0 is up", "between", "1 begins", "2 begins", "1 is up", "2 is up"]


def test_they_hear_of_what_finished_elsewhere_and_on_each_other() -> None:
    async def run() -> None:
        joint, inside = two()
        await joint.start(0)
        joint.learn([(b"prompt", b"far")])
        cut_off = asyncio.create_task(joint.submit(asked("a")))
        await asyncio.sleep(0)
        got = await joint.submit(asked("b", 3))
        await joint.abort("a")
        await cut_off
        finished = asked("b").tokens.tobytes(), got.tokens.tobytes()
        assert [each.heard for each in inside] == [[(b"prompt", b"far"), finished], [(b"prompt", b"far")]]

    run_virtual(run())


def test_it_is_as_busy_as_all_of_them() -> None:
    async def run() -> None:
        joint, inside = two()
        await joint.start(3)
        tasks = [asyncio.create_task(joint.submit(asked(name))) for name in "abc"]
        await asyncio.sleep(0.055)
        await joint.pause("keep")
        assert await joint.load_snapshot() == LoadSnapshot(3, 3, True, 15, 200)
        await joint.abort("a")
        await joint.abort("nobody's")
        await joint.resume()
        assert [len(got.tokens) for got in await asyncio.gather(*tasks)] == [5, 10, 10]
        inside[0].counted = {"running": 2.0, "kv_use": 0.5, "preemptions": 1.0}
        inside[1].counted = {"running": 1.0, "kv_use": 0.75}
        assert joint.counters() == {"running": 3.0, "kv_use": 0.75, "preemptions": 1.0}

    run_virtual(run())


@pytest.mark.parametrize(("second", "together"), [(100, 200), (None, None)])
def test_what_their_kv_caches_hold(second: int | None, together: int | None) -> None:
    joint = JointEngine("e", [Fake("e/0"), Fake("e/1", second)])
    assert run_virtual(joint.load_snapshot()).kv_tokens == together


def test_weights_that_nobody_can_load_leave_all_as_they_are(tmp_path: Path) -> None:
    async def run() -> None:
        joint, inside = two()
        await joint.start(1)
        await joint.pause("keep")
        with pytest.raises(WeightsGone):
            await joint.load(WeightRef(2, "shm", str(tmp_path / "gone")))
        for each in inside:
            each.fails = ValueError("another model")
        with pytest.raises(ValueError, match="another model"):
            await joint.load(stored(tmp_path))
        with pytest.raises(ValueError, match="load from a folder, and not through nccl"):
            await joint.load(WeightRef(2, "nccl", "host:1/3/1"))
        await joint.resume()
        assert {span.version for span in (await joint.submit(asked("a"))).spans} == {1}

    run_virtual(run())


@pytest.mark.parametrize("fails", [ValueError("torn"), EngineDied("its core ended")])
def test_where_one_loads_and_another_does_not_all_end(tmp_path: Path, fails: Exception) -> None:
    async def run() -> None:
        joint, inside = two()
        await joint.start(1)
        running = asyncio.create_task(joint.submit(asked("a")))
        await asyncio.sleep(0)
        await joint.pause("keep")
        inside[1].fails = fails
        with pytest.raises(EngineDied, match=f"version 2 was not loaded: {fails}"):
            await joint.load(stored(tmp_path))
        with pytest.raises(EngineDied):
            await running
        with pytest.raises(EngineDied, match=str(fails)):
            await joint.resume()

    run_virtual(run())


def test_when_one_dies_all_end_and_tell_why() -> None:
    async def run() -> None:
        joint, inside = two()
        await joint.start(0)
        tasks = [asyncio.create_task(joint.submit(asked(name))) for name in "ab"]
        await asyncio.sleep(0)
        await inside[1].close()
        why = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(each) for each in why] == [EngineDied, EngineDied]
        assert {str(each) for each in why} == {"engine e/1: it was closed"}
        await joint.abort("a")
        with pytest.raises(EngineDied, match="e/1"):
            await joint.submit(asked("c"))
        await joint.close()

    run_virtual(run())


def told_by(running: dict[str, int], reports: list[tuple[int, dict[str, int]]]) -> list[dict[str, int]]:
    told: list[dict[str, int]] = []
    progress = JointProgress(running, lambda tokens, _: told.append(dict(tokens)))
    for number, tokens in reports:
        progress.reported(number, tokens, 0)
    return told


def test_what_all_have_prefilled_is_told_together() -> None:
    """That of an engine which runs nothing any more as well."""
    told: list[int] = []
    running = {"a": 0, "b": 1}
    progress = JointProgress(running, lambda _, prefilled: told.append(prefilled))
    progress.reported(0, {"a": 1}, 10)
    progress.reported(1, {"b": 1}, 7)
    del running["b"]
    progress.reported(0, {"a": 2}, 15)
    assert told == [17, 22]


@pytest.mark.parametrize(
    ("running", "reports", "told"),
    [
        pytest.param({"a": 0, "b": 1}, [(0, {"a": 1})], [], id="it waits for the other one"),
        pytest.param({"a": 0, "b": 1}, [(0, {"a": 1}), (1, {"b": 2})], [{"a": 1, "b": 2}], id="it has both"),
        pytest.param({"a": 0}, [(0, {"a": 1}), (0, {"a": 2})], [{"a": 1}, {"a": 2}], id="one runs nothing"),
        pytest.param(
            {"a": 0, "b": 1},
            [(0, {"a": 1}), (0, {"a": 2})],
            [{"a": 1}],
            id="not longer than until it is told again",
        ),
        pytest.param({"b": 1}, [(0, {"a": 1}), (1, {"b": 2})], [{"b": 2}], id="what ended is left out"),
        pytest.param({"b": 1}, [(0, {"a": 1}), (0, {"a": 2})], [], id="nothing is not told"),
    ],
)
def test_progress_is_told_of_all_together(
    running: dict[str, int], reports: list[tuple[int, dict[str, int]]], told: list[dict[str, int]]
) -> None:
    assert told_by(running, reports) == told


@pytest.mark.parametrize(
    ("inside", "joint"), [((True, True), True), ((True, False), False), ((False, False), False)]
)
def test_versions_arrive_before_the_pause_where_all_of_them_can(
    inside: tuple[bool, bool], joint: bool
) -> None:
    one, engines = two()
    for each, stages in zip(engines, inside, strict=True):
        each.stages = stages
    assert one.stages is joint


def test_weights_that_come_in_no_folder_are_refused_before_the_pause_too() -> None:
    async def run() -> None:
        joint, _ = two()
        await joint.start(0)
        with pytest.raises(ValueError, match="not through nccl"):
            await joint.prepare(WeightRef(2, "nccl", "somewhere", staged=True))

    run_virtual(run())
