"""One training step: plan, forward, loss, backward, update.

Guarantees:
- loss and update are those of the whole batch at once, however many micro-batches and ranks share it;
- a rank gets the tokens of what it trains, and of nothing else (`trainer.group_scatter`);
- sharded weights are gathered, and gradients reduced, by all ranks together: either in every pass, of which
  all ranks make the same number, or once for each update, whatever passes ranks share (`HeldWeights`);
- log-probabilities under the step's first weights (for losses that need them), the reference model and the
  teacher are computed before any update of the step; those of a served teacher come with the samples;
- a gradient that is not finite never reaches the weights, and a teacher or reference model that gives no
  numbers ends the training: `TrainingDiverged`;
- from a step's first pass to its last update nothing waits for the device (but for the norm of gradients,
  where `optim` cannot do without).
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from msgspec.structs import replace
from torch import Tensor

from rljob_api import RLJob
from rljob_runtime.groups.masking import oldest_trained
from rljob_runtime.groups.staleness import Bound
from rljob_runtime.job_errors import TrainingDiverged
from rljob_runtime.objective.losses import needs_proximal
from rljob_runtime.objective.objective import Objective
from rljob_runtime.objective.tokens import Tokens
from rljob_runtime.parallel.hdp_plan import Plan
from rljob_runtime.parallel.rank_layout import RankLayout
from rljob_runtime.samples import Group
from rljob_runtime.step_numbers import step_number
from rljob_runtime.trainer.adapter import BaseModel
from rljob_runtime.trainer.attention import LayOut
from rljob_runtime.trainer.batch import Response, batches_of, describe
from rljob_runtime.trainer.context_parallel import Sharing, agree, alone
from rljob_runtime.trainer.group_scatter import Content, Key, scatter_contents
from rljob_runtime.trainer.hdp_weights import HeldWeights
from rljob_runtime.trainer.log_probs import Entropy, Scores
from rljob_runtime.trainer.loss import token_loss
from rljob_runtime.trainer.micro_batch_work import Batch, Maker, MicroBatchWork, WorkMaker, keys
from rljob_runtime.trainer.optim import ScheduledAdamW
from rljob_runtime.trainer.outline import GroupOutline
from rljob_runtime.trainer.pass_costs import (
    PassCosts,
    PlannedUpdate,
    measured_by_all,
    seconds_of_passes,
)
from rljob_runtime.trainer.phases import Phases, seconds_by_event
from rljob_runtime.trainer.policy import Policy
from rljob_runtime.trainer.prefetch import Prefetched, one_thread
from rljob_runtime.trainer.rectangles import Rectangles
from rljob_runtime.trainer.step_metrics import StepMetrics
from rljob_runtime.trainer.tally import Tally, Totals


class StepRunner:
    """Trains steps on one rank; all ranks call it with the same arguments."""

    def __init__(
        self,
        job: RLJob,
        policy: Policy,
        reference: Policy | BaseModel | None,
        optimizer: ScheduledAdamW,
        device: torch.device,
        phases: Phases,
        costs: PassCosts,
        lay_out: LayOut = Rectangles.of,
        sharing: Sharing | None = None,
        hold: bool = False,
        objective: Objective | None = None,
        teacher: Policy | None = None,
    ) -> None:
        """`reference` is None where the algorithm has no KL penalty, `teacher` where the trainer scores none,
        `sharing` where ranks share no samples;
        `lay_out` makes the layouts of what is not shared; `costs` learns from every step; `hold`: weights are
        gathered once for an update also where ranks share no samples; `objective`: the job's, None where it
        names no functions of its own."""
        self._training = job.spec.training
        self._policy = policy
        self._reference = reference
        self._teacher = teacher
        self._optimizer = optimizer
        self._device = device
        self._phases = phases
        self._bound = Bound.of(self._training)
        self._objective = objective or Objective.of(self._training.algorithm)
        self._entropy: Entropy = "value" if self._training.profiling.entropy else "none"
        if self._training.algorithm.entropy_coefficient > 0:
            self._entropy = "gradient"
        self._sharing = sharing
        self._costs = costs
        tensor = self._training.parallel.tensor_parallel
        self._layout = RankLayout(dist.get_rank(), dist.get_world_size(), tensor)
        self._maker = WorkMaker(self._training, lay_out, sharing, self._layout, device)
        hold = hold or sharing is not None
        self._held = HeldWeights(policy) if hold else None
        # A base model's weights are the policy's.
        self._held_reference = HeldWeights(reference) if hold and isinstance(reference, Policy) else None
        self._held_teacher = HeldWeights(teacher) if hold and teacher is not None else None

    def rehearse(self, lengths: Sequence[int], degree: int = 1) -> None:
        """Put samples of these lengths, in tokens, through the model and back, in passes that `degree` ranks
        share, which changes nothing: what passes need is compiled then. All ranks call it together."""
        work = self._maker.untrained(lengths, degree)
        if self._held is not None:
            self._held.gather()
        self._rehearse_scores(work)
        if self._held is not None:
            self._held.expect_backward(last=True)
        _nothing(work.score(self._policy, self._entropy)).backward()  # type: ignore[no-untyped-call]
        self._optimizer.forget()

    @torch.no_grad()
    def _rehearse_scores(self, work: MicroBatchWork) -> None:
        """The passes that a step makes before its updates; see `_score_before_updates`."""
        algorithm, several = self._training.algorithm, self._training.schedule.batches_per_step > 1
        if needs_proximal(algorithm) and several:
            work.score(self._policy, "none")
        frozen = (self._reference, self._held_reference), (self._teacher, self._held_teacher)
        for model, held in frozen:
            if model is not None:
                if held is not None:
                    held.gather()
                work.score(model, "none")
                if held is not None:
                    held.release()

    def run(
        self, step: int, version: int, outlines: Sequence[GroupOutline], groups: Sequence[Group]
    ) -> StepMetrics:
        """Train the groups of `outlines`, sorted by uid, with the weights of `version` (or later ones,
        between versions). `groups` are those groups on rank 0; elsewhere they are not needed."""
        # The weights are exactly those of `version` in the first step after it was published, until that
        # step's first update.
        fresh = step % self._training.async_.steps_per_version == 0
        oldest, schedule = oldest_trained(self._bound, version), self._training.schedule
        estimate = self._objective.estimate
        batches = [
            # The weights that the step begins with are a published version's only before its first update.
            Batch(responses, version if fresh and not index else None)
            for index, responses in enumerate(batches_of(outlines, schedule, estimate, oldest))
        ]
        with self._phases.span("share", step):
            plans = [self._plan(batch.responses) for batch in batches]
            parts = [
                keys((batch, plan.ranks[part]) for batch, plan in zip(batches, plans, strict=True))
                for part in range(self._layout.data_ranks)
            ]
            wanted = [parts[self._layout.data_rank_of(rank)] for rank in range(self._layout.ranks)]
            agree(step, plans)
            contents = scatter_contents(
                wanted, outlines, groups, self._training.algorithm.teacher_server is not None
            )
        tally = Tally()
        with one_thread(self._device) as thread:
            makers = [
                self._prepare(batch, plan, contents) for batch, plan in zip(batches, plans, strict=True)
            ]
            work = [Prefetched(thread, each) for each in makers]
            learning_rate = self._train(step, work, tally)
        with self._phases.span("reduce", step):
            self._check_frozen(step, work)
            self._read_norms(step, work, tally)
            totals = tally.totals()
        timed = self._phases.take()
        updates = [PlannedUpdate(plan, b.lengths) for b, plan in zip(batches, plans, strict=True)]
        counts, recomputed = [len(each) for each in work], self._training.model.recomputed
        own = seconds_of_passes(timed, counts, self._held is None, recomputed)
        measured = measured_by_all(updates, own, self._layout.tensor)
        passes = self._costs.learn(updates, measured)
        described = describe(outlines, version, oldest) | {"passes": passes}
        metrics = _metrics(step, learning_rate, totals, described, seconds_by_event(timed))
        return metrics if self._entropy != "none" else replace(metrics, entropy=None)

    def _plan(self, batch: Sequence[Response]) -> Plan:
        """What each data rank runs; nothing where the batch has nothing to train."""
        if not batch:
            return Plan(((),) * self._layout.data_ranks, 0.0)
        items = [response.item for response in batch]
        if self._sharing is not None:
            return self._sharing.planner(items)
        # By the prior: what was measured differs from run to run, and so would the sums of gradients.
        cap = self._training.parallel.max_tokens_per_micro_batch
        ranks = self._layout.data_ranks
        return alone(items, cap, ranks, self._costs.prior, in_step=self._held is None)

    def _prepare(self, batch: Batch, plan: Plan, contents: Mapping[Key, Content]) -> list[Maker]:
        planned = plan.ranks[self._layout.data_rank]
        makers = self._maker.makers(batch, planned, contents)
        if self._sharing is not None and batch.responses and (not planned or planned[-1].degree > 1):
            # The gradients are reduced in a pass that each rank makes by itself (`HeldWeights`).
            makers.append(self._maker.idle)
        return makers

    def _train(self, step: int, work: Sequence[Sequence[MicroBatchWork]], tally: Tally) -> float:
        """Make the passes and updates of all batches, without waiting for the device; the learning rate of
        the last update."""
        self._score_before_updates(step, work)
        learning_rate = 0.0
        for batch in work:
            learning_rate = self._optimizer.learning_rate
            if batch:
                self._update(step, batch, tally)
            else:
                self._optimizer.skip()
        return learning_rate

    def _check_frozen(self, step: int, work: Sequence[Sequence[MicroBatchWork]]) -> None:
        """Raise `TrainingDiverged`, on all ranks, where a model that is not trained gave no numbers. Its
        gradient may be finite all the same: a penalty that is cut off has one of 0."""
        if self._reference is None and self._teacher is None:
            return
        passes = [each for batch in work for each in batch]
        broken = [
            self._teacher is not None and _any_nan(each.teacher for each in passes),
            _any_nan(each.reference for each in passes),
        ]
        found = torch.tensor(broken, dtype=torch.int)
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
        for nonsense, which in zip(found.tolist(), self._frozen_names(), strict=True):
            if nonsense:
                raise TrainingDiverged(
                    f"step {step_number(step)}: {which} gave log-probabilities that are no numbers: see that "
                    "no weights there are NaN, or take other ones"
                )

    def _frozen_names(self) -> tuple[str, str]:
        """The teacher and the reference model, for a person."""
        model, teacher = self._training.model, self._training.algorithm.teacher_folder
        begun = "training.model.random" if model.path is None else f"{model.path}, training.model.path"
        return (
            f"the teacher ({teacher}, training.algorithm.distillation.teacher.path)",
            f"the reference model, with which training began ({begun}),",
        )

    def _read_norms(self, step: int, work: Sequence[Sequence[MicroBatchWork]], tally: Tally) -> None:
        """Count the updates with their gradients' norms. Raises `TrainingDiverged`, on all ranks, where one
        is not finite."""
        norms = self._optimizer.norms()
        # Of the batches with something to train, up to the first that is not finite.
        for batch, norm in zip([each for each in work if each], norms, strict=False):
            if not math.isfinite(norm):
                # The norm is that of all ranks, so that all raise.
                raise TrainingDiverged(
                    f"step {step_number(step)}: the gradient is not finite, so the weights were left as they "
                    f"are: {self._cure(batch)}, and go on from the last checkpoint"
                )
            tally.add_update(norm)

    @torch.no_grad()
    def _score_before_updates(self, step: int, work: Sequence[Sequence[MicroBatchWork]]) -> None:
        """Compute the log-probabilities under the step's first weights, the reference model and the teacher.

        The first batch needs no proximal ones: its own forward pass has the same weights."""
        if needs_proximal(self._training.algorithm) and any(work[1:]):
            if self._held is not None:
                # Kept for the first update, which is made with the same weights.
                self._gather(step, self._held)
            for micro_batch in (each for batch in work[1:] for each in batch):
                with self._phases.span("forward", step, tokens=micro_batch.packed.size, why="proximal"):
                    micro_batch.proximal = micro_batch.score(self._policy, "none").log_probs
        if self._reference is not None:
            if self._held_reference is None and self._held is not None and any(work):
                # A base model's weights, which are kept for the first update.
                self._gather(step, self._held)
            for each, found in self._frozen(step, work, self._reference, self._held_reference):
                each.reference = found
        if self._teacher is not None:
            for each, found in self._frozen(step, work, self._teacher, self._held_teacher, why="teacher"):
                each.teacher = found

    def _frozen(
        self,
        step: int,
        work: Sequence[Sequence[MicroBatchWork]],
        model: Policy | BaseModel,
        held: HeldWeights | None,
        **extra: Any,
    ) -> Iterator[tuple[MicroBatchWork, Tensor]]:
        """The log-probabilities of each micro-batch's tokens under a model that is not trained. All ranks run
        through it together."""
        if held is not None:
            self._gather(step, held)
        for micro_batch in (each for batch in work for each in batch):
            with self._phases.span("reference_forward", step, tokens=micro_batch.packed.size, **extra):
                found = micro_batch.score(model, "none").log_probs
            yield micro_batch, found
        if held is not None:
            held.release()

    def _update(self, step: int, batch: Sequence[MicroBatchWork], tally: Tally) -> None:
        if self._held is not None:
            self._gather(step, self._held)
        for index, micro_batch in enumerate(batch, start=1):
            size = micro_batch.packed.size
            if self._held is not None:
                self._held.expect_backward(last=index == len(batch))
            with self._phases.span("forward", step, tokens=size):
                loss = self._loss(micro_batch, tally)
            with self._phases.span("backward", step, tokens=size):
                loss.backward()  # type: ignore[no-untyped-call]
        with self._phases.span("optimizer", step):
            self._optimizer.clip()
            self._optimizer.step()

    def _gather(self, step: int, held: HeldWeights) -> None:
        with self._phases.span("gather", step):
            held.gather()

    def _cure(self, batch: Sequence[MicroBatchWork]) -> str:
        """What to do about a gradient that is not finite. All ranks together."""
        nonsense = torch.tensor([int(any(bool(each.engine.isnan().any()) for each in batch))])
        dist.all_reduce(nonsense, op=dist.ReduceOp.MAX)
        if nonsense:
            return "an engine gave log-probabilities that are no numbers: look at its log and its accelerator"
        lower = "lower optimizer.learningRate or optimizer.maxGradNorm"
        own = self._objective.own_loss
        if own is None:
            return lower
        return f'see that "{own.path}" ({own.field}) divides by no 0 and takes no logarithm of 0, or {lower}'

    def _loss(self, work: MicroBatchWork, tally: Tally) -> Tensor:
        """The micro-batch's share of the batch's loss."""
        scores = work.score(self._policy, self._entropy)
        if not work.trained:
            return _nothing(scores)
        new, entropy = scores
        before = work.proximal if work.proximal is not None else new.detach()
        tokens = Tokens(
            new, work.engine, work.advantages, work.responses, entropy, before, work.reference, work.teacher
        )
        each = token_loss(self._training.algorithm, tokens, self._objective.own_loss)
        loss = (each.total * work.weights).sum()
        if work.counts:
            gap = (new.detach() - work.engine).abs()
            tally.add(loss, each, work.weights, entropy, gap, work.current, work.tokens)
        return loss


def _any_nan(tensors: Iterable[Tensor | None]) -> bool:
    """Whether any number of these is none; the device is waited for once."""
    found = [each.isnan().any() for each in tensors if each is not None]
    return bool(torch.stack(found).any()) if found else False


def _nothing(scores: Scores) -> Tensor:
    """0, with a gradient of 0 for every weight: the loss of what counts for nothing."""
    # Zeros in memory, as tokens' weights are: of one number the gradient has another form, for which layers
    # would be compiled anew.
    zeros = torch.zeros_like(scores.log_probs)
    total = scores.log_probs * zeros
    return (total if scores.entropies is None else total + scores.entropies * zeros).sum()


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
        teacher_kl=sums["teacher_kl"] / tokens,
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
