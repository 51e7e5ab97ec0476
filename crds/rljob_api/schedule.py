"""How much is trained, how asynchronously, and what is kept."""

from typing import ClassVar, Literal

from pydantic import Field

from rljob_api.base import Model, OneOf, Rule
from rljob_api.context_parallel import ContextParallel


class Schedule(OneOf):
    """Steps and batches. A step takes promptsPerBatch * batchesPerStep groups and makes batchesPerStep
    optimizer updates."""

    one_of: ClassVar[tuple[str, ...]] = ("total_steps", "epochs")

    total_steps: int | None = Field(default=None, ge=1, le=100_000_000)
    """Train this many steps; data is repeated as needed."""
    epochs: int | None = Field(default=None, ge=1, le=1_000_000)
    """Train every prompt this many times; the last step may be smaller."""
    prompts_per_batch: int = Field(default=64, ge=1, le=1_000_000)
    """Prompts (groups) of one optimizer update."""
    batches_per_step: int = Field(default=1, ge=1, le=1024)
    """Optimizer updates per step."""
    batch_order: Literal["level", "data", "shortEnds"] = "level"
    """Which of a step's prompts make which of its batches. level: nearly as many tokens in each batch. data:
    in the order of the data. shortEnds: short ones in the first and the last batch, long ones in the middle,
    as verl's balance_batch has it."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="batchOrder must be level unless batchesPerStep is 2 or more: one batch has all prompts "
            "of its step",
            cel="self.batchOrder == 'level' || self.batchesPerStep >= 2",
            holds=lambda self: self.batch_order == "level" or self.batches_per_step >= 2,
            fields=("batchOrder", "batchesPerStep"),
        ),
    )


class PushSync(Model):
    """The trainer interrupts the engines for each new version: pause, load, resume."""

    in_flight: Literal["keep", "abort", "wait"] = "keep"
    """Requests that run when a version arrives. keep: frozen inside the engine, they go on under the new
    weights; with training.adapter nothing is frozen, and they are finished with the adapter that they began
    with. abort: taken out with what they have, and resubmitted to go on. wait: finished first."""
    kv_after_update: Literal["recompute", "keep"] = "recompute"
    """What becomes of the KV cache of frozen requests. recompute: it is computed anew with the new weights,
    so that each token's log-probability is that of the weights of its version. keep: they go on upon what
    earlier weights made of their tokens, without that work; log-probabilities are still those that tokens
    were drawn with, and no longer those that the trainer computes for their version. No response uses KV of
    weights that are older than those of its first token."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="kvAfterUpdate must be recompute unless inFlight is keep: no request is frozen then, so"
            " that there is no KV cache to keep",
            cel="self.kvAfterUpdate == 'recompute' || self.inFlight == 'keep'",
            holds=lambda self: self.kv_after_update == "recompute" or self.in_flight == "keep",
            fields=("kvAfterUpdate", "inFlight"),
        ),
    )


class PullSync(Model):
    """Each engine loads the newest published version when it has finished what it runs; no response
    spans two versions."""

    keep_versions: int = Field(default=2, ge=2, le=64)
    """Published versions that the store keeps."""


