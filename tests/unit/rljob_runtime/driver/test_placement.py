"""Which nodes the trainer's ranks are placed on, and what is waited for before."""

import asyncio
from dataclasses import replace

import pytest

from rljob_runtime.driver.placement import NoTrainerPods, RankPlacement, StopAsked
from rljob_runtime.net.keys import Keyring
from rljob_runtime.site.desired import DesiredState
from rljob_runtime.site.site import Site
from rljob_runtime.site.status_draft import StatusDraft
from tests.support.simulated.ray_nodes import MadeUpRay, with_table


class Trainer:
    """The placement of a trainer on a made-up Ray whose pods have 4 devices each."""

    def __init__(self, ray: MadeUpRay, workers: int) -> None:
        self.ray = ray
        self.desired = DesiredState(1, workers, 1, 0, operator_at=1)
        self.draft = StatusDraft(attempt=1)
        self.stop = False
        site = Site(
            False, ray.table, "head", "10.0.0.1", lambda: self.desired, self.draft, ray.changes, Keyring()
        )
        self.placement = RankPlacement(site, 4, 100.0, lambda: self.stop)

    def ask(self, workers: int) -> None:
        self.desired = replace(self.desired, generation=self.desired.generation + 1, trainer=workers)
        self.ray.changes.notify()

    def operator(
        self, *doomed: str, resize: int | None = None, refused: bool = False, patch_refused: bool = False
    ) -> None:
        """The operator has seen the newest desired state, is about to make the pool have `resize` workers,
        where it may, and has begun to remove these pods."""
        self.desired = replace(
            self.desired,
            operator_at=self.desired.generation,
            doomed=frozenset(doomed),
            trainer_resize=resize,
            refused=refused,
            resize_refused=patch_refused,
        )
        self.ray.changes.notify()

    @property
    def stopped_for(self) -> object:
        return self.draft.training.get("trainerStoppedFor")


def test_ranks_go_where_the_pods_are_pod_by_pod() -> None:
    async def script(ray: MadeUpRay) -> None:
        for name in ("b", "a"):
            ray.add(name, trainer=4.0)
        trainer = Trainer(ray, 2)
        assert await trainer.placement.find() == ["a"] * 4 + ["b"] * 4
        assert (trainer.placement.workers, trainer.placement.outdated, trainer.stopped_for) == (
            2,
            False,
            None,
        )

    with_table(script)


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)], ids=["larger", "smaller"])
def test_a_resize_waits_for_exactly_so_many_pods(before: int, after: int) -> None:
    async def script(ray: MadeUpRay) -> None:
        for name in "ab"[:before]:
            ray.add(name, trainer=4.0)
        trainer = Trainer(ray, before)
        await trainer.placement.find()
        trainer.ask(after)
        assert not trainer.placement.outdated, "the operator may refuse it"
        trainer.operator(resize=after)
        assert trainer.placement.outdated
        finding = asyncio.create_task(trainer.placement.find())
        await asyncio.sleep(20)
        assert not finding.done() and trainer.stopped_for == after
        trainer.operator()
        if after > before:
            ray.add("b", trainer=4.0)
        else:
            del ray.alive["a"]
        assert len(await finding) == 4 * after
        trainer.placement.confirmed()
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

    async def script(ray: MadeUpRay) -> None:
        trainer = Trainer(ray, asked)
        finding = asyncio.create_task(trainer.placement.find())
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
        trainer.placement.confirmed()
        assert trainer.stopped_for is None

    with_table(script)


def test_while_it_waits_another_size_may_be_asked_for() -> None:
    async def script(ray: MadeUpRay) -> None:
        ray.add("a", trainer=4.0)
        trainer = Trainer(ray, 1)
        await trainer.placement.find()
        trainer.ask(3)
        trainer.operator(resize=3)
        finding = asyncio.create_task(trainer.placement.find())
        await asyncio.sleep(90)
        trainer.ask(2)
        await asyncio.sleep(5)
        assert trainer.stopped_for == 3, "the operator has not seen it"
        trainer.operator(resize=2)
        await asyncio.sleep(90)
        assert trainer.stopped_for == 2
        trainer.ask(1)
        trainer.operator()
        assert await finding == ["a"] * 4

    with_table(script)


