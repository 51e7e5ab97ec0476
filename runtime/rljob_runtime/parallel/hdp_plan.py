"""Which ranks share the forward and backward pass of which samples (hybrid data and context parallelism).

A pass is run by an aligned group of ranks: 1, 2, 4, … of them, the first one's number divisible by how many
there are. Long samples are shared by more ranks, short ones are packed, and each rank runs its passes in
descending degree.

Guarantees:
- every sample is in exactly one pass, and a pass has at most cap · degree tokens, padding included;
- all ranks of a group have its passes in the same order, and a rank's passes descend in degree, so that no
  order of events can dead-lock (docs/algorithms.md);
- under the cost model the hybrid plan takes no longer than the best plan with one degree for all samples;
- equal inputs give equal plans on every machine: what is compared are whole nanoseconds. Pure.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rljob_runtime.parallel.cost_model import CostModel
from rljob_runtime.parallel.hdp_levels import Levels, Schedule
from rljob_runtime.parallel.micro_batches import SampleTooLong

_BY_TOKENS = CostModel(per_pass=0.0, per_token=1e-6, per_square=0.0)
"""Where nothing is known of costs: a token is as dear as any other, and sharing is free."""


@dataclass(frozen=True)
class PlannedBatch:
    """One forward and backward pass of a group of ranks."""

    first: int
    """First rank of the group; divisible by `degree`."""
    degree: int
    """Ranks of the group, a power of two."""
    samples: tuple[int, ...]
    """Indices of samples, ascending."""


@dataclass(frozen=True)
class Plan:
    """What every rank runs, and how long it takes."""

    ranks: tuple[tuple[PlannedBatch, ...], ...]
    """Of each rank, in the order in which it runs them."""
    seconds: float
    """Predicted until the last rank is through; 0 without a cost model."""

    @cached_property
    def passes(self) -> tuple[PlannedBatch, ...]:
        """Every pass once: in the order of the groups' first ranks, and for each in the order of running."""
        return tuple(
            each for rank, batches in enumerate(self.ranks) for each in batches if each.first == rank
        )

    def digest(self) -> int:
        """A number of 64 bits with a sign, equal on all ranks if and only if (but for chance) their plans
        are."""
        words = [len(self.ranks)]
        for batches in self.ranks:
            words.append(len(batches))
            for each in batches:
                words += [each.first, each.degree, len(each.samples), *each.samples]
        hashed = hashlib.blake2b(np.array(words, dtype="<i8").tobytes(), digest_size=8)
        return int.from_bytes(hashed.digest(), "little", signed=True)


def plan_static(
    lengths: Sequence[int], world_size: int, cap: int, cost: CostModel | None, degree: int
) -> Plan:
    """Every sample shared by `degree` ranks; ranks beyond the last whole group have nothing to do.

    `lengths` are in tokens, `cap` is what a rank holds of a pass. Raises `SampleTooLong`, and `ValueError`
    for a sample without tokens or a degree that is no power of two within the world."""
    if degree < 1 or degree & (degree - 1) or degree > world_size:
        raise ValueError(f"the degree must be a power of two of at most {world_size} ranks, and was {degree}")
    if degree > 1 and cap == 1 and lengths:
        raise SampleTooLong(
            f"{degree} ranks that hold one token each can share no sample: each gets two pieces of it"
        )
    levels = _levels(lengths, world_size, cap, cost, degree)
    return _plan(levels.static(degree.bit_length() - 1), world_size, cost)


def plan_hybrid(
    lengths: Sequence[int],
    world_size: int,
    cap: int,
    cost: CostModel | None,
    *,
    largest_degree: int | None = None,
) -> Plan:
    """Each sample shared by as many ranks as make the last rank end soonest; by at most `largest_degree`.

    `lengths` are in tokens, `cap` is what a rank holds of a pass. Raises `SampleTooLong`, and `ValueError`
    for a sample without tokens."""
    limit = world_size if largest_degree is None else min(world_size, largest_degree)
    levels = _levels(lengths, world_size, cap, cost, limit)
    return _plan(levels.best(), world_size, cost)


def _levels(
    lengths: Sequence[int], world_size: int, cap: int, cost: CostModel | None, largest: int
) -> Levels:
    """The batch, with degrees up to `largest`."""
    if min(world_size, cap, largest) < 1:
        raise ValueError(
            f"ranks, cap and largest degree must be at least 1 (found {world_size}, {cap}, {largest})"
        )
    # A rank gets two pieces of a shared sample.
    largest = 1 if cap == 1 else 1 << (largest.bit_length() - 1)
    for index, length in enumerate(lengths):
        if length < 1:
            raise ValueError(f"sample {index} has {length} tokens: a sample has at least one")
    levels = Levels(np.asarray(lengths, dtype=np.int64), world_size, cap, cost or _BY_TOKENS, largest)
    refused = levels.too_long()
    if refused is not None:
        raise SampleTooLong(
            f"sample {refused} has {lengths[refused]} tokens, above what {largest} of {world_size} ranks "
            f"hold together ({largest} x {cap}): raise spec.training.parallel.maxTokensPerMicroBatch, lower "
            "spec.training.rollout.maxResponseTokens, or let more ranks share a sample"
        )
    return levels


def _plan(schedule: Schedule, world_size: int, cost: CostModel | None) -> Plan:
    ranks: list[list[PlannedBatch]] = [[] for _ in range(world_size)]
    for level, passes in schedule.passes.items():
        degree = 1 << level
        for group, packed in passes.items():
            batches = [PlannedBatch(group * degree, degree, tuple(sorted(samples))) for samples in packed]
            for rank in range(group * degree, (group + 1) * degree):
                ranks[rank] += batches
    seconds = 0.0 if cost is None else schedule.makespan / 1e9
    return Plan(tuple(map(tuple, ranks)), seconds)
