"""Least-loaded placement: a request goes to the joined engine with the largest free share.

Guarantees: never above an engine's limit, never to an engine that has not joined at the current version;
equal inputs give equal choices (ties go to the engine listed first). Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class EngineLoad:
    """One engine, as placement sees it."""

    running: int
    """Requests placed on it and not ended."""
    limit: int
    """Most requests that it runs."""
    joined: bool
    """Whether it takes new requests."""


def choose_engine(loads: Sequence[EngineLoad]) -> int | None:
    """Index of the engine for the next request, or None when no engine has room."""
    free = [index for index, load in enumerate(loads) if load.joined and load.running < load.limit]
    return min(free, key=lambda index: loads[index].running / loads[index].limit, default=None)
