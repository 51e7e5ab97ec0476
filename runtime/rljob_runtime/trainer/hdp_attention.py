"""Attention of tokens that several ranks share: each member of a group has a part of every sample.

Two ways, with the same result:
- all-gather: each member gets the keys and values of all tokens, and computes what its own queries see;
- Ulysses (arXiv:2309.14509): members exchange tokens for heads, so that each has all tokens of some heads,
  and exchange them back afterwards.

Guarantees: any numbers of heads and of shared key-value heads with all-gather, a number of heads that the
degree divides with Ulysses; sliding windows count positions in the sample.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from rljob_runtime.trainer.attention_call import AttentionCall
from rljob_runtime.trainer.hdp_collectives import exchanged, gathered
from rljob_runtime.trainer.hdp_groups import Members
from rljob_runtime.trainer.rows import rearranged
from rljob_runtime.trainer.segments import Kernel, Segments

Kind = Literal["allGather", "ulysses"]


class Method(NamedTuple):
    """How a group of ranks computes attention."""

    kind: Kind
    kernel: Kernel = "rectangles"
    """What each rank computes its part of it with."""


def cheaper(heads: int, shared_heads: int, degree: int) -> Kind:
    """The way on which less has to travel, forward and backward; `heads` are those of queries, `shared_heads`
    those of keys and values.

    Numbers for each token and unit of the heads' size: all-gather receives keys and values of the other
    members, and sends their gradients back with twice the width; Ulysses sends queries, keys, values and
    results of a member's own tokens, twice.
    """
    if heads % degree:
        return "allGather"
    gather = 3 * 2 * shared_heads
    exchange = 2 * (2 * heads + 2 * shared_heads * copies(heads, shared_heads, degree)) / degree
    return "ulysses" if exchange < gather else "allGather"


def copies(heads: int, shared_heads: int, degree: int) -> int:
    """How often Ulysses repeats each key-value head, so that every member has those of its query heads, as
    many for each query head."""
    if shared_heads % degree == 0:
        return 1
    share = heads // shared_heads
    fewest = degree // shared_heads
    return fewest if degree % shared_heads == 0 and share % fewest == 0 else share


@dataclass(frozen=True)
class GatheredKeys:
    """A `Layout` for attention with all keys and values gathered."""

    members: Members
    take: Tensor
    """For each key of each segment its index among the gathered tokens, member after member; int64."""
    segments: Segments
    """Queries in the order of the local tokens."""

    def attend(self, call: AttentionCall) -> Tensor:
        """See `Layout.attend`."""
        # One call for both: of shape (tokens, heads, size of a key and of a value).
        key, value = call.key[0], call.value[0]
        local = torch.cat([key, value], dim=-1).transpose(0, 1)
        # Not by indexing, whose gradient sorts the indices first.
        whole = gathered(local, self.members).flatten(0, 1).index_select(0, self.take)
        keys, values = torch.split(whole, [key.shape[-1], value.shape[-1]], dim=-1)
        queries = call.query[0].transpose(0, 1)
        found = self.segments.attend(queries, keys, values, call.scaling, call.window, call.cap, call.sinks)
        return found.contiguous()[None]


@dataclass(frozen=True)
class ExchangedHeads:
    """A `Layout` for attention with tokens exchanged for heads."""

    members: Members
    order: Tensor
    """For each token of the samples, in their order, its index among the gathered tokens, member after
    member; int64."""
    back: Tensor
    """The inverse of `order`."""
    segments: Segments
    """Whole samples, with their padding."""

    def attend(self, call: AttentionCall) -> Tensor:
        """See `Layout.attend`."""
        degree = self.members.degree
        query, key, value = call.query, call.key, call.value
        repeated = copies(query.shape[1], key.shape[1], degree)
        if repeated > 1:
            key, value = (each.repeat_interleave(repeated, dim=1) for each in (key, value))
        # From (1, heads, tokens, size) to (members, tokens, heads of a member * size), all in one call.
        parts = [each[0].reshape(degree, -1, *each.shape[2:]).transpose(1, 2) for each in (query, key, value)]
        sizes = [part.shape[2] * part.shape[3] for part in parts]
        whole = exchanged(torch.cat([part.flatten(2) for part in parts], dim=-1), self.members)
        whole = rearranged(whole.flatten(0, 1), self.order, self.back)
        queries, keys, values = (
            each.reshape(-1, *part.shape[2:])
            for each, part in zip(torch.split(whole, sizes, dim=-1), parts, strict=True)
        )
        # A member's heads follow one another.
        sinks = None if call.sinks is None else call.sinks.chunk(degree)[self.members.position]
        found = self.segments.attend(queries, keys, values, call.scaling, call.window, call.cap, sinks)
        found = rearranged(found, self.back, self.order)
        # To (tokens, heads, size) of the own tokens: members' heads are in order.
        own = exchanged(found.reshape(degree, -1, *found.shape[1:]), self.members)
        return own.transpose(0, 1).flatten(1, 2).contiguous()[None]
