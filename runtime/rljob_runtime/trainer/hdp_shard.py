"""A rank's part of a packed micro-batch that several ranks share.

Every sample is padded to a multiple of 2 · degree tokens and cut into as many chunks; member r gets chunks r
and 2 · degree - 1 - r ("zigzag"), so that under causal attention all members have equally much to compute.
What is predicted, and from what, is settled before the cut (`Packed.targets`), so that no token needs a
neighbour that another member has.

Guarantees: a token keeps its position in the sample, and the model computes for it what it would have
computed on one rank; padding lies behind all tokens of its sample, where causality keeps it out of every
result; all members have as many tokens; gathered numbers are in the order of the whole micro-batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rljob_runtime.trainer.attention import Layout
from rljob_runtime.trainer.hdp_attention import ExchangedHeads, GatheredKeys, Method
from rljob_runtime.trainer.hdp_collectives import gathered_copies
from rljob_runtime.trainer.hdp_groups import Members
from rljob_runtime.trainer.host_copy import indices_to_device
from rljob_runtime.trainer.packing import Packed
from rljob_runtime.trainer.segments import Segments

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Shard:
    """See the module's docstring."""

    local: Packed
    """This member's tokens, with those response tokens that it predicts; `lengths` are those of the whole."""
    members: Members
    most: int
    """Response tokens of the member that has most."""
    order: Tensor
    """For each response token of the whole its index among the gathered ones, of which `most` are a
    member's; int64."""

    def whole(self, local: Tensor) -> Tensor:
        """Of a number for each local response token those of all response tokens, on each member. All members
        call it, and compute the same from it: gradients go back to each one's own numbers."""
        padded = torch.nn.functional.pad(local, (0, self.most - len(local)))
        # Not by indexing, whose gradient sorts the indices first.
        return gathered_copies(padded, self.members).flatten().index_select(0, self.order)


@dataclass(frozen=True)
class Cut:
    """Where the tokens of samples go; each array has shape (members, tokens of a member)."""

    samples: Indices
    """Sample of each token, in the order in which a member has them."""
    positions: Indices
    """Position in the sample; at or above the sample's length for padding."""
    padded: Indices
    """Lengths of the samples with their padding; shape (samples,)."""


def shard(
    packed: Packed, lengths: Sequence[int], responses: Sequence[int], members: Members, how: Method
) -> Shard:
    """This member's part of `packed`, whose samples have `lengths` tokens, of which `responses` are their
    responses'. Nothing is read from the device."""
    device = packed.input_ids.device

    def tensor(values: NDArray[Any]) -> Tensor:
        return indices_to_device(values, device)

    sizes = np.asarray(lengths, dtype=np.int64)
    cut = zigzag(sizes, members.degree)
    starts = np.cumsum(sizes) - sizes
    position = np.minimum(cut.positions, sizes[cut.samples] - 1)
    # Padding repeats the sample's last token: what it is does not matter.
    tokens = starts[cut.samples] + position
    predicting = _predicting(sizes, np.asarray(responses, dtype=np.int64))
    found = [_find(tokens[member], cut.positions[member] < sizes[cut.samples[member]], predicting)
             for member in range(members.degree)]  # fmt: skip
    most = max(len(predicted) for predicted, _ in found)
    order = np.empty(len(predicting), dtype=np.int64)
    for member, (predicted, _) in enumerate(found):
        order[predicted] = member * most + np.arange(len(predicted))
    own_responses, places = found[members.position]
    own = tensor(tokens[members.position])
    local = Packed(
        input_ids=packed.input_ids[:, own],
        position_ids=packed.position_ids[:, own],
        predicting=tensor(places),
        targets=packed.targets[tensor(own_responses)],
        responses=packed.responses,
        lengths=packed.lengths,
        layout=_layout(cut, members, how, device),
    )
    return Shard(local, members, most, tensor(order))


def zigzag(lengths: Indices, degree: int) -> Cut:
    """Cut samples of `lengths`: a member has the early chunk of every sample, then the late chunk of each."""
    chunks = -(-lengths // (2 * degree))
    members = np.arange(degree)[:, None]
    # Shape (members, 2 * samples): the first position of every chunk, early ones first.
    firsts = np.concatenate([members * chunks, (2 * degree - 1 - members) * chunks], axis=1)
    twice = np.concatenate([chunks, chunks])
    ends = np.cumsum(twice)
    within = np.arange(ends[-1]) - np.repeat(ends - twice, twice)
    samples = np.repeat(np.tile(np.arange(len(lengths)), 2), twice)
    return Cut(
        samples=np.broadcast_to(samples, (degree, len(samples))),
        positions=np.repeat(firsts, twice, axis=1) + within,
        padded=chunks * 2 * degree,
    )


def _predicting(lengths: Indices, responses: Indices) -> Indices:
    """`Packed.predicting`, on the host."""
    firsts = np.cumsum(lengths) - responses - 1
    ends = np.cumsum(responses)
    return np.repeat(firsts - (ends - responses), responses) + np.arange(ends[-1])


def _find(tokens: Indices, real: NDArray[np.bool_], predicting: Indices) -> tuple[Indices, Indices]:
    """Which response tokens a member predicts, and the place of each among the member's tokens.

    `tokens` are the member's, as indices of the packed ones; `predicting` as in `Packed`, which ascends."""
    places = np.flatnonzero(real)
    index = np.searchsorted(predicting, tokens[places])
    hit = index < len(predicting)
    hit[hit] = predicting[index[hit]] == tokens[places[hit]]
    return index[hit], places[hit]


def _layout(cut: Cut, members: Members, how: Method, device: torch.device) -> Layout:
    def tensor(values: Indices) -> Tensor:
        return indices_to_device(values, device)

    # Where each gathered token, member after member, stands among the padded samples.
    starts = np.cumsum(cut.padded) - cut.padded
    gathered = (starts[cut.samples] + cut.positions).ravel()
    order = np.argsort(gathered)
    if how.kind == "ulysses":
        whole = cut.padded.tolist()
        return ExchangedHeads(
            members, tensor(order), tensor(gathered), Segments.of(whole, whole, device, how.kernel)
        )
    chunks = cut.padded // (2 * members.degree)
    # A chunk sees everything up to its own end.
    ends = np.concatenate([(members.position + 1) * chunks, (2 * members.degree - members.position) * chunks])
    take = [order[start : start + end] for start, end in zip(np.tile(starts, 2), ends, strict=True)]
    segments = Segments.of(np.tile(chunks, 2).tolist(), ends.tolist(), device, how.kernel)
    return GatheredKeys(members, tensor(np.concatenate(take)), segments)
