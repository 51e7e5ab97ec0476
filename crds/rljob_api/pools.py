"""The three worker pools of an RLJob."""

from typing import ClassVar

from pydantic import Field

from rljob_api.base import Model, Rule, form
from rljob_api.kubernetes import QUANTITY, QUANTITY_LENGTH, FreeForm, Resources

MOST_WORKERS = 4096
"""Most workers of a pool."""


class PodShape(Model):
    """What a pod of a cluster gets."""

    resources: Resources = Resources()
    """CPU and memory of the pod's main container. Where nothing is said of memory, its limit is 256Gi for
    each accelerator, 8Gi on CPUs, and 4Gi in the head."""
    shared_memory: str | None = Field(
        default=None,
        max_length=QUANTITY_LENGTH,
        pattern=QUANTITY,
        json_schema_extra=form("a quantity such as 512Mi or 16Gi"),
    )
    """Size of /dev/shm, such as 16Gi. What lies there counts towards the memory limit. Default: as large as
    that."""
    template: FreeForm = Field(default_factory=dict)
    """A PodTemplateSpec that is merged over the one made for the job: node selectors, tolerations, volumes,
    environment, image pull secrets, priority class. Lists whose items have names are merged by name. The main
    container is named `ray-head` or `ray-worker`, the driver's `driver`."""


class Head(PodShape):
    """The pod that holds Ray's head and the driver."""


class Pool(PodShape):
    """A set of equal workers; each worker is one pod in a cluster and one process on one machine."""

    replicas: int = Field(default=1, ge=0, le=MOST_WORKERS)
    """Number of workers."""
    accelerators_per_worker: int = Field(default=1, ge=1, le=16)
    """Accelerators of one worker, in devices. With `accelerator: cpu` a worker has none: leave it at 1."""
    cpus_per_worker: int = Field(default=1, ge=1, le=512)
    """CPUs of a worker, which its processes share evenly: each computes with as many threads as its share has
    CPUs, with one at least. With `accelerator: cpu` a worker is one process; else it has one for each of its
    accelerators, beside which these are the CPUs that it asks for."""

    @property
    def processes(self) -> int:
        """Those of a worker that share its CPUs: ranks of the trainer, parts of an engine."""
        return self.accelerators_per_worker

    @property
    def threads(self) -> int:
        """Of each of these processes."""
        return max(1, self.cpus_per_worker // self.processes)


class TrainerPool(Pool):
    """The pool that trains. One process for each accelerator (one for each worker on CPUs)."""

    replicas: int = Field(default=1, ge=1, le=MOST_WORKERS)
    """Number of trainer workers."""


class RolloutPool(Pool):
    """A pool of inference engines, one engine for each worker."""

    min_replicas: int | None = Field(default=None, ge=0, le=MOST_WORKERS)
    """Fewest workers that the pool may be scaled to. Default: 0."""
    max_replicas: int | None = Field(default=None, ge=1, le=MOST_WORKERS)
    """Most workers that the pool may be scaled to. Default: 4096."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="replicas must be between minReplicas and maxReplicas",
            cel="(!has(self.minReplicas) || self.minReplicas <= self.replicas)"
            " && (!has(self.maxReplicas) || self.replicas <= self.maxReplicas)",
            holds=lambda self: (
                (self.min_replicas is None or self.min_replicas <= self.replicas)
                and (self.max_replicas is None or self.replicas <= self.max_replicas)
            ),
            fields=("replicas", "minReplicas", "maxReplicas"),
        ),
    )


class FastRolloutPool(RolloutPool):
    """The pool of inference engines that every job has, unless its heavy pool generates all."""

    engines_per_accelerator: int = Field(default=1, ge=1, le=8)
    """vLLM engines that are one to the job, and share a worker's accelerator, its gpuMemoryUtilization and
    maxRunningRequests. Meant for a model so small that the one CPU on which an engine decides its steps is
    slower than the accelerator; but where that was measured, with 0.6 B on an H200, two gave fewer tokens
    than one (0.92 x with 512 requests, 0.65 x with 64). Measure before you raise it. Each needs a CPU, a copy
    of the model, and 1 to 2 GiB of the accelerator beyond its share."""

    @property
    def processes(self) -> int:
        """Those of a worker that share its CPUs: parts of all its engines."""
        return self.accelerators_per_worker * self.engines_per_accelerator


class HeavyRolloutPool(RolloutPool):
    """A second pool of inference engines, for the few responses that are much longer than the others. A job
    has none unless it says so."""

    replicas: int = Field(default=0, ge=0, le=MOST_WORKERS)
    """Number of workers."""


class Pools(Model):
    """The head pod, the workers that train, and the workers that generate responses."""

    head: Head = Head()
    """The pod of Ray's head and the driver; only in a cluster."""
    trainer: TrainerPool = TrainerPool()
    """Workers that hold and update the policy."""
    fast_rollout: FastRolloutPool = FastRolloutPool()
    """Inference engines; without a heavy pool they generate all responses."""
    heavy_rollout: HeavyRolloutPool = HeavyRolloutPool()
    """Inference engines for the few responses that are much longer than the others."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="fastRollout.replicas and heavyRollout.replicas must not both be 0: nobody generates",
            cel="self.fastRollout.replicas + self.heavyRollout.replicas > 0",
            holds=lambda self: self.fast_rollout.replicas + self.heavy_rollout.replicas > 0,
            fields=("fastRollout.replicas", "heavyRollout.replicas"),
        ),
    )
