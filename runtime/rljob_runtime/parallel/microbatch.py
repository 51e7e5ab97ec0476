"""Splitting samples over ranks and micro-batches under a strict token cap.

Guarantees: every sample is in exactly one micro-batch; the tokens of a micro-batch never exceed the cap;
every rank has the same number of micro-batches, since collectives need that (some may be empty); equal inputs
give equal plans. Pure.

Samples are dealt to the ranks longest first, each to the rank with the least tokens (longest processing time
first, Graham 1969); each rank packs its share first-fit-decreasing.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

MicroBatch: TypeAlias = tuple[int, ...]
"""Indices of samples, ascending."""


class Item(NamedTuple):
    """A sample to place."""

    uid: int
    """Uid of the sample's group."""
    sample: int
    """Index of the sample in its group."""
    tokens: int
    """Length of prompt and response together."""


class SampleTooLong(ValueError):
    """A sample has more tokens than a micro-batch may have."""


def plan_micro_batches(items: Sequence[Item], cap: int, ranks: int) -> list[list[MicroBatch]]:
    """For each rank its micro-batches, of at most `cap` tokens each. Raises `SampleTooLong`."""
    for item in items:
        if item.tokens > cap:
            raise SampleTooLong(
                f"sample {item.sample} of prompt {item.uid} has {item.tokens} tokens, above "
                f"parallel.maxTokensPerMicroBatch ({cap}): raise it, or lower rollout.maxResponseTokens"
            )
    bins = [_first_fit_decreasing(items, share, cap) for share in _deal(items, ranks)]
    count = max(len(found) for found in bins)
    return [[tuple(sorted(members)) for members in found] + [()] * (count - len(found)) for found in bins]


def _deal(items: Sequence[Item], ranks: int) -> list[list[int]]:
    """The samples of each rank, longest first."""
    # Each rank makes the whole plan for itself: ties go by index, so that all make the same one.
    loads = [0] * ranks
    shares: list[list[int]] = [[] for _ in range(ranks)]
    for index in sorted(range(len(items)), key=lambda index: (-items[index].tokens, index)):
        rank = min(range(ranks), key=lambda rank: (loads[rank], rank))
        shares[rank].append(index)
        loads[rank] += items[index].tokens
    return shares


def _first_fit_decreasing(items: Sequence[Item], share: Sequence[int], cap: int) -> list[list[int]]:
    bins: list[list[int]] = []
    room: list[int] = []
    for index in share:
        place = next((place for place, free in enumerate(room) if items[index].tokens <= free), len(bins))
        if place == len(bins):
            bins.append([])
            room.append(cap)
        bins[place].append(index)
        room[place] -= items[index].tokens
    return bins
