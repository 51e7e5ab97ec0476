"""Which groups of a step make which of its updates.

Guarantees: every group is in exactly one update; a step of n groups makes ceil(n / size) updates of at most
`size` groups each; equal inputs give equal updates on every machine. Pure numpy.
"""

from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np

from rljob_runtime.parallel.karmarkar_karp import karmarkar_karp
from rljob_runtime.parallel.loads import Ints, integer_costs, loads_of, members_of
from rljob_runtime.parallel.longest_first import balance, refine

BatchOrder: TypeAlias = Literal["level", "data", "shortEnds"]
"""level: as many groups in each update, or one less in some, and nearly as many tokens. data: as the groups
come. shortEnds: by tokens, every second one ascending and then the others descending (verl's `balance_batch`
gives this order to the samples of each rank), so that the first and the last updates are short and those in
the middle long."""


def split_groups(tokens: Sequence[int], size: int, order: BatchOrder) -> list[tuple[int, ...]]:
    """The groups of each update, ascending, by their `tokens`; updates in the order in which they are made.
    Raises `ValueError` for a size below 1 and for negative tokens."""
    if size < 1:
        raise ValueError(f"updates of {size} groups: there must be one or more in each")
    values = integer_costs(tokens)
    if order == "level":
        return _level(values, -(-len(values) // size))
    places = np.arange(len(values))
    if order == "shortEnds":
        ascending = np.argsort(values, kind="stable")
        places = np.concatenate([ascending[::2], ascending[1::2][::-1]])
    return [tuple(sorted(places[start : start + size].tolist())) for start in range(0, len(places), size)]


def _level(tokens: Ints, updates: int) -> list[tuple[int, ...]]:
    if updates < 2:
        return [tuple(range(len(tokens)))] * updates
    # None is always the best one: differencing is at its best with many groups for an update. The order of
    # the data is kept where it is as level.
    in_order = np.arange(len(tokens)) * updates // len(tokens)
    options = (
        in_order,
        balance(tokens, updates, equal=True),
        refine(tokens, karmarkar_karp(tokens, updates, equal=True), updates, equal=True),
    )
    best = min(options, key=lambda bin_of: int(loads_of(bin_of, tokens, updates).max()))
    # The update with the first group comes first, and so on: what is oldest is not trained last.
    return sorted(members_of(best, updates))
