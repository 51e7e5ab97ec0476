"""What an RLJob reports about itself."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rljob_api.base import Model

# Every text has a bound: a job's own code may write the status, and an operator keeps those of all jobs.
_Word = Annotated[str, Field(max_length=64)]
_Time = Annotated[str, Field(max_length=64, json_schema_extra={"format": "date-time"})]
_Name = Annotated[str, Field(max_length=253)]
_Pod = Annotated[str, Field(max_length=63)]

ConditionType = Literal["Accepted", "PodsReady", "Running", "Degraded", "Suspended", "Complete", "Failed"]
Phase = Literal[
    "Pending", "Starting", "Running", "Suspending", "Suspended", "Restarting", "Complete", "Failed"
]


class StalenessStatus(Model):
    """Age of the samples of the newest step, in weight versions."""

    mean: float
    """Mean over the step's responses."""
    max: int
    """Largest."""
    masked: float | None = None
    """With `async.staleTokens: mask`: share of the step's response tokens that are older than the bound and
    were not trained, 0 to 1."""


class EvaluatedSet(Model):
    """How well the policy did on one set of prompts."""

    list_key: ClassVar[str] = "name"

    name: _Word
    """As in training.evaluation.sets."""
    mean: float | None = None
    """Mean reward; none where no response has one."""
    pass_at_1: float | None = None
    """Share of the responses that pass."""
    pass_at_k: float | None = None
    """Estimated share of the prompts of which at least one of `samplesPerPrompt` responses passes; none
    where that is 1."""


class EvaluationStatus(Model):
    """The newest evaluation."""

    step: int
    """Steps that the evaluated weights have behind them."""
    version: int
    """Their weight version."""
    sets: list[EvaluatedSet] = Field(default_factory=list, max_length=8)
    """Set by set."""
    summary: _Name = ""
    """Mean reward of each set, for the printer column."""


class CheckpointStatus(Model):
    """The newest checkpoint."""

    step: int
    """Steps that it holds."""
    path: str = Field(max_length=4096)
    """Its folder, as the pods see it."""


class PoolLoad(Model):
    """What a pool has been doing."""

    list_key: ClassVar[str] = "name"

    name: Literal["trainer", "fastRollout", "heavyRollout"]
    """Which pool."""
    busy_percent: int | None = Field(default=None, ge=0, le=100)
    """Share of the time in `windowSeconds` in which it had something to do: of a rollout pool the mean over
    its engines, of the trainer the time that it was at steps. None for a pool that had no engine then."""
    running: int | None = Field(default=None, ge=0)
    """Responses that its engines generate now; none for the trainer."""


class LoadStatus(Model):
    """How busy the pools are."""

    window_seconds: int = Field(default=0, ge=0)
    """The time that the shares are of: the newest minute of training, or the newest whole step where that
    took longer, and what has passed of the step under way."""
    pools: list[PoolLoad] = Field(default_factory=list, max_length=3)
    """Pool by pool."""
    waiting: int = Field(default=0, ge=0)
    """Responses that are to be generated and that no engine has begun now."""
    summary: _Word = ""
    """Busy percent of `trainer/fast/heavy`, for the printer column; a pool without a share has `-`."""


class TrainingStatus(Model):
    """Progress, and answers to what the spec asks of the runtime; written by the driver alone."""

    attempt: int = 1
    """The attempt whose driver wrote this."""
    observed_generation: int = 0
    """Newest metadata.generation that the driver has acted on."""
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
    progress: _Word = ""
    """`step/totalSteps`, for the printer column."""
    load: LoadStatus | None = None
    """How busy the pools are. Told with every step; within a step once a minute at most, and only where it is
    noticeably different. None while nothing is trained, as when the trainer is being brought back."""
    evaluation: EvaluationStatus | None = None
    """The newest evaluation."""
    checkpoint: CheckpointStatus | None = None
    """The newest checkpoint."""
    released: list[_Pod] = Field(default_factory=list, max_length=4096)
    """Rollout pods that are drained, in answer to a pool that is to be smaller: they hold no request and get
    none. They may be removed."""
    trainer_stopped_for: int | None = None
    """The trainer wrote a checkpoint, stopped, and waits for the pool to have this many workers."""
    suspended_at_step: int | None = None
    """In answer to `suspend`: the checkpoint of this step is written and nothing is trained any more."""
    completed: bool | None = None
    """True: all steps are trained, model and report are written. The job is then Complete, however its pods
    end."""
    time: _Time | None = None
    """When this was written, RFC 3339."""
    report_seconds: int | None = Field(default=None, ge=1, le=3600)
    """The driver writes this at least so often, in seconds, whether there is anything new or not."""


