"""The table of Ray nodes: who is shown, and when somebody is gone."""

import asyncio

from rljob_runtime.simulate.virtual_loop import run_virtual
from rljob_runtime.site.nodes import POLL_SECONDS
from tests.support.simulated.ray_nodes import MadeUpRay, pods, with_table


def test_a_node_is_shown_when_its_pod_is_known_and_rings() -> None:
    async def script(ray: MadeUpRay) -> None:
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
    async def script(ray: MadeUpRay) -> None:
        ray.add("a", fast_rollout=1.0)
        await ray.changes.until(lambda: bool(pods(ray)), 10)
        del ray.alive["a"]
        await ray.changes.until(lambda: not pods(ray), 10)

    with_table(script)


def test_a_node_that_does_not_tell_its_pod_is_asked_again() -> None:
    async def script(ray: MadeUpRay) -> None:
        ray.silent.add("a")
        ray.add("a", fast_rollout=1.0)
        await asyncio.sleep(3 * POLL_SECONDS)
        assert pods(ray) == []
        ray.silent.clear()
        await ray.changes.until(lambda: bool(pods(ray)), 10)

    with_table(script)


def test_a_lost_process_is_told_from_a_lost_node() -> None:
    async def script(ray: MadeUpRay) -> None:
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
        ray = MadeUpRay()
        ray.add("here", trainer=2.0, fast_rollout=1.0)
        await ray.table.read_once()
        assert pods(ray) == pods(ray, "trainer") == ["pod-here"]

    run_virtual(main())
