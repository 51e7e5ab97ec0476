"""A Ray whose nodes come and go, and the node table that follows it, in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from rljob_runtime.change_signal import ChangeSignal
from rljob_runtime.simulate.virtual_loop import run_virtual
from rljob_runtime.site.nodes import NodeGone, NodeTable, RayNode


class MadeUpRay:
    """What Ray would tell."""

    def __init__(self) -> None:
        self.alive: dict[str, RayNode] = {}
        self.silent: set[str] = set()
        self.asked: list[str] = []
        self.changes = ChangeSignal()
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


def with_table(script: Callable[[MadeUpRay], Awaitable[None]]) -> None:
    """Runs `script` beside the table's loop, in virtual time."""

    async def main() -> None:
        ray = MadeUpRay()
        running = asyncio.create_task(ray.table.run())
        await script(ray)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    run_virtual(main())


def pods(ray: MadeUpRay, resource: str = "fast_rollout") -> list[str]:
    """Names of the pods that the table shows."""
    return [node.pod for node in ray.table.having(resource)]