def test_ranks_wait_for_a_removal_that_may_still_begin() -> None:
    """The RLJob asks for one worker, then for two again: the operator may have believed the first."""

    async def script(ray: MadeUpRay) -> None:
        for name in "ab":
            ray.add(name, trainer=4.0)
        trainer = Trainer(ray, 2)
        await trainer.placement.find()
        trainer.ask(1)
        trainer.operator(resize=1)
        finding = asyncio.create_task(trainer.placement.find())
        await asyncio.sleep(5)
        trainer.ask(2)
        await asyncio.sleep(20)
        assert not finding.done() and trainer.stopped_for == 1
        trainer.operator("pod-b", resize=2)
        await asyncio.sleep(20)
        assert not finding.done() and trainer.stopped_for == 2
        del ray.alive["b"]
        await asyncio.sleep(20)
        ray.add("c", trainer=4.0)
        trainer.operator()
        assert await finding == ["a"] * 4 + ["c"] * 4

    with_table(script)


@pytest.mark.parametrize("seen", [True, False], ids=["refuses it", "is down"])
def test_a_size_that_the_operator_does_not_take_up_stops_nothing(seen: bool) -> None:
    async def script(ray: MadeUpRay) -> None:
        ray.add("a", trainer=4.0)
        trainer = Trainer(ray, 1)
        await trainer.placement.find()
        trainer.placement.confirmed()
        trainer.ask(2)
        if seen:
            trainer.operator(refused=True)
        assert not trainer.placement.outdated
        # After a loss of the trainer: it comes back on the pods that there are.
        assert await trainer.placement.find() == ["a"] * 4 and trainer.stopped_for is None
        # The spec is mended, or the operator is back.
        trainer.operator(resize=2)
        assert trainer.placement.outdated

    with_table(script)


async def stopped_for_another(ray: MadeUpRay) -> "tuple[Trainer, asyncio.Task[list[str]]]":
    """A trainer on the worker "a" that stands still for a second one, and its search for both."""
    ray.add("a", trainer=4.0)
    trainer = Trainer(ray, 1)
    await trainer.placement.find()
    trainer.ask(2)
    trainer.operator(resize=2)
    finding = asyncio.create_task(trainer.placement.find())
    await asyncio.sleep(20)
    assert not finding.done() and trainer.stopped_for == 2
    return trainer, finding


def test_a_resize_that_is_withdrawn_and_refused_goes_back_to_the_size_before() -> None:
    async def script(ray: MadeUpRay) -> None:
        trainer, finding = await stopped_for_another(ray)
        trainer.operator(refused=True)
        assert await finding == ["a"] * 4
        trainer.placement.confirmed()
        assert not trainer.placement.outdated and trainer.stopped_for is None

    with_table(script)


def test_a_resize_that_the_api_server_refuses_lets_the_trainer_go_on_at_once() -> None:
    async def script(ray: MadeUpRay) -> None:
        trainer, finding = await stopped_for_another(ray)
        began = asyncio.get_running_loop().time()
        trainer.operator(resize=2, patch_refused=True)
        assert await finding == ["a"] * 4
        assert asyncio.get_running_loop().time() - began < 1
        trainer.placement.confirmed()
        assert not trainer.placement.outdated and trainer.stopped_for is None
        # It is accepted: no resize is under way any more.
        trainer.operator()
        assert trainer.placement.outdated
        ray.add("b", trainer=4.0)
        assert await trainer.placement.find() == ["a"] * 4 + ["b"] * 4

    with_table(script)