class WeightSync(OneOf):
    """How new weights reach the engines."""

    one_of: ClassVar[tuple[str, ...]] = ("push", "pull")

    push: PushSync | None = None
    """The trainer brings each new version to the engines, and interrupts them for it."""
    pull: PullSync | None = None
    """Each engine loads a new version when it has finished what it runs."""
    transport: Literal["auto", "shm", "nccl", "hccl", "tcp"] = "auto"
    """What carries the weights. shm: shared memory, on one machine only. nccl, hccl: device to device, with
    push. tcp: over an encrypted network connection, through main memory. auto: on one machine shm, or nccl
    for nvidia; in a cluster nccl for nvidia, hccl for ascend, tcp for cpu. With pull, an adapter or workers
    that share accelerators (--share, enginesPerAccelerator) shm and tcp alone."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="transport must be auto, shm or tcp with pull: nccl and hccl reach all engines at once",
            cel="!has(self.pull) || self.transport in ['auto', 'shm', 'tcp']",
            holds=lambda self: self.pull is None or self.transport in ("auto", "shm", "tcp"),
            fields=("transport",),
        ),
    )


class Async(Model):
    """How far generation may run ahead of training."""

    max_staleness: float = Field(default=1.0, ge=0, le=1024)
    """Hard bound of a sample's age, in weight versions, from its first token to the moment it is trained.
    0 is synchronous training. A fraction lets that part of a version's samples be one version older:
    0.2 is verl's staleness_threshold=0.2."""
    steps_per_version: int = Field(default=1, ge=1, le=1024)
    """Steps between two weight versions (verl's trigger_parameter_sync_step)."""
    stale_tokens: Literal["wait", "mask"] = "wait"
    """What keeps the bound where a response takes longer than it. wait: a step waits for the responses that
    must be trained now, so that none is older. mask: no step waits for them; the tokens of a response that
    are older than the bound when it is trained are context and have no loss, so that no trained token is
    older."""
    weight_sync: WeightSync = WeightSync(push=PushSync())
    """How new weights reach the engines."""
    queue_capacity: int | None = Field(default=None, ge=1, le=100_000_000)
    """Most samples (responses) that wait in the queue or are being generated for it: a prompt is begun only
    when there is a place for its responses. Default: what maxStaleness admits."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="staleTokens must be wait unless weightSync is push with inFlight keep or abort: only "
            "those let a response go on under new weights, and so have fresh tokens beside stale ones",
            # Weights that are pushed by default come with inFlight: keep.
            cel="self.staleTokens == 'wait' || !has(self.weightSync)"
            " || (has(self.weightSync.push) && self.weightSync.push.inFlight != 'wait')",
            holds=lambda self: (
                self.stale_tokens == "wait"
                or (self.weight_sync.push is not None and self.weight_sync.push.in_flight != "wait")
            ),
            fields=("staleTokens", "weightSync.push.inFlight"),
        ),
    )


class Parallel(Model):
    """How the trainer splits its work."""

    max_tokens_per_micro_batch: int = Field(default=16384, ge=1, le=100_000_000)
    """Most tokens (prompt and response) in one forward pass of one rank, or of the ranks that compute every
    layer together (tensorParallel). A longer sample is shared by several of them, as contextParallel says;
    one that is too long for that is an error."""
    context_parallel: ContextParallel | None = None
    """Which samples are shared by several ranks. Default: none where the longest sample that the job may have
    (data.maxPromptTokens + rollout.maxResponseTokens) fits into maxTokensPerMicroBatch, else hybrid."""
    shard_group_size: int | None = Field(default=None, ge=1, le=65536)
    """Ranks of the trainer that hold one copy of weights, gradients and optimizer states together; each such
    group holds a copy of its own (hybrid sharding). It must divide the trainer's ranks, which may therefore
    only be resized to a multiple of it while the job runs. As many as the accelerators of a node keep the
    gathering of weights inside nodes. Default: all ranks hold one copy."""
    tensor_parallel: int = Field(default=1, ge=1, le=64)
    """Ranks of the trainer, neighbours by number, that compute every layer together, each with an equal part
    of its attention heads and of its feed-forward width or its experts, for the same samples: tensor
    parallelism. It must divide the trainer's ranks, which may therefore only be resized to a multiple of it
    while the job runs, and the model's attention heads, key-value heads, and intermediate size or number of
    experts. They exchange sums of activations twice in each layer, so let them be of one node. Embeddings and
    the output head are split too, where it divides the vocabulary. Where ranks share samples
    (contextParallel), whole groups do. 1: no layer is split."""
    cpu_offload: bool = False
    """Keep weights, gradients and optimizer states in main memory. A layer's weights are copied to the device
    when it is their turn, and the optimizer computes on CPUs, each rank with its share of
    `pools.trainer.cpusPerWorker` as threads: 16 bytes for each parameter fewer on the devices, and slower
    steps. Not with accelerator: cpu."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="tensorParallel must divide shardGroupSize, where that is set",
            cel="!has(self.shardGroupSize) || self.shardGroupSize % self.tensorParallel == 0",
            holds=lambda self: (self.shard_group_size or 0) % self.tensor_parallel == 0,
            fields=("tensorParallel", "shardGroupSize"),
        ),
    )


class Checkpoint(Model):
    """When checkpoints are written, where, and how many are kept. After a loss or a stop the job goes on from
    the newest one."""

    every_steps: int = Field(default=50, ge=1, le=1_000_000)
    """Steps between two checkpoints. The end of the job and a stop make one too."""
    keep: int = Field(default=2, ge=1, le=1000)
    """Checkpoints that are kept; older ones are removed."""
    path: str | None = Field(default=None, min_length=1)
    """Folder, on storage that outlives the job. Default: `checkpoints` in the run's folder."""


class Profiling(Model):
    """What is recorded about where time goes, and of what the model says."""

    events: bool = True
    """Write every event's start and duration (events/step_N/worker_R.jsonl in the run's
    folder)."""
    max_events_mi_b: int = Field(default=4096, ge=1, le=2**30, alias="maxEventsMiB")
    """What they may take, in MiB; those of the oldest steps are removed when they take more."""
    entropy: bool = True
    """Compute the entropy of the policy at each trained token, for the metrics. Without it they have none,
    unless algorithm.entropyCoefficient asks for it."""
    samples_per_step: int = Field(default=32, ge=0, le=256)
    """Responses of each step of which the text is kept, with prompt, reward and weight versions
    (samples.jsonl in the run's folder): the best, the worst, the longest, and others at random, by whole
    groups where they fit. 0 keeps none, for data that may not be written down."""
