"""One training step: plan, forward, loss, backward, update.

Guarantees:
- loss and update are those of the whole batch at once, however many micro-batches and ranks share it;
- a rank gets the tokens of what it trains, and of nothing else (`trainer.share`);
- every rank makes the same forward and backward passes in number, as sharded models need;
- log-probabilities under the step's first weights (for decoupled_clip) and under the reference model are
  computed before any update of the step;
- a gradient that is not finite never reaches the weights: `TrainingDiverged`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from rljob_api import RLJob
from rljob_runtime.groups.masking import oldest_trained
from rljob_runtime.groups.staleness import Bound
from rljob_runtime.job_errors import TrainingDiverged
from rljob_runtime.parallel.micro_batches import MicroBatch, plan_micro_batches
from rljob_runtime.samples import Group
from rljob_runtime.trainer.attention import LayOut
from rljob_runtime.trainer.batch import Response, batches_of, describe
from rljob_runtime.trainer.log_probs import Entropy
from rljob_runtime.trainer.loss import Tokens, token_loss, token_weights
from rljob_runtime.trainer.optim import ScheduledAdamW
from rljob_runtime.trainer.outline import GroupOutline
from rljob_runtime.trainer.packing import Packed, pack
from rljob_runtime.trainer.phases import Phases, seconds_by_event
from rljob_runtime.trainer.policy import Policy
from rljob_runtime.trainer.rectangles import Rectangles
from rljob_runtime.trainer.share import Content, Key, share_contents
from rljob_runtime.trainer.step_metrics import StepMetrics
from rljob_runtime.trainer.tally import Tally, Totals


@dataclass
class MicroBatchWork:
    """The input of one forward and backward pass of a rank. Tensors have a number for each token that is
    trained."""

    packed: Packed
    engine: Tensor
    """Log-probabilities as the engines gave them."""
    advantages: Tensor
    weights: Tensor
    """Weight of each token in the batch's mean."""
    current: Tensor
    """Which tokens were drawn with the weights that the step begins with."""
    real: bool
    """False where the rank has nothing to do and only takes part."""
    proximal: Tensor | None = None
    """Log-probabilities under the weights that the step begins with; for decoupled_clip."""
    reference: Tensor | None = None
    """Log-probabilities under the reference model; for the KL penalty."""