def test_a_resize_whose_pods_do_not_come_is_made_once_they_are_there() -> None:
    """The operator has taken it up, and may not change the RayCluster, or a new pod finds no room."""

    async def script(ray: MadeUpRay) -> None:
        ray.add("a", trainer=4.0)
        trainer = Trainer(ray, 1)
        await trainer.placement.find()
        trainer.ask(2)
        trainer.operator(resize=2)
        assert await trainer.placement.find() == ["a"] * 4
        trainer.placement.confirmed()
        assert not trainer.placement.outdated and trainer.stopped_for is None
        ray.add("b", trainer=4.0)
        await asyncio.sleep(20)
        assert trainer.placement.outdated
        assert await trainer.placement.find() == ["a"] * 4 + ["b"] * 4

    with_table(script)


def test_a_resize_that_was_given_up_is_tried_again_when_the_spec_changes() -> None:
    async def script(ray: MadeUpRay) -> None:
        ray.add("a", trainer=4.0)
        trainer = Trainer(ray, 1)
        await trainer.placement.find()
        trainer.ask(2)
        trainer.operator(resize=2)
        await trainer.placement.find()
        trainer.ask(3)
        trainer.operator(resize=3)
        assert trainer.placement.outdated

    with_table(script)


def test_a_resize_that_took_pods_is_not_given_up() -> None:
    async def script(ray: MadeUpRay) -> None:
        for name in "abc":
            ray.add(name, trainer=4.0)
        trainer = Trainer(ray, 3)
        await trainer.placement.find()
        trainer.ask(1)
        trainer.operator("pod-b", "pod-c", resize=1)
        with pytest.raises(NoTrainerPods, match="was to have 1 workers within 100 s"):
            await trainer.placement.find()

    with_table(script)


def test_a_pool_that_was_resized_without_the_trainers_stop_is_noticed() -> None:
    """The operator waited for drainGraceSeconds, and the driver saw nothing of that."""

    async def script(ray: MadeUpRay) -> None:
        for name in "ab":
            ray.add(name, trainer=4.0)
        trainer = Trainer(ray, 2)
        await trainer.placement.find()
        trainer.ask(1)
        del ray.alive["b"]
        trainer.operator()
        await trainer.placement.drop_lost()
        assert await trainer.placement.find() == ["a"] * 4

    with_table(script)


def test_a_trainer_that_did_not_stop_for_the_operator_does_not_wait_for_it() -> None:
    async def script(ray: MadeUpRay) -> None:
        ray.add("a", trainer=4.0)
        trainer = Trainer(ray, 1)
        await trainer.placement.find()
        trainer.placement.confirmed()
        trainer.desired = replace(trainer.desired, generation=7, fast=9)
        assert await trainer.placement.find() == ["a"] * 4

    with_table(script)


def test_a_wait_for_pods_ends() -> None:
    async def script(ray: MadeUpRay) -> None:
        trainer = Trainer(ray, 1)
        with pytest.raises(NoTrainerPods, match=r"have 1 workers within 100 s \(.*\), and has 0"):
            await trainer.placement.find()
        finding = asyncio.create_task(trainer.placement.find())
        await asyncio.sleep(5)
        trainer.stop = True
        ray.changes.notify()
        with pytest.raises(StopAsked):
            await finding

    with_table(script)


def test_after_a_loss_the_lost_node_is_not_counted() -> None:
    async def script(ray: MadeUpRay) -> None:
        for name in "ab":
            ray.add(name, trainer=4.0)
        trainer = Trainer(ray, 2)
        await trainer.placement.find()
        ray.silent.add("b")
        del ray.alive["b"]
        await trainer.placement.drop_lost()
        assert trainer.placement.nodes() == ["a"] * 4

    with_table(script)


def test_after_a_loss_all_nodes_are_asked_at_once() -> None:
    async def script(ray: MadeUpRay) -> None:
        for name in "abcdefgh":
            ray.add(name, trainer=4.0)
        trainer = Trainer(ray, 8)
        await trainer.placement.find()
        began = asyncio.get_running_loop().time()
        await trainer.placement.drop_lost()
        assert asyncio.get_running_loop().time() - began == pytest.approx(0.5)

    with_table(script)
