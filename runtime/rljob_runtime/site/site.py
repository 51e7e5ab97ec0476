"""Where a job runs: what differs between one machine and a cluster.

Guarantees: every other part of the driver works with these few things alone, so that a run on one machine
and one in a cluster are the same code.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from rljob_api import RLJob
from rljob_runtime.change_signal import ChangeSignal
from rljob_runtime.net.keys import Keyring
from rljob_runtime.site.desired import DesiredState
from rljob_runtime.site.machine import Machine
from rljob_runtime.site.nodes import NodeTable, read_nodes
from rljob_runtime.site.ray_end import check_ray, ray_ends
from rljob_runtime.site.status_draft import StatusDraft

log = logging.getLogger(__name__)

RESOURCES = {"trainer": "trainer", "fast": "fast_rollout", "heavy": "heavy_rollout"}
"""Ray's custom resource for one process of each pool."""


@dataclass
class Site:
    """See the module's guarantees."""

    one_machine: bool
    table: NodeTable
    """The Ray nodes that the job can use."""
    home: str
    """Id of the Ray node that the driver is on."""
    address: str
    """The driver's IP address, for processes on other nodes."""
    desired: Callable[[], DesiredState]
    """What the RLJob asks for now."""
    draft: StatusDraft
    """What the driver answers, until it is written to the RLJob's status; on one machine nobody reads it."""
    changes: ChangeSignal
    """Notified when the table or the desired state has changed, or a rollout worker came or went."""
    keyring: Keyring
    """Keys of what listens on the network."""
    early: Mapping[str, Any] = field(default_factory=dict)
    """As `Machine.early`."""


@asynccontextmanager
async def one_machine(job: RLJob, machine: Machine) -> AsyncIterator[Site]:
    """This machine, which was started for the job, and is ended in the end. Raises what its start raised, and
    `RayEnded` as soon as Ray's own processes are gone."""
    try:
        if machine.failure is not None:
            raise machine.failure
        if machine.turns is not None:
            log.warning("%s", machine.turns)
        check_ray(machine.processes)
        # A task that fails cancels the body, and so ends the job.
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(ray_ends(machine.processes), name="ray")
            changes, desired = ChangeSignal(), DesiredState.of(job)
            table = NodeTable(read_nodes, _no_pod, tuple(RESOURCES.values()), changes)
            await table.read_once()
            home = table.nodes[0]
            try:
                yield Site(
                    True, table, home.id, home.address, lambda: desired, StatusDraft(attempt=1), changes,
                    Keyring(), machine.early,
                )  # fmt: skip
            finally:
                watching.cancel()
    finally:
        machine.end()


async def _no_pod(node_id: str) -> str:
    """This machine is no pod, and needs no process that looks."""
    return ""
