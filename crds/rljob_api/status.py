"""What an RLJob reports about itself."""

from pydantic import Field

from rljob_api.base import Model


class StalenessStatus(Model):
    """Age of the samples of the newest step, in weight versions."""

    mean: float
    """Mean over the step's responses."""
    max: int
    """Largest."""


class TrainingStatus(Model):
    """Progress, as the runtime reports it."""

    step: int
    """Steps done."""
    total_steps: int
    """Steps in all."""
    weight_version: int
    """Newest weight version that the engines have."""
    reward: float | None = None
    """Mean reward of the newest step."""
    staleness: StalenessStatus | None = None
    """Age of the samples of the newest step."""
    tokens_per_second: float = 0.0
    """Response tokens trained per second, over the last minute."""
    queue_depth: int = 0
    """Samples that wait in the queue."""
    checkpoint_step: int | None = None
    """Step of the newest checkpoint."""


class Status(Model):
    """What is."""

    observed_generation: int | None = None
    """metadata.generation that this status speaks of."""
    phase: str | None = None
    """One word for people; derived from the conditions."""
    fast_rollout_replicas: int = Field(default=0, ge=0)
    """Fast-rollout workers that exist; for the scale subresource."""
    fast_rollout_selector: str | None = None
    """Label selector of the fast-rollout pods; for the scale subresource."""
    training: TrainingStatus | None = None
    """Progress of the training."""
