"""What a rank puts through the model: planned batches of responses become tensors.

Guarantees: a rank needs the tokens of the responses in its own plan alone; nothing is read from the device.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from rljob_api.training import Training
from rljob_runtime.parallel.hdp_plan import PlannedBatch
from rljob_runtime.parallel.rank_layout import RankLayout
from rljob_runtime.trainer.adapter import BaseModel
from rljob_runtime.trainer.attention import LayOut
from rljob_runtime.trainer.batch import Response
from rljob_runtime.trainer.context_parallel import Sharing
from rljob_runtime.trainer.group_scatter import Content, Key
from rljob_runtime.trainer.hdp_shard import Shard, shard
from rljob_runtime.trainer.host_copy import to_device
from rljob_runtime.trainer.log_probs import Entropy, Scores
from rljob_runtime.trainer.loss import token_weights
from rljob_runtime.trainer.packing import Packed, pack
from rljob_runtime.trainer.policy import Policy


@dataclass
class MicroBatchWork:
    """The input of one forward and backward pass of a rank. Tensors have a number for each token that is
    trained; where ranks share the pass, each of them has all of these."""

    packed: Packed
    """What goes through the model on this rank."""
    shard: Shard | None
    """The part that `packed` is; None where it is all."""
    responses: Tensor
    """Which sample each token belongs to, ascending."""
    engine: Tensor
    """Log-probabilities as the engines gave them."""
    advantages: Tensor
    weights: Tensor
    """Weight of each token in the batch's mean."""
    current: Tensor
    """Which tokens were drawn with the weights that the step begins with."""
    tokens: int
    """Tokens of prompts and responses, of all ranks that share the pass."""
    counts: bool
    """Whether this rank counts the pass in the step's metrics: one of those that share it does. Without
    anything to train, none."""
    trained: bool = True
    """Whether there is anything to train; where a rank only takes part, what is said of tokens means
    nothing."""
    proximal: Tensor | None = None
    """Log-probabilities under the weights that the step begins with; for losses that need them."""
    reference: Tensor | None = None
    """Log-probabilities under the reference model; for the KL penalty."""
    teacher: Tensor | None = None
    """Log-probabilities under the teacher; for distillation. A served one has given them."""

    def score(self, policy: Policy | BaseModel, entropy: Entropy) -> Scores:
        """Scores of every token, as of `Policy`. All ranks that share the pass call it together."""
        found: Scores = policy(self.packed, entropy)
        if self.shard is None:
            return found
        entropies = None if found.entropies is None else self.shard.whole(found.entropies)
        return Scores(self.shard.whole(found.log_probs), entropies)


@dataclass(frozen=True)
class Batch:
    """The responses of an update."""

    responses: Sequence[Response]
    current_version: int | None
    """The version whose weights it is trained with; None where the trainer has gone on since that was
    published."""

    @property
    def lengths(self) -> list[int]:
        """Of the responses with their prompts, in tokens."""
        return [response.item.tokens for response in self.responses]


Maker: TypeAlias = Callable[[], MicroBatchWork]