class StepRunner:
    """Trains steps on one rank; all ranks call it with the same arguments."""

    def __init__(
        self,
        job: RLJob,
        policy: Policy,
        reference: Policy | None,
        optimizer: ScheduledAdamW,
        device: torch.device,
        phases: Phases,
        lay_out: LayOut = Rectangles.of,
    ) -> None:
        """`reference` is None where the algorithm has no KL penalty; `lay_out` makes layouts."""
        self._training = job.spec.training
        self._policy = policy
        self._reference = reference
        self._optimizer = optimizer
        self._device = device
        self._phases = phases
        self._lay_out = lay_out
        self._bound = Bound.of(self._training)
        self._entropy: Entropy = "gradient" if self._training.algorithm.entropy_coefficient > 0 else "value"

    def run(
        self, step: int, version: int, outlines: Sequence[GroupOutline], groups: Sequence[Group]
    ) -> StepMetrics:
        """Train the groups of `outlines`, sorted by uid, with the weights of `version` (or later ones,
        between versions). `groups` are those groups on rank 0; elsewhere they are not needed."""
        # The weights are exactly those of `version` in the first step after it was published, until that
        # step's first update.
        fresh = step % self._training.async_.steps_per_version == 0
        oldest, by_std = oldest_trained(self._bound, version), self._training.algorithm.normalize_by_std
        batches = batches_of(outlines, self._training.schedule, by_std, oldest)
        shares = [self._split(batch) for batch in batches]
        wanted = [_keys(batches, shares, rank) for rank in range(dist.get_world_size())]
        contents = share_contents(wanted, outlines, groups)
        work = [
            # The weights that the step begins with are a published version's only before its first update.
            self._prepare(batch, share[dist.get_rank()], contents, version if fresh and not index else None)
            for index, (batch, share) in enumerate(zip(batches, shares, strict=True))
        ]
        self._score_before_updates(step, work)
        tally = Tally()
        learning_rate = 0.0
        for batch in work:
            learning_rate = self._optimizer.learning_rate
            if batch:
                self._update(step, batch, tally)
            else:
                self._optimizer.skip()
        totals = tally.totals()
        seconds = seconds_by_event(self._phases.take())
        return _metrics(step, learning_rate, totals, describe(outlines, version, oldest), seconds)

    def _split(self, batch: Sequence[Response]) -> list[list[MicroBatch]]:
        """For each rank its micro-batches; none where the batch has nothing to train."""
        ranks = dist.get_world_size()
        if not batch:
            return [[] for _ in range(ranks)]
        cap = self._training.parallel.max_tokens_per_micro_batch
        return plan_micro_batches([response.item for response in batch], cap, ranks)

    def _prepare(
        self,
        batch: Sequence[Response],
        share: Sequence[MicroBatch],
        contents: Mapping[Key, Content],
        current_version: int | None,
    ) -> list[MicroBatchWork]:
        """A rank's work. `current_version`: the version whose weights the batch is trained with, None where
        the trainer has gone on since it was published."""
        tokens = sum(response.length for response in batch)
        return [self._pack(batch, micro_batch, contents, tokens, current_version) for micro_batch in share]

    def _pack(
        self,
        batch: Sequence[Response],
        indices: MicroBatch,
        contents: Mapping[Key, Content],
        batch_tokens: int,
        current_version: int | None,
    ) -> MicroBatchWork:
        members = [batch[index] for index in _members(batch, indices)]
        inside = [contents[_key(member)] for member in members]
        # What is too old to be trained belongs to what the rest is predicted from.
        starts = [member.context for member in members]
        pairs = list(zip(inside, starts, strict=True))
        packed = pack(
            [np.concatenate([each.prompt, each.tokens[:start]]) for each, start in pairs],
            [each.tokens[start:] for each, start in pairs],
            self._device,
            self._lay_out,
        )
        # Copied, for decoded arrays are views of the frame that came, and torch wants memory that can be
        # written to.
        engine = torch.cat([torch.from_numpy(each.log_probs[start:].copy()) for each, start in pairs])
        advantages = torch.tensor([each.advantage for each in members], device=self._device)
        current = torch.cat([torch.from_numpy(each.drawn_with(current_version)) for each in members])
        weights = token_weights(
            self._training.algorithm.aggregation, packed.lengths, batch_tokens, len(batch)
        )
        return MicroBatchWork(
            packed=packed,
            engine=engine.to(self._device),
            advantages=advantages[packed.responses],
            weights=weights if indices else torch.zeros_like(weights),
            current=current.to(self._device),
            real=bool(indices),
        )

    @torch.no_grad()
    def _score_before_updates(self, step: int, work: Sequence[Sequence[MicroBatchWork]]) -> None:
        """Compute the log-probabilities under the step's first weights and under the reference model.

        The first batch needs no proximal ones: its own forward pass has the same weights."""
        if self._training.algorithm.policy_loss.decoupled_clip is not None:
            for micro_batch in (each for batch in work[1:] for each in batch):
                with self._phases.span("forward", step, tokens=micro_batch.packed.size, why="proximal"):
                    micro_batch.proximal = self._policy(micro_batch.packed, "none").log_probs
        if self._reference is not None:
            for micro_batch in (each for batch in work for each in batch):
                with self._phases.span("reference_forward", step, tokens=micro_batch.packed.size):
                    micro_batch.reference = self._reference(micro_batch.packed, "none").log_probs

    def _update(self, step: int, batch: Sequence[MicroBatchWork], tally: Tally) -> None:
        for micro_batch in batch:
            size = micro_batch.packed.size
            with self._phases.span("forward", step, tokens=size):
                loss = self._loss(micro_batch, tally)
            with self._phases.span("backward", step, tokens=size):
                loss.backward()  # type: ignore[no-untyped-call]
        with self._phases.span("optimizer", step):
            norm = self._optimizer.clip()
            if not math.isfinite(norm):
                # The norm is that of all ranks, so that all raise.
                raise TrainingDiverged(
                    f"step {step}: the gradient is not finite, so the weights were left as they are: lower "
                    "optimizer.learningRate or optimizer.maxGradNorm, and go on from the last checkpoint"
                )
            self._optimizer.step()
        tally.add_update(norm)

    def _loss(self, work: MicroBatchWork, tally: Tally) -> Tensor:
        """The micro-batch's share of the batch's loss."""
        new, entropy = self._policy(work.packed, self._entropy)
        before = work.proximal if work.proximal is not None else new.detach()
        responses = work.packed.responses
        tokens = Tokens(new, work.engine, work.advantages, responses, entropy, before, work.reference)
        each = token_loss(self._training.algorithm, tokens)
        loss = (each.total * work.weights).sum()
        if work.real:
            gap = (new.detach() - work.engine).abs()
            tally.add(loss, each, work.weights, entropy, gap, work.current, work.packed.size)
        return loss


def _key(response: Response) -> Key:
    return response.item.uid, response.item.sample


def _members(batch: Sequence[Response], indices: MicroBatch) -> Sequence[int]:
    """What goes through the model for a micro-batch: for an empty one the batch's shortest response, so that
    the rank takes part."""
    return indices or [min(range(len(batch)), key=lambda index: batch[index].item.tokens)]


def _keys(
    batches: Sequence[Sequence[Response]], shares: Sequence[Sequence[Sequence[MicroBatch]]], rank: int
) -> list[Key]:
    """The responses that a rank needs, ascending."""
    return sorted(
        {
            _key(batch[index])
            for batch, share in zip(batches, shares, strict=True)
            for indices in share[rank]
            for index in _members(batch, indices)
        }
    )


def _metrics(
    step: int, learning_rate: float, totals: Totals, described: dict[str, object], seconds: dict[str, float]
) -> StepMetrics:
    sums, updates = totals.sums, max(1, totals.updates)
    tokens = max(1.0, sums["response_tokens"])
    compared = sums["parity_tokens"]
    return StepMetrics(
        step=step,
        loss=sums["loss"] / updates,
        policy_loss=sums["policy_loss"] / updates,
        kl=sums["kl"] / tokens,
        entropy=sums["entropy"] / tokens,
        grad_norm=totals.grad_norm / updates,
        learning_rate=learning_rate,
        clip_fraction=sums["clipped"] / tokens,
        importance_weight_mean=sums["importance"] / tokens,
        tokens=int(sums["tokens"]),
        response_tokens=int(sums["response_tokens"]),
        parity_max=totals.parity_max,
        parity_mean=sums["parity"] / compared if compared else None,
        seconds=seconds,
        **described,  # type: ignore[arg-type]
    )
