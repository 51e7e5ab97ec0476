"""What the state of a job's model takes of a rank's memory. Pure.

Activations and logits are not in it: they depend on the tokens of a micro-batch, and not on the parameters
alone. What tensor groups do not split is counted as if they did: embeddings and an output head whose
vocabulary the ranks of a group do not divide, shared experts that the model's plan leaves whole, and of an
adapter the matrix on the side on which its layer is not split.
"""

from dataclasses import dataclass

from rljob_api import RLJob

_MASTER_BYTES = 4
"""Of a parameter as it is trained, and of its gradient: float32."""
_MOMENT_BYTES = {"float32": 4, "bfloat16": 2}
_FORWARD_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class StateBytes:
    """Bytes of one rank."""

    weights: float
    gradients: float
    moments: float
    reference: float
    """The reference model's weights; 0 without a KL penalty, and with an adapter, without which the model is
    its own reference."""
    teacher: float
    """The teacher's weights; 0 without one that the trainer scores."""
    held: float
    """What a step holds beside it where ranks share samples, and with `compute.holdWeights`: all weights, and
    all gradients or before the updates all of the teacher's weights, of the rank's part of each layer. Where
    nobody has set it, the trainer holds them only if they are small beside the accelerator's memory, and they
    are not counted."""
    in_main_memory: bool
    """Whether all but what is held lies there, and not on the accelerator."""

    @property
    def kept(self) -> float:
        """What lies there all the time, from the first update on."""
        return self.weights + self.gradients + self.moments + self.reference + self.teacher

    @property
    def on_device(self) -> float:
        """What an accelerator must have room for at least."""
        if self.in_main_memory:
            return self.held
        # The rank's part of the gradients is made of all of them.
        return self.kept - self.gradients + max(self.gradients, self.held)


def moments_bytes(job: RLJob) -> int:
    """Bytes of AdamW's two moments for one parameter."""
    return 2 * _MOMENT_BYTES[job.spec.training.optimizer.state_format]


@dataclass(frozen=True)
class ModelSize:
    """Numbers of parameters."""

    model: int
    """Of the model."""
    adapter: int | None = None
    """Of its adapter; None where there is none, and the whole model is trained."""
    teacher: int = 0
    """Of the teacher that the trainer scores; 0 where there is none."""

    @property
    def trained(self) -> int:
        """What has gradients, is updated, and is kept and sent."""
        return self.model if self.adapter is None else self.adapter

    @property
    def frozen(self) -> int:
        """What stays as it is."""
        return 0 if self.adapter is None else self.model


def state_bytes(job: RLJob, size: ModelSize) -> StateBytes:
    """What the state of a model of this size takes of each rank."""
    spec, training = job.spec, job.spec.training
    ranks = training.parallel.shard_group_size or spec.trainer_ranks
    trained, frozen = size.trained / ranks, size.frozen / ranks
    forward = _FORWARD_BYTES[training.model.dtype]
    holds = _shared(job) or training.compute.hold_weights
    referred = training.algorithm.kl is not None and size.adapter is None
    return StateBytes(
        weights=_MASTER_BYTES * trained + forward * frozen,
        gradients=_MASTER_BYTES * trained,
        moments=moments_bytes(job) * trained,
        reference=forward * trained if referred else 0.0,
        teacher=forward * size.teacher / ranks,
        held=held_bytes(job, size) if holds else 0.0,
        in_main_memory=training.parallel.cpu_offload,
    )


def held_bytes(job: RLJob, size: ModelSize) -> float:
    """What holding a model's weights takes of each rank, at most: with its gradients during an update, or
    before it with the teacher's weights, when the policy's may be there already."""
    training = job.spec.training
    forward = _FORWARD_BYTES[training.model.dtype]
    if job.spec.trainer_ranks == 1 and forward == _MASTER_BYTES:
        # Nothing is gathered or reduced.
        return 0.0
    # A teacher is in the format of its passes: a rank that has all of it gathers nothing.
    gathered = job.spec.trainer_ranks > 1 or training.parallel.cpu_offload
    beside = max(_MASTER_BYTES * size.trained, forward * size.teacher if gathered else 0)
    return (forward * (size.trained + size.frozen) + beside) / training.parallel.tensor_parallel


def ways_to_save(job: RLJob, only_held: bool) -> list[str]:
    """What a person could set so that the state takes less of an accelerator; with `only_held` so that less
    is held during an update. Each of them changes something in this job."""
    spec, parallel = job.spec, job.spec.training.parallel
    found = []
    if not only_held:
        found.append("raise pools.trainer")
        if parallel.shard_group_size is not None and parallel.shard_group_size < spec.trainer_ranks:
            found.append("raise parallel.shardGroupSize")
        if job.spec.training.optimizer.state_format == "float32":
            found.append("set optimizer.stateFormat: bfloat16")
        if not parallel.cpu_offload:
            found.append("set parallel.cpuOffload: true")
    if _shared(job):
        found.append(
            "let no ranks share samples (parallel.contextParallel: {none: {}}, with "
            "parallel.maxTokensPerMicroBatch for the longest sample)"
        )
    if spec.training.compute.hold_weights:
        found.append("set compute.holdWeights: false")
    return found


def _shared(job: RLJob) -> bool:
    return job.spec.data_ranks > 1 and job.spec.context_parallel.none is None