class WorkMaker:
    """Makes a rank's work."""

    def __init__(
        self,
        training: Training,
        lay_out: LayOut,
        sharing: Sharing | None,
        layout: RankLayout,
        device: torch.device,
    ) -> None:
        """`lay_out` makes the layouts of what is not shared; `sharing` is None where nothing is."""
        self._aggregation = training.algorithm.aggregation
        self._longest = training.rollout.max_response_tokens
        self._served = training.algorithm.teacher_server is not None
        self._lay_out = lay_out
        self._sharing = sharing
        self._layout = layout
        self._device = device

    def makers(
        self, batch: Batch, planned: Sequence[PlannedBatch], contents: Mapping[Key, Content]
    ) -> list[Maker]:
        """What makes the work of this rank's part of a plan, one by one; any thread may call them."""
        return [partial(self._pack, batch, each, contents) if each.samples else self.idle for each in planned]

    def idle(self) -> MicroBatchWork:
        """The least that a rank can put through the model, to take part: a token predicts another, and counts
        for nothing."""
        return self.untrained([2])

    def untrained(self, lengths: Sequence[int], degree: int = 1) -> MicroBatchWork:
        """Samples of these lengths, in tokens, 2 at least, that count for nothing: a token predicts all
        others. `degree`: the ranks that share the pass; one that is in no group of so many takes part by
        `idle`."""
        if degree > 1 and (self._sharing is None or degree not in self._sharing.groups):
            return self.idle()
        prompts = [np.zeros(1, np.int32) for _ in lengths]
        responses = [np.zeros(length - 1, np.int32) for length in lengths]
        packed = pack(prompts, responses, self._device, self._lay_out)
        nothing = torch.zeros(len(packed.targets), device=self._device)
        part = self._shard(packed, lengths, [length - 1 for length in lengths], degree)
        return MicroBatchWork(
            packed if part is None else part.local, part, packed.responses, nothing, nothing, nothing,
            nothing.bool(), packed.size, counts=False, trained=False,
        )  # fmt: skip

    def _pack(self, batch: Batch, planned: PlannedBatch, contents: Mapping[Key, Content]) -> MicroBatchWork:
        members = [batch.responses[index] for index in planned.samples]
        inside = [contents[key_of(member)] for member in members]
        # What is too old to be trained belongs to what the rest is predicted from.
        starts = [member.context for member in members]
        pairs = list(zip(inside, starts, strict=True))
        packed = pack(
            [np.concatenate([each.prompt, each.tokens[:start]]) for each, start in pairs],
            [each.tokens[start:] for each, start in pairs],
            self._device,
            self._lay_out,
        )
        engine = np.concatenate([each.log_probs[start:] for each, start in pairs])
        advantages = np.array([member.advantage for member in members], dtype=np.float32)
        current = np.concatenate([each.drawn_with(batch.current_version) for each in members])
        tokens = sum(response.length for response in batch.responses)
        weights = token_weights(
            self._aggregation, packed.lengths, tokens, len(batch.responses), self._longest
        )
        sizes = [member.item.tokens for member in members]
        part = self._shard(packed, sizes, [member.length for member in members], planned.degree)
        return MicroBatchWork(
            packed=packed if part is None else part.local,
            shard=part,
            responses=packed.responses,
            engine=to_device(engine, self._device),
            advantages=to_device(np.repeat(advantages, packed.lengths), self._device),
            weights=to_device(weights.numpy(), self._device),
            current=to_device(current, self._device),
            tokens=packed.size,
            counts=planned.first == self._layout.data_rank and self._layout.reports,
            teacher=self._taught(pairs),
        )

    def _taught(self, pairs: Sequence[tuple[Content, int]]) -> Tensor | None:
        """What a served teacher gave for the trained tokens of responses, each with where they start; None
        without one."""
        if not self._served:
            return None
        found = [each.teacher[start:] for each, start in pairs if each.teacher is not None]
        return to_device(np.concatenate(found), self._device)

    def _shard(
        self, packed: Packed, lengths: Sequence[int], responses: Sequence[int], degree: int
    ) -> Shard | None:
        """This rank's part of samples with so many tokens, of which so many are their responses'."""
        if degree == 1 or self._sharing is None:
            return None
        members, how = self._sharing.groups.of(degree), self._sharing.attention(degree)
        return shard(packed, lengths, responses, members, how)


def key_of(response: Response) -> Key:
    """The response's place among the step's."""
    return response.item.uid, response.item.sample


def keys(parts: Iterable[tuple[Batch, Sequence[PlannedBatch]]]) -> list[Key]:
    """The responses that a rank needs for these parts of plans, ascending."""
    return sorted(
        {
            key_of(batch.responses[index])
            for batch, planned in parts
            for each in planned
            for index in each.samples
        }
    )
