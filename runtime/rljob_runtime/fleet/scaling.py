"""Which rollout workers start, which are released, and which come back, when the pools' sizes change.

Guarantees: a worker is released only when there are more than were asked for, or when its pod is being
removed anyway, and then the cheapest go first; there are never fewer than were asked for as long as there are
slots for them; a pod that was offered to the operator has no worker before the offer is withdrawn for
certain; asked again about what it has decided, it decides nothing more. Pure.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

Occupant = Literal["nobody", "starting", "serving", "leaving"]
"""What the worker on a slot is at."""


@dataclass(frozen=True)
class WorkerSlot:
    """Room for one rollout worker on a Ray node: one unit of the pool's resource. In a cluster a pod has one;
    on one machine the node has one for each worker."""

    key: str
    """Names the slot; no other slot of the job has the same."""
    pod: str
    """Name of its pod; empty on one machine."""
    occupant: Occupant = "nobody"
    requests: int = 0
    """Requests that its engine runs."""
    since: float = 0.0
    """When its engine began to serve, in seconds of the fleet's clock."""
    released: bool = False
    """The pod may be removed, or may be once its worker has left."""
    offered: bool = False
    """The operator may have read that the pod is released, and may remove it."""


@dataclass(frozen=True)
class Change:
    """What to do, by the slots' keys."""

    release: tuple[str, ...] = ()
    """Take the worker off, if there is one, and offer the pod for removal."""
    rejoin: tuple[str, ...] = ()
    """Take the offer back."""
    start: tuple[str, ...] = ()
    """Start a worker there."""


def decide(desired: int, slots: Sequence[WorkerSlot], doomed: Collection[str]) -> Change:
    """What brings one pool to `desired` workers; pods in `doomed` are being removed whatever is decided."""
    staying = [slot for slot in slots if not slot.released and slot.pod not in doomed]
    offered = [slot for slot in slots if slot.released and slot.pod not in doomed]
    surplus = max(0, len(staying) - desired)
    lacking = max(0, desired - len(staying))
    # Whatever the size, workers on pods that are being removed leave in order while there is time.
    release = [slot for slot in slots if not slot.released and slot.pod in doomed]
    release += sorted(staying, key=_cost)[:surplus]
    # Before a new pod is waited for, the one comes back with which most would be lost.
    rejoin = sorted(offered, key=_cost, reverse=True)[:lacking]
    kept = [slot for slot in staying if slot not in release] + rejoin
    return Change(
        release=tuple(slot.key for slot in release),
        rejoin=tuple(slot.key for slot in rejoin),
        # On an offered pod a worker could be killed with it at any moment.
        start=tuple(slot.key for slot in kept if slot.occupant == "nobody" and not slot.offered),
    )


def _cost(slot: WorkerSlot) -> tuple[int, int, float, str]:
    """What is lost with a worker, the least first: nothing, a start, its requests; then the youngest."""
    stage = {"nobody": 0, "leaving": 0, "starting": 1, "serving": 2}[slot.occupant]
    return (stage, slot.requests, -slot.since, slot.key)
