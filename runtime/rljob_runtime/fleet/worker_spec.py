"""What identifies a rollout worker, and the protocol of whoever makes workers for the fleet."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rljob_runtime.engines.protocol import Engine
from rljob_runtime.site.nodes import RayNode
from rljob_runtime.trace.record.event_log import EventLog


@dataclass(frozen=True)
class WorkerSpec:
    """What identifies a worker; the process that replaces a lost one has the same."""

    name: str
    pool: str
    """ "fast" or "heavy"."""
    limit: int
    """Most requests that its engine runs."""
    events: EventLog
    devices: int = 1
    """Accelerators of its engine."""
    log: Path | None = None
    """What its processes write; None where that is their container's log."""

    @property
    def described(self) -> str:
        """For messages: which worker, and where to read what it says."""
        return f"rollout worker {self.name}" + ("" if self.log is None else f" (log: {self.log})")


class Workers(Protocol):
    """What the fleet makes rollout workers with."""

    def spec(self, name: str, pool: str) -> WorkerSpec:
        """The worker of a name; the same one each time."""
        ...

    async def make(self, worker: WorkerSpec, node: RayNode) -> Engine:
        """Start a worker on a node, and its engine, with the job's initial weights. Raises `EngineDied`."""
        ...