class Condition(Model):
    """One aspect of the job's state, as in the Kubernetes API conventions."""

    list_key: ClassVar[str] = "type"

    type: ConditionType
    """Which aspect."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: str = Field(max_length=128)
    """Why, in one CamelCase word for programs."""
    message: str = Field(default="", max_length=1024)
    """Why, for people."""
    last_transition_time: _Time
    """When `status` changed last, RFC 3339."""
    observed_generation: int = 0
    """metadata.generation that it speaks of."""


class PoolStatus(Model):
    """The pods of one pool."""

    list_key: ClassVar[str] = "name"

    name: Literal["trainer", "fastRollout", "heavyRollout"]
    """Which pool."""
    desired: int = 0
    """Workers that the spec asks for."""
    current: int = 0
    """Workers whose pods exist."""
    ready: int = 0
    """Workers whose pods are ready."""
    summary: _Word = "0/0"
    """`ready/desired`, for the printer column."""


class ScaleDown(Model):
    """A pool that is being made smaller, or a trainer that is being resized: kept until every pod in
    `victims` is gone, whatever happens to the operator meanwhile."""

    list_key: ClassVar[str] = "pool"

    pool: Literal["trainer", "fastRollout", "heavyRollout"]
    """Which pool."""
    victims: list[_Pod] = Field(default_factory=list, max_length=4096)
    """Pods that are being removed. The runtime takes none of them back."""
    replicas: int
    """Workers that the pool has once they are gone."""
    asked_time: _Time | None = None
    """When the operator first saw that the spec asks for that many workers, RFC 3339."""
    timed_out: bool = False
    """The runtime did not free the pods within drainGraceSeconds: they go without its answer."""
    refused: bool = False
    """Of the trainer: the RayCluster may not be changed now, which is tried again. Training goes on with the
    size that there is."""


class Status(Model):
    """What is observed: written by the operator and, in `training`, by the runtime."""

    observed_generation: int | None = None
    """metadata.generation that this status speaks of."""
    phase: Phase | None = None
    """One word for people; derived from the conditions."""
    conditions: list[Condition] = Field(default_factory=list, max_length=16)
    """What is true of the job, each with a reason, a message and since when."""
    attempt: int = Field(default=0, ge=0)
    """Number of the newest attempt; 0 before the first. Each attempt is a RayCluster: another one follows a
    failure, a pre-emption or a suspension."""
    failures: int = Field(default=0, ge=0)
    """Attempts that the job's own failures ended; counted against backoffLimit."""
    restarts: int = Field(default=0, ge=0)
    """Attempts after the first since the job was last resumed, for whatever reason."""
    spec_digest: str | None = Field(default=None, max_length=64)
    """Digest of those fields of the spec that can change only while the job is suspended, as they were when
    the attempt's cluster was made."""
    cluster_name: _Name | None = None
    """The RayCluster of the attempt; none between two attempts."""
    head_pod: _Word | None = None
    """UID of the attempt's head pod; another one means that the head was lost."""
    start_time: _Time | None = None
    """When the job was started, last resumed or, in a queue, last admitted, RFC 3339; none while it waits for
    admission."""
    attempt_time: _Time | None = None
    """When the attempt's cluster was asked for or, in a queue, admitted, RFC 3339; none while it waits for
    admission; between two attempts, when the next one may begin."""
    suspend_time: _Time | None = None
    """When the newest request to suspend was seen, RFC 3339."""
    completion_time: _Time | None = None
    """When the job became Complete or Failed, RFC 3339."""
    pools: list[PoolStatus] = Field(default_factory=list, max_length=3)
    """The pods, pool by pool."""
    scale_downs: list[ScaleDown] = Field(default_factory=list, max_length=3)
    """Pools that are being made smaller, and the pods that go."""
    fast_rollout_replicas: int = Field(default=0, ge=0)
    """Fast-rollout workers that exist; for the scale subresource."""
    fast_rollout_selector: _Name | None = None
    """Label selector of the fast-rollout pods; for the scale subresource."""
    training: TrainingStatus | None = None
    """Progress of the training."""
