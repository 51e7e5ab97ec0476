"""The table of Ray nodes: who is shown, and when somebody is gone."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from rljob_runtime.change_signal import ChangeSignal
from rljob_runtime.driver.placement import NoTrainerPods, RankPlacement, StopAsked
from rljob_runtime.net.keys import Keyring
from rljob_runtime.simulate.virtual_loop import run_virtual
from rljob_runtime.site.desired import DesiredState
from rljob_runtime.site.nodes import POLL_SECONDS, NodeGone, NodeTable, RayNode
from rljob_runtime.site.site import Site
from rljob_runtime.site.status_draft import StatusDraft


class Ray:
    """What Ray would tell."""

    def __init__(self) -> None:
        self.alive: dict[str, RayNode] = {}
        self.silent: set[str] = set()
        self.asked: list[str] = []
        self.changes = ChangeSignal()
        self.rung = 0
        self.table = NodeTable(self.read, self.pod_of, ("trainer", "fast_rollout"), self.changes)

    def add(self, name: str, **resources: float) -> None:
        self.alive[name] = RayNode(name, "10.0.0.1", {"CPU": 4.0, **resources})

    async def read(self) -> list[RayNode]:
        return list(self.alive.values())

    async def pod_of(self, node_id: str) -> str:
        self.asked.append(node_id)
        await asyncio.sleep(0.5)
        if node_id in self.silent:
            raise NodeGone("no answer")
        return f"pod-{node_id}"


def with_table(script: Callable[[Ray], Awaitable[None]]) -> None:
    """Runs `script` beside the table's loop, in virtual time."""

    async def main() -> None:
        ray = Ray()
        running = asyncio.create_task(ray.table.run())
        await script(ray)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    run_virtual(main())


def pods(ray: Ray, resource: str = "fast_rollout") -> list[str]:
    return [node.pod for node in ray.table.having(resource)]


def test_a_node_is_shown_when_its_pod_is_known_and_rings() -> None:
    async def script(ray: Ray) -> None:
        ray.add("b", fast_rollout=1.0)
        ray.add("a", fast_rollout=1.0)
        ray.add("head")
        ray.add("t", trainer=8.0)
        await ray.changes.wait()
        await asyncio.sleep(0)
        assert pods(ray) == ["pod-a", "pod-b"]
        assert pods(ray, "trainer") == ["pod-t"]
        assert "head" not in ray.table
        await asyncio.sleep(10 * POLL_SECONDS)
        assert sorted(ray.asked) == ["a", "b", "t"]

    with_table(script)


def test_a_node_that_is_gone_is_dropped_and_rings() -> None:
    async def script(ray: Ray) -> None:
        ray.add("a", fast_rollout=1.0)
        await ray.changes.until(lambda: bool(pods(ray)), 10)
        del ray.alive["a"]
        await ray.changes.until(lambda: not pods(ray), 10)

    with_table(script)


def test_a_node_that_does_not_tell_its_pod_is_asked_again() -> None:
    async def script(ray: Ray) -> None:
        ray.silent.add("a")
        ray.add("a", fast_rollout=1.0)
        await asyncio.sleep(3 * POLL_SECONDS)
        assert pods(ray) == []
        ray.silent.clear()
        await ray.changes.until(lambda: bool(pods(ray)), 10)

    with_table(script)


def test_a_lost_process_is_told_from_a_lost_node() -> None:
    async def script(ray: Ray) -> None:
        ray.add("a", fast_rollout=1.0)
        await ray.changes.until(lambda: bool(pods(ray)), 10)
        assert await ray.table.confirm("a")
        # It does not answer, and Ray still holds it for alive.
        ray.silent.add("a")
        assert await ray.table.confirm("a")
        del ray.alive["a"]
        assert not await ray.table.confirm("a")
        assert pods(ray) == []

    with_table(script)


def test_on_one_machine_one_look_is_enough() -> None:
    async def main() -> None:
        ray = Ray()
        ray.add("here", trainer=2.0, fast_rollout=1.0)
        await ray.table.read_once()
        assert pods(ray) == pods(ray, "trainer") == ["pod-here"]

    run_virtual(main())


class Places:
    """The trainer's places on a made-up Ray whose pods have 4 devices each."""

    def __init__(self, ray: Ray, workers: int) -> None:
        self.ray = ray
        self.desired = DesiredState(1, workers, 1, 0, operator_at=1)
        self.draft = StatusDraft(attempt=1)
        self.stop = False
        site = Site(
            False, ray.table, "head", "10.0.0.1", lambda: self.desired, self.draft, ray.changes, Keyring()
        )
        self.places = RankPlacement(site, 4, 100.0, lambda: self.stop)

    def ask(self, workers: int) -> None:
        self.desired = replace(self.desired, generation=self.desired.generation + 1, trainer=workers)
        self.ray.changes.notify()

    def operator(self, *doomed: str) -> None:
        """The operator has seen the newest desired state, and begun to remove these pods."""
        self.desired = replace(self.desired, operator_at=self.desired.generation, doomed=frozenset(doomed))
        self.ray.changes.notify()

    @property
    def stopped_for(self) -> object:
        return self.draft.training.get("trainerStoppedFor")


