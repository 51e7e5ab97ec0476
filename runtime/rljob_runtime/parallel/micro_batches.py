"""Splitting samples over ranks and micro-batches under a strict token cap.

Guarantees: every sample is in exactly one micro-batch; the tokens of a micro-batch never exceed the cap;
equal inputs give equal plans on every machine. Pure numpy.

There are two objectives, by how the ranks wait for each other:

- *in step*: each forward and backward pass has collectives (a sharded model), so that the ranks wait for the
  slowest after each. All have the same number of micro-batches, some may be empty, and the sum over them of
  the costliest of the ranks' is small (`micro_batch_rows`).
- otherwise ranks wait once, at the end: the largest sum of a rank's costs is small, and their numbers of
  micro-batches differ.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from rljob_runtime.parallel.first_fit import first_fit
from rljob_runtime.parallel.loads import Ints, integer_costs, loads_of, members_of
from rljob_runtime.parallel.longest_first import NoRoom, Room, balance, longest_first
from rljob_runtime.parallel.micro_batch_rows import pack_rows

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


def plan_micro_batches(
    items: Sequence[Item],
    cap: int,
    ranks: int,
    costs: ArrayLike | None = None,
    pass_cost: float = 0.0,
    in_step: bool = True,
) -> list[list[MicroBatch]]:
    """For each rank its micro-batches, of at most `cap` tokens each, the costliest first.

    `costs` has the cost of each sample (such as seconds), by default its tokens; `pass_cost`, in the same
    unit, is what a micro-batch costs besides its samples. `in_step` says which of the two objectives holds.
    Raises `SampleTooLong`, and `ValueError` for no ranks, no cap, negative tokens, or costs that
    `loads.integer_costs` refuses."""
    tokens = _tokens(items, cap)
    if cap < 1:
        raise ValueError(f"micro-batches of {cap} tokens: there must be room for one or more")
    if ranks < 1:
        raise ValueError(f"{ranks} ranks: there must be one or more")
    if not items:
        return [[] for _ in range(ranks)]
    # Together, so that both have one unit after they are made whole; with a pass for each sample, so that the
    # passes of any plan sum exactly.
    number = len(items)
    priced = integer_costs(np.append(tokens if costs is None else np.asarray(costs), pass_cost * number))
    if len(priced) != number + 1:
        raise ValueError(f"{number} samples have {len(priced) - 1} costs: each must have one")
    values, per_pass = priced[:-1], int(priced[-1]) // number
    if in_step:
        return _in_step(tokens, values, per_pass, cap, ranks)
    return _apart(tokens, values, per_pass, cap, ranks)


def _tokens(items: Sequence[Item], cap: int) -> Ints:
    for item in items:
        if item.tokens > cap:
            raise SampleTooLong(
                f"sample {item.sample} of prompt {item.uid} has {item.tokens} tokens, above "
                f"spec.training.parallel.maxTokensPerMicroBatch ({cap}): raise it, or lower "
                "spec.training.rollout.maxResponseTokens"
            )
        if item.tokens < 0:
            raise ValueError(f"sample {item.sample} of prompt {item.uid} has {item.tokens} tokens")
    return np.array([item.tokens for item in items], dtype=np.int64)


def _in_step(tokens: Ints, costs: Ints, pass_cost: int, cap: int, ranks: int) -> list[list[MicroBatch]]:
    bin_of, rows = pack_rows(tokens, costs, pass_cost, cap, ranks)
    members = members_of(bin_of, rows * ranks)
    loads = loads_of(bin_of, costs, rows * ranks)
    # By descending cost and by first sample: full micro-batches before empty ones, whatever they cost.
    order = sorted(range(len(members)), key=lambda index: (not members[index], -loads[index], members[index]))
    plan: list[list[MicroBatch]] = [[] for _ in range(ranks)]
    totals = np.zeros(ranks, np.int64)
    for start in range(0, len(order), ranks):
        row = order[start : start + ranks]
        if not members[row[0]]:
            break
        # The costliest to the rank with the least so far: it matters for what ranks do alone.
        for index, rank in zip(row, np.argsort(totals, kind="stable").tolist(), strict=True):
            plan[rank].append(members[index])
            totals[rank] += loads[index]
    return plan


def _apart(tokens: Ints, costs: Ints, pass_cost: int, cap: int, ranks: int) -> list[list[MicroBatch]]:
    """The better of two: samples are dealt and then packed, or packed and then dealt."""
    dealt = members_of(balance(costs, ranks), ranks)
    plans = [[_packed(tokens, share, cap) for share in dealt]]
    packed = _packed(tokens, range(len(tokens)), cap)
    rank_of = longest_first(np.array([costs[list(each)].sum() for each in packed]) + pass_cost, ranks)
    plans.append([[packed[index] for index in share] for share in members_of(rank_of, ranks)])
    best = min(plans, key=lambda plan: _longest(plan, costs, pass_cost))
    return [sorted(each, key=lambda batch: (-costs[list(batch)].sum(), batch)) for each in best]


def _packed(tokens: Ints, share: Sequence[int], cap: int) -> list[MicroBatch]:
    """As few micro-batches as first fit needs, and of about equal size where that keeps the cap: a small
    one at the end uses a device badly, and compiled layers are made anew for sizes of another order."""
    if not share:
        return []
    members = np.array(share)
    bin_of = first_fit(tokens[members], cap)
    number = int(bin_of.max()) + 1
    with suppress(NoRoom):
        bin_of = longest_first(tokens[members], number, room=Room(tokens[members], cap))
    return [tuple(members[list(inside)].tolist()) for inside in members_of(bin_of, number)]


def _longest(plan: Sequence[Sequence[MicroBatch]], costs: Ints, pass_cost: int) -> int:
    return max(sum(int(costs[list(batch)].sum()) + pass_cost for batch in rank) for rank in plan)
