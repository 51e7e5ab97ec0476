"""What the RLJob's fields come to: sizes, bounds and settings that several parts of a run need.

Guarantees: a job of epochs has as many steps as it takes to train each prompt of each epoch exactly once, but
for those whose groups are refused, whatever sizes the steps before a resume had; totalSteps is the number of
steps.

Pure: a function of the job, of the number of prompts, and of where the run begins.
"""

from dataclasses import dataclass

from rljob_api import RLJob
from rljob_api.training import Training
from rljob_runtime.data.forced_lengths import ForcedLengths
from rljob_runtime.engines.protocol import PauseMode
from rljob_runtime.groups.filter import GroupFilter
from rljob_runtime.groups.ledger import Ledger
from rljob_runtime.groups.oversampling import OverSampling, surplus_groups
from rljob_runtime.groups.refill import Refill
from rljob_runtime.groups.staleness import Bound, StalenessController
from rljob_runtime.groups.state import RolloutSettings


@dataclass(frozen=True)
class Origin:
    """Where a run begins: at nothing, or at a checkpoint, whose steps may have had other sizes."""

    step: int = 0
    """Steps done."""
    trained: int = 0
    """Groups trained."""
    refused: int = 0
    """Groups refused."""
    updates: int = 0
    """Optimizer updates done."""


@dataclass(frozen=True)
class JobSettings:
    """Derived numbers of a job."""

    bound: Bound
    total_groups: int
    """Groups that the whole job trains, if no more are refused."""
    uids: int | None
    """Their prompts have uids below this; None: there is no end of them, for others replace refused ones."""
    total_steps: int
    total_updates: int
    """Optimizer updates of the whole job."""
    surplus: int
    """How many more groups would be trained, had every step before the run's begin had today's size; less
    than 0 where fewer would be."""
    capacity_groups: int
    """Groups that the queue holds."""
    refill: int | None
    """Groups that are refused between two steps, at most; None: none is."""
    surplus_groups: int
    """Groups that are begun in each version beyond what the bound admits, so that the slowest are aborted; 0:
    no over-sampling."""
    refused: int
    """Groups that were refused before the run's begin."""
    capacity_samples: int
    """Samples in so many groups."""
    rollout: RolloutSettings
    in_flight: PauseMode | None
    """What a push does to the requests that an engine runs; None where engines pull."""
    trainer_ranks: int

    def controller(self, ledger: Ledger) -> StalenessController:
        """Staleness control of the job where `ledger` says what is done. It compares groups with weight
        versions, which follow from steps: so it is told of as many groups as steps of today's size would have
        trained."""
        total, endless = self.total_groups, self.uids is None
        if not endless:
            total -= ledger.refused - self.refused
        refill = None if self.refill is None else Refill(self.refill, endless)
        return StalenessController(
            self.bound,
            total + self.surplus,
            ledger.trained + self.surplus,
            self.capacity_groups,
            refill,
            OverSampling(self.surplus_groups) if self.surplus_groups else None,
        )


def job_settings(
    job: RLJob, rows: int, origin: Origin = Origin(), forced: ForcedLengths | None = None
) -> JobSettings:
    """The settings of a job whose data has `rows` prompts in one epoch, from `origin` on; `forced` are the
    lengths that its responses are to have."""
    training = job.spec.training
    schedule, samples = training.schedule, training.rollout.samples_per_prompt
    bound = Bound.of(training)
    if schedule.total_steps is not None:
        left = max(0, schedule.total_steps - origin.step) * bound.groups_per_step
    else:
        left = max(0, (schedule.epochs or 1) * rows - origin.trained - origin.refused)
    # Rounded up: the last step trains what is left.
    steps_left = -(-left // bound.groups_per_step)
    capacity = training.async_.queue_capacity
    # queueCapacity counts samples, and a group is queued whole.
    surplus_groups = _surplus(training, bound)
    capacity_groups = bound.most_outstanding + surplus_groups if capacity is None else capacity // samples
    max_refill = training.rollout.filter.max_refill
    endless = schedule.total_steps is not None and (max_refill is not None or origin.refused > 0)
    trainer, teacher = job.spec.pools.trainer, training.algorithm.teacher_server
    vllm, push = training.rollout.engine.vllm, training.async_.weight_sync.push
    # A rank for each accelerator; on CPUs one for each worker.
    processes = 1 if job.spec.accelerator == "cpu" else trainer.accelerators_per_worker
    return JobSettings(
        bound=bound,
        total_groups=origin.trained + left,
        uids=None if endless else origin.trained + origin.refused + left,
        total_steps=origin.step + steps_left,
        total_updates=origin.updates + steps_left * schedule.batches_per_step,
        surplus=origin.step * bound.groups_per_step - origin.trained,
        capacity_groups=capacity_groups,
        capacity_samples=capacity_groups * samples,
        refill=max_refill * bound.groups_per_step if max_refill is not None else None,
        surplus_groups=surplus_groups,
        refused=origin.refused,
        rollout=RolloutSettings(
            samples,
            training.rollout.max_response_tokens,
            training.seed,
            forced,
            None if teacher is None else teacher.model,
            GroupFilter.of(training),
            None if vllm is None else vllm.speculation,
        ),
        in_flight=push.in_flight if push is not None else None,
        trainer_ranks=trainer.replicas * processes,
    )


def _surplus(training: Training, bound: Bound) -> int:
    asked = training.rollout.over_sampling
    groups = bound.steps_per_version * bound.groups_per_step
    return 0 if asked is None else surplus_groups(asked.rate, groups)