def test_ranks_go_where_the_pods_are_pod_by_pod() -> None:
    async def script(ray: Ray) -> None:
        for name in ("b", "a"):
            ray.add(name, trainer=4.0)
        trainer = Places(ray, 2)
        assert await trainer.places.find() == ["a"] * 4 + ["b"] * 4
        assert (trainer.places.workers, trainer.places.outdated, trainer.stopped_for) == (2, False, None)

    with_table(script)


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)], ids=["larger", "smaller"])
def test_a_resize_waits_for_exactly_so_many_pods(before: int, after: int) -> None:
    async def script(ray: Ray) -> None:
        for name in "ab"[:before]:
            ray.add(name, trainer=4.0)
        trainer = Places(ray, before)
        await trainer.places.find()
        trainer.ask(after)
        assert trainer.places.outdated
        finding = asyncio.create_task(trainer.places.find())
        await asyncio.sleep(20)
        assert not finding.done() and trainer.stopped_for == after
        trainer.operator()
        if after > before:
            ray.add("b", trainer=4.0)
        else:
            del ray.alive["a"]
        assert len(await finding) == 4 * after
        trainer.places.confirmed()
        assert trainer.stopped_for is None

    with_table(script)


@pytest.mark.parametrize(
    ("joined", "asked", "then"),
    [(["a"], 2, ["a", "b"]), (["a", "b"], 1, ["a"]), (["a", "b", "c"], 2, ["a", "b"])],
    ids=["larger", "smaller", "smaller, and a pod is still to come"],
)
def test_a_resize_before_the_first_start_is_answered_too(
    joined: list[str], asked: int, then: list[str]
) -> None:
    """The cluster was made for another number of workers than the driver finds in the RLJob."""

    async def script(ray: Ray) -> None:
        trainer = Places(ray, asked)
        finding = asyncio.create_task(trainer.places.find())
        await asyncio.sleep(5)
        assert trainer.stopped_for is None
        for name in joined:
            ray.add(name, trainer=4.0)
        await asyncio.sleep(20)
        assert not finding.done() and trainer.stopped_for == asked
        for name in {*joined, *then}:
            if name not in then:
                del ray.alive[name]
            elif name not in joined:
                ray.add(name, trainer=4.0)
        assert await finding == [name for name in then for _ in range(4)]
        trainer.places.confirmed()
        assert trainer.stopped_for is None

    with_table(script)


def test_while_it_waits_another_size_may_be_asked_for() -> None:
    async def script(ray: Ray) -> None:
        ray.add("a", trainer=4.0)
        trainer = Places(ray, 1)
        await trainer.places.find()
        trainer.ask(3)
        finding = asyncio.create_task(trainer.places.find())
        await asyncio.sleep(90)
        trainer.ask(2)
        await asyncio.sleep(90)
        assert trainer.stopped_for == 2
        trainer.ask(1)
        trainer.operator()
        assert await finding == ["a"] * 4

    with_table(script)


def test_ranks_wait_for_a_removal_that_may_still_begin() -> None:
    """The RLJob asks for one worker, then for two again: the operator may have believed the first."""

    async def script(ray: Ray) -> None:
        for name in "ab":
            ray.add(name, trainer=4.0)
        trainer = Places(ray, 2)
        await trainer.places.find()
        trainer.ask(1)
        finding = asyncio.create_task(trainer.places.find())
        await asyncio.sleep(5)
        trainer.ask(2)
        await asyncio.sleep(20)
        assert not finding.done() and trainer.stopped_for == 2
        trainer.operator("pod-b")
        await asyncio.sleep(20)
        assert not finding.done()
        del ray.alive["b"]
        await asyncio.sleep(20)
        ray.add("c", trainer=4.0)
        trainer.operator()
        assert await finding == ["a"] * 4 + ["c"] * 4

    with_table(script)


def test_a_trainer_that_did_not_stop_for_the_operator_does_not_wait_for_it() -> None:
    async def script(ray: Ray) -> None:
        ray.add("a", trainer=4.0)
        trainer = Places(ray, 1)
        await trainer.places.find()
        trainer.places.confirmed()
        trainer.desired = replace(trainer.desired, generation=7, fast=9)
        assert await trainer.places.find() == ["a"] * 4

    with_table(script)


def test_a_wait_for_pods_ends() -> None:
    async def script(ray: Ray) -> None:
        trainer = Places(ray, 1)
        with pytest.raises(NoTrainerPods, match=r"have 1 workers within 100 s \(.*\), and has 0"):
            await trainer.places.find()
        finding = asyncio.create_task(trainer.places.find())
        await asyncio.sleep(5)
        trainer.stop = True
        ray.changes.notify()
        with pytest.raises(StopAsked):
            await finding

    with_table(script)


def test_after_a_loss_the_lost_node_is_not_counted() -> None:
    async def script(ray: Ray) -> None:
        for name in "ab":
            ray.add(name, trainer=4.0)
        trainer = Places(ray, 2)
        await trainer.places.find()
        ray.silent.add("b")
        del ray.alive["b"]
        await trainer.places.drop_lost()
        assert trainer.places.nodes() == ["a"] * 4

    with_table(script)
