"""How ranks share samples: what the RLJob asks for, planned for each batch, and the same on all ranks.

Guarantees: all ranks plan alike, or all raise `PlansDiffer` before anything is trained.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

import numpy as np
import torch
import torch.distributed as dist

from rljob_api.context_parallel import ContextParallel
from rljob_api.job import Spec
from rljob_runtime.devices import Devices
from rljob_runtime.job_errors import UnsupportedModel
from rljob_runtime.manifest.attention_limits import unequal_heads
from rljob_runtime.parallel.cost_model import CostModel
from rljob_runtime.parallel.hdp_plan import Plan, PlannedBatch, plan_hybrid, plan_static
from rljob_runtime.parallel.micro_batches import Item, SampleTooLong, plan_micro_batches
from rljob_runtime.parallel.rank_layout import RankLayout
from rljob_runtime.step_numbers import step_number
from rljob_runtime.trainer.attention_choice import AttentionChoice, Heads
from rljob_runtime.trainer.hdp_attention import Kind, Method, cheaper
from rljob_runtime.trainer.hdp_groups import HdpGroups
from rljob_runtime.trainer.pass_costs import PassCosts

Planner: TypeAlias = Callable[[Sequence[Item]], Plan]
"""The plan of a batch, of which there is at least one item."""


class PlansDiffer(RuntimeError):
    """The ranks have different plans for a step; none of it was trained."""


@dataclass(frozen=True)
class Sharing:
    """How ranks share samples."""

    planner: Planner
    groups: HdpGroups
    attention: Callable[[int], Method]
    """How the ranks of a group compute attention, by their number."""


def share_samples(
    spec: Spec,
    layout: RankLayout,
    heads: Heads,
    choice: AttentionChoice,
    device: torch.device,
    patience: timedelta,
    costs: PassCosts,
    others: Sequence[Heads] = (),
) -> Sharing | None:
    """What the trainer's ranks need to share samples of a model with these heads, whose attention is computed
    as in `choice`; None where they are to share none. All ranks call it together, each with its own `layout`,
    and wait for one another no longer than `patience`, here and in steps; plans follow `costs`; `others`: the
    heads of models that go through the same passes. Raises `UnsupportedModel`."""
    asked = spec.context_parallel
    largest = asked.largest_degree(layout.data_ranks)
    if largest == 1:
        return None
    kind_of = attention(asked, largest, heads, others, layout.tensor)
    cap = spec.training.parallel.max_tokens_per_micro_batch
    return Sharing(
        planner(asked, cap, layout, costs),
        HdpGroups(layout, largest, device, Devices.of(spec.accelerator).backend, patience),
        lambda degree: Method(kind_of(degree), choice.name),
    )


def alone(items: Sequence[Item], cap: int, world_size: int, cost: CostModel, in_step: bool) -> Plan:
    """The plan where no sample is shared. `in_step`: ranks wait for each other in every pass, so that all
    have the same number, of which some may be empty; otherwise each has one at least, for the gradients are
    reduced in its last one. Raises `SampleTooLong`."""
    seconds = cost.sample_seconds(np.array([item.tokens for item in items], dtype=np.int64), 1)
    shares = plan_micro_batches(items, cap, world_size, seconds, cost.pass_seconds(1), in_step)
    ranks = (
        tuple(PlannedBatch(rank, 1, each) for each in share or [()]) for rank, share in enumerate(shares)
    )
    return Plan(tuple(ranks), 0.0)


def planner(asked: ContextParallel, cap: int, layout: RankLayout, costs: PassCosts) -> Planner:
    """What plans batches with shared samples, of at most `cap` tokens on a data rank, as `asked`. Its plans
    raise `SampleTooLong`."""
    world_size = layout.data_ranks
    largest = asked.largest_degree(world_size)
    named = "ranks" if layout.tensor == 1 else f"tensor groups of {layout.tensor} ranks"
    # A shared sample is padded to a multiple of twice its degree.
    limit = max(cap, cap // 2 * 2 * largest)

    def plan(items: Sequence[Item]) -> Plan:
        for item in items:
            if item.tokens > limit:
                raise SampleTooLong(
                    f"sample {item.sample} of prompt {item.uid} has {item.tokens} tokens, above the {limit} "
                    f"that {largest} of {world_size} {named} hold together: raise "
                    f"spec.training.parallel.maxTokensPerMicroBatch ({cap}), lower "
                    "spec.training.rollout.maxResponseTokens, or let more of them share a sample "
                    "(spec.training.parallel.contextParallel)"
                )
        lengths = [item.tokens for item in items]
        if asked.fixed is not None:
            return plan_static(lengths, world_size, cap, costs.model, asked.fixed.degree)
        return plan_hybrid(lengths, world_size, cap, costs.model, largest_degree=largest)

    return plan


def attention(
    asked: ContextParallel, largest: int, heads: Heads, others: Sequence[Heads] = (), tensor: int = 1
) -> Callable[[int], Kind]:
    """How groups of up to `largest` ranks compute attention, for a model with these heads and what `others`
    there are beside it, of which each rank has the part of a tensor group of `tensor`. Raises
    `UnsupportedModel` where they cannot share its samples."""
    unfit = (unequal_heads(each.query, largest, tensor) for each in (heads, *others))
    if asked.attention == "ulysses" and (why := next(filter(None, unfit), None)) is not None:
        raise UnsupportedModel(why)
    if asked.attention != "auto":
        chosen: Kind = asked.attention
        return lambda degree: chosen

    own, beside = heads.part(tensor), [each.part(tensor) for each in others]

    def serves(degree: int) -> Kind:
        divided = all(each.query % degree == 0 for each in beside)
        return cheaper(own.query, own.shared, degree) if divided else "allGather"

    return serves


def agree(step: int, plans: Sequence[Plan]) -> None:
    """Raise `PlansDiffer` on all ranks unless all have the same plans."""
    if dist.get_world_size() == 1:
        return
    digest = 0
    for plan in plans:
        # A place in the sequence counts: with the multiplier of 64-bit FNV hashes.
        digest = (digest * 0x100000001B3 + plan.digest()) % 2**63
    own = torch.tensor([digest], dtype=torch.int64)
    found = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(found, own)
    others = [rank for rank, each in enumerate(found) if int(each) != int(found[0])]
    if others:
        named = ", ".join(map(str, others))
        raise PlansDiffer(
            f"step {step_number(step)}: the ranks planned different micro-batches (other than rank 0: {named}"
            "), and nothing was trained: all ranks must run the same version of rljob, of Python and of numpy"
        )
