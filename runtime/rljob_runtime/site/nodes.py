"""The Ray nodes that the job can use: one for each pod in a cluster, this machine otherwise.

Guarantees: a node is shown once the pod behind it is known, and until Ray has declared it dead; `confirm`
tells a process that died on a living node from a node that is gone. Each change notifies the site's signal.

Ray tells its own processes when nodes come and go, but has no public call that waits for it: the table is
read every few seconds.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rljob_runtime.change_signal import ChangeSignal

log = logging.getLogger(__name__)

POD_VARIABLE = "RLJOB_POD"
"""Environment variable of Ray's containers: the name of their pod."""
POLL_SECONDS = 2.0
_PROBE_SECONDS = 60.0
"""Ray declares a silent node dead after about 15 s; starting a process on a busy one takes as long."""
_READ_SECONDS = 60.0
"""For Ray's control service to list its nodes."""


class NodeGone(RuntimeError):
    """The node is not in the cluster any more, or does not answer."""


@dataclass(frozen=True)
class RayNode:
    """A node of the Ray cluster."""

    id: str
    address: str
    """Its IP address."""
    resources: Mapping[str, float]
    pod: str = ""
    """Name of its pod; empty on one machine."""

    def units(self, resource: str) -> int:
        """Whole units of a resource that it has."""
        return int(self.resources.get(resource, 0))


class NodeTable:
    """See the module's guarantees."""

    def __init__(
        self,
        read: Callable[[], Awaitable[Sequence[RayNode]]],
        pod_of: Callable[[str], Awaitable[str]],
        wanted: Sequence[str],
        changes: ChangeSignal,
    ) -> None:
        """`read` returns the nodes that Ray holds for alive; `pod_of` asks a node for its pod's name, and
        raises `NodeGone`; nodes with none of the `wanted` resources are not shown."""
        self._read = read
        self._pod_of = pod_of
        self._wanted = tuple(wanted)
        self._changes = changes
        self._nodes: dict[str, RayNode] = {}
        self._asked: set[str] = set()
        """Ids of the nodes whose pods are being asked for."""

    @property
    def nodes(self) -> list[RayNode]:
        """The nodes, in the order of their pods' names."""
        return sorted(self._nodes.values(), key=lambda node: (node.pod, node.id))

    def having(self, resource: str) -> list[RayNode]:
        """The nodes that have at least one unit of a resource, in the order of their pods' names."""
        return [node for node in self.nodes if node.units(resource)]

    def __contains__(self, node_id: str) -> bool:
        return node_id in self._nodes

    async def read_once(self) -> None:
        """Read the table; for one machine, whose only node stays the same."""
        await asyncio.gather(*(self._show(node) for node in await self.refresh()))

    async def run(self) -> None:
        """Keep the table up to date, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                for node in await self.refresh():
                    self._asked.add(node.id)
                    tasks.create_task(self._show(node))
                await asyncio.sleep(POLL_SECONDS)

    async def refresh(self) -> list[RayNode]:
        """Take nodes out of the table that Ray no longer holds for alive; those that are to be shown."""
        try:
            async with asyncio.timeout(_READ_SECONDS):
                read = await self._read()
        except TimeoutError:
            raise RuntimeError(f"Ray did not list its nodes for {_READ_SECONDS:g} s") from None
        found = {node.id: node for node in read if any(map(node.units, self._wanted))}
        gone = [self._nodes.pop(node_id) for node_id in list(self._nodes) if node_id not in found]
        for node in gone:
            log.info("Ray node %s (%s) is gone", node.id[:8], node.pod or node.address)
        if gone:
            self._changes.notify()
        return [found[node_id] for node_id in found.keys() - self._nodes.keys() - self._asked]

    async def confirm(self, node_id: str) -> bool:
        """Whether the node is still there, after a process on it was lost. Takes as long as Ray needs to
        find out."""
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                # A task that must run there: it succeeds, or Ray fails it once the node is dead.
                await self._pod_of(node_id)
            return True
        except (NodeGone, TimeoutError) as error:
            log.info("Ray node %s: %s", node_id[:8], error or "no answer")
        await self.refresh()
        return node_id in self._nodes

    async def _show(self, node: RayNode) -> None:
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                pod = await self._pod_of(node.id)
        except (NodeGone, TimeoutError) as error:
            # It is asked again at the next refresh, unless it is gone by then.
            log.info("Ray node %s at %s does not tell its pod: %s", node.id[:8], node.address, error)
        else:
            self._nodes[node.id] = replace(node, pod=pod)
            log.info("Ray node %s is %s, with %s", node.id[:8], pod or node.address, dict(node.resources))
            self._changes.notify()
        finally:
            self._asked.discard(node.id)


async def read_nodes() -> list[RayNode]:
    """The nodes that Ray holds for alive."""
    import ray

    # In a thread: it blocks until Ray's control service answers.
    table: list[dict[str, Any]] = await asyncio.to_thread(ray.nodes)
    return [
        RayNode(entry["NodeID"], entry["NodeManagerAddress"], dict(entry["Resources"]))
        for entry in table
        if entry["Alive"]
    ]


async def pod_of(node_id: str) -> str:
    """What a Ray node's environment says is the name of its pod; raises `NodeGone`."""
    import ray
    from ray.exceptions import RayError

    # No retries: that the task is lost is the answer.
    asking = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=only_on(node_id))(_own_pod)
    try:
        name: str = await asking.remote()
    except RayError as error:
        raise NodeGone(str(error).strip().splitlines()[0]) from None
    return name


def only_on(node_id: str) -> Any:
    """Ray's scheduling strategy for a task or actor that must run on this node."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # Not soft: where the node is gone the task or actor is to fail, and not to start elsewhere.
    return NodeAffinitySchedulingStrategy(node_id, soft=False)


def _own_pod() -> str:
    return os.environ.get(POD_VARIABLE, "")
