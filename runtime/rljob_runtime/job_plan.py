"""What the RLJob's fields come to: sizes, bounds and settings that several parts of a run need.

Pure: a function of the job and of the number of prompts.
"""

from dataclasses import dataclass

from rljob_api import RLJob
from rljob_runtime.engines.protocol import PauseMode, Sampling
from rljob_runtime.rollouter import RolloutSettings
from rljob_runtime.staleness import Bound


@dataclass(frozen=True)
class JobPlan:
    """Derived numbers of a job."""

    bound: Bound
    total_groups: int
    total_steps: int
    capacity_groups: int
    """Groups that the queue holds."""
    capacity_samples: int
    rollout: RolloutSettings
    in_flight: PauseMode | None
    """How pushes interrupt; None is the pull plan."""
    trainer_ranks: int


def plan_job(job: RLJob, rows: int) -> JobPlan:
    """`rows`: prompts in one epoch."""
    training = job.spec.training
    schedule, samples = training.schedule, training.rollout.samples_per_prompt
    bound = Bound(training.async_.max_staleness, training.groups_per_step, training.async_.steps_per_version)
    if schedule.total_steps is not None:
        total_groups = schedule.total_steps * bound.groups_per_step
    else:
        total_groups = (schedule.epochs or 1) * rows
    capacity = training.async_.queue_capacity
    capacity_groups = bound.most_outstanding if capacity is None else capacity // samples
    trainer = job.spec.pools.trainer
    push = training.async_.weight_sync.push
    processes = 1 if job.spec.accelerator == "cpu" else trainer.accelerators_per_worker
    return JobPlan(
        bound=bound,
        total_groups=total_groups,
        total_steps=-(-total_groups // bound.groups_per_step),
        capacity_groups=capacity_groups,
        capacity_samples=capacity_groups * samples,
        rollout=RolloutSettings(samples, training.rollout.max_response_tokens, training.seed),
        in_flight=push.in_flight if push is not None else None,
        trainer_ranks=trainer.replicas * processes,
    )


def sampling_of(job: RLJob, stop_token_ids: tuple[int, ...]) -> Sampling:
    """How the job's engines draw tokens."""
    rollout = job.spec.training.rollout
    return Sampling(rollout.temperature, rollout.top_p, rollout.top_k, stop_token_ids)
