"""Which engines are set aside for an evaluation. Pure.

Guarantees: no more than are wanted, and all of one pool; one engine of the pool is left for training, unless
the evaluation that is under way would have none; of those that hold the weights that are evaluated, the ones
from which the fewest requests have to move.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class PoolShare:
    """So many engines of a pool."""

    pool: str
    """ "fast" or "heavy"."""
    count: int


@dataclass(frozen=True)
class ServingEngine:
    """An engine of the pool that gets requests of training."""

    number: int
    """Names it."""
    version: int
    """Of its weights."""
    requests: int
    """What it runs."""


def engines_to_set_aside(engines: Sequence[ServingEngine], wanted: int, version: int) -> tuple[int, ...]:
    """By number, for an evaluation of `version` that begins; none where none can be spared that holds it."""
    spared = min(wanted, len(engines) - 1)
    holding = [engine for engine in engines if engine.version == version]
    return _cheapest(holding, max(0, spared))


def engines_in_their_place(engines: Sequence[ServingEngine], wanted: int, version: int) -> tuple[int, ...]:
    """By number, for an evaluation of `version` that has lost all of its engines: such that hold it, or else
    those whose version is the nearest; the last engine too, for the evaluation ends and training waits."""
    spared = max(1, min(wanted, len(engines) - 1))
    nearest = min((abs(engine.version - version) for engine in engines), default=0)
    return _cheapest([engine for engine in engines if abs(engine.version - version) == nearest], spared)


def _cheapest(engines: Sequence[ServingEngine], count: int) -> tuple[int, ...]:
    by_cost = sorted(engines, key=lambda engine: (engine.requests, engine.number))
    return tuple(engine.number for engine in by_cost[:count])
