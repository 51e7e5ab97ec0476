"""Which rollout workers start, which are released, and which come back, when the pools' sizes change.

Guarantees: a worker is released only when there are more than were asked for, or when its pod is being
removed anyway, and then the cheapest go first; there are never fewer than were asked for as long as places
for them are there; a pod that was offered to the operator has no worker before the offer is withdrawn for
certain; asked again about what it has decided, it decides nothing more. Pure.

A place is one worker's worth of a pool's resource on a Ray node: a pod in a cluster.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

Occupant = Literal["nobody", "starting", "serving", "leaving"]


@dataclass(frozen=True)
class Place:
    """A place, and what is on it."""

    key: str
    """Its own among all."""
    pod: str
    occupant: Occupant = "nobody"
    requests: int = 0
    """That run on it."""
    since: float = 0.0
    """When its engine began to serve, in seconds."""
    released: bool = False
    """The pod may be removed, or may be once its worker has left."""
    offered: bool = False
    """The operator may take the pod for released."""


@dataclass(frozen=True)
class Change:
    """What to do, by the places' keys."""

    release: tuple[str, ...] = ()
    """Take the worker off, if there is one, and offer the pod for removal."""
    rejoin: tuple[str, ...] = ()
    """Take the offer back."""
    start: tuple[str, ...] = ()
    """Start a worker there."""


def decide(desired: int, places: Sequence[Place], doomed: Collection[str]) -> Change:
    """What brings one pool to `desired` workers; pods in `doomed` are being removed whatever is decided."""
    staying = [place for place in places if not place.released and place.pod not in doomed]
    offered = [place for place in places if place.released and place.pod not in doomed]
    surplus = max(0, len(staying) - desired)
    lacking = max(0, desired - len(staying))
    release = [place for place in places if not place.released and place.pod in doomed]
    release += sorted(staying, key=_cost)[:surplus]
    rejoin = sorted(offered, key=_cost, reverse=True)[:lacking]
    kept = [place for place in staying if place not in release] + rejoin
    return Change(
        release=tuple(place.key for place in release),
        rejoin=tuple(place.key for place in rejoin),
        start=tuple(place.key for place in kept if place.occupant == "nobody" and not place.offered),
    )


def _cost(place: Place) -> tuple[int, int, float, str]:
    """What is lost with a worker, the least first: nothing, a start, its requests; then the youngest."""
    stage = {"nobody": 0, "leaving": 0, "starting": 1, "serving": 2}[place.occupant]
    return (stage, place.requests, -place.since, place.key)
