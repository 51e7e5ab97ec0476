"""The RLJob: its envelope, spec and status."""

from typing import ClassVar, Literal

from pydantic import Field

from rljob_api.accelerators import ACCELERATOR_RULES
from rljob_api.base import Model, Rule, Transition, form, value_at
from rljob_api.context_parallel import DEGREES, ContextParallel, SharedByNeed, SharedByNone
from rljob_api.kubernetes import ImagePullPolicy, ManagedBy, RunPolicy, Storage
from rljob_api.pools import Pools
from rljob_api.status import Status
from rljob_api.training import Training

GROUP = "rljob.dev"
VERSION = "v1alpha1"
KIND = "RLJob"


class Metadata(Model):
    """The part of ObjectMeta that a manifest for one machine uses."""

    model_config = {**Model.model_config, "extra": "ignore"}

    name: str = Field(
        min_length=1,
        # KubeRay takes RayCluster names of at most 53: there is room for -ATTEMPT.
        max_length=40,
        pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$",
        json_schema_extra=form("a name of a-z, 0-9 and -, with a letter first and no - at the end"),
    )
    """Name of the job: a DNS label; objects made for the job add their suffixes to it."""
    namespace: str = "default"
    """Namespace in a cluster; unused on one machine."""
    labels: dict[str, str] = Field(default_factory=dict)
    """In a cluster Kueue queues the job that has `kueue.x-k8s.io/queue-name`, with the priority that
    `kueue.x-k8s.io/priority-class` names; unused on one machine."""


def _probe_needs(pool: str) -> Rule:
    path = f"pools.{pool}.replicas"

    def holds(spec: "Spec") -> bool:
        routing = spec.training.rollout.routing
        if routing is None or routing.probe is None:
            return True
        return value_at(spec, path) > 0 or value_at(spec, f"pools.{pool}.maxReplicas") is not None

    routing = "self.training.rollout.routing"
    return Rule(
        f"{path} must be 1 or more with training.rollout.routing.probe, which needs both pools; "
        "a pool that is to be 0 for a while needs maxReplicas",
        f"!has({routing}) || !has({routing}.probe) || self.{path} > 0 || has(self.pools.{pool}.maxReplicas)",
        holds,
        (path,),
    )


def _engines_left(pool: str) -> Rule:
    path, size = f"training.evaluation.engines.{pool}", f"pools.{pool}"
    largest = f"(has(self.{size}.maxReplicas) ? self.{size}.maxReplicas : self.{size}.replicas)"

    def holds(spec: "Spec") -> bool:
        wanted = value_at(spec, path)
        most = value_at(spec, f"{size}.maxReplicas") or value_at(spec, f"{size}.replicas")
        return wanted is None or wanted < most

    has = " || ".join(f"!has(self.{each})" for each in ("training.evaluation", path.rpartition(".")[0], path))
    return Rule(
        f"{path} must be below {size}.replicas, or its maxReplicas: an engine has to be left for training",
        f"{has} || self.{path} < {largest}",
        holds,
        (path, f"{size}.replicas"),
    )


def _steps_hold_requests() -> Rule:
    path, most = "training.rollout.engine.vllm.maxBatchedTokens", "training.rollout.maxRunningRequests"
    shared, heavy = "pools.fastRollout.enginesPerAccelerator", "pools.heavyRollout"

    def holds(spec: "Spec") -> bool:
        tokens = value_at(spec, path)
        return tokens is None or tokens * _sharing(spec) >= value_at(spec, most)

    engine = "training.rollout.engine"
    unset = " || ".join(f"!has(self.{each})" for each in (engine, f"{engine}.vllm", path))
    return Rule(
        f"{path} must not be below {most}, of which each of {shared} engines runs its part: vLLM makes no"
        " engine that runs more requests than its steps have tokens",
        f"{unset} || self.{path} * (self.{heavy}.replicas > 0 || has(self.{heavy}.maxReplicas)"
        f" ? 1 : self.{shared}) >= self.{most}",
        holds,
        (path, most),
    )


def _sharing(spec: "Spec") -> int:
    """The fewest vLLM engines that share the maxRunningRequests of a rollout worker."""
    heavy = spec.pools.heavy_rollout
    return 1 if heavy.replicas or heavy.max_replicas else spec.pools.fast_rollout.engines_per_accelerator


def _shard_groups_fit() -> Rule:
    size = "training.parallel.shardGroupSize"
    replicas, each = "pools.trainer.replicas", "pools.trainer.acceleratorsPerWorker"

    def holds(spec: "Spec") -> bool:
        return spec.trainer_ranks % (spec.training.parallel.shard_group_size or 1) == 0

    return Rule(
        f"{size} must divide the trainer's ranks ({replicas} * {each})",
        f"!has(self.{size}) || self.{replicas} * self.{each} % self.{size} == 0",
        holds,
        (size, replicas, each),
    )


def _tensor_groups_fit() -> Rule:
    size = "training.parallel.tensorParallel"
    replicas, each = "pools.trainer.replicas", "pools.trainer.acceleratorsPerWorker"
    return Rule(
        f"{size} must divide the trainer's ranks ({replicas} * {each})",
        f"self.{replicas} * self.{each} % self.{size} == 0",
        lambda spec: spec.trainer_ranks % spec.training.parallel.tensor_parallel == 0,
        (size, replicas, each),
    )


_RANKS = "self.pools.trainer.replicas * self.pools.trainer.acceleratorsPerWorker"
_CAP = "self.training.parallel.maxTokensPerMicroBatch"
_LONGEST = "(self.training.data.maxPromptTokens + self.training.rollout.maxResponseTokens)"
_CONTEXT = "self.training.parallel.contextParallel"
_TENSOR = "self.training.parallel.tensorParallel"


def _longest_fits(spec: "Spec") -> bool:
    cap, longest = spec.training.parallel.max_tokens_per_micro_batch, spec.training.longest_sample_tokens
    # A shared sample is padded to a multiple of twice the ranks that share it.
    return longest <= cap or longest <= cap // 2 * 2 * spec.context_parallel.largest_degree(spec.data_ranks)


def _degree_fits(spec: "Spec") -> bool:
    given = spec.training.parallel.context_parallel
    return given is None or given.fixed is None or given.fixed.degree <= spec.data_ranks


_WHILE_SUSPENDED = "can change only while the job is suspended (spec.suspend: true)"


def _fixed(path: str, optional: bool = False) -> Transition:
    """The field at `path` keeps its value while the job is not suspended."""
    same = f"self.{path} == oldSelf.{path}"
    if optional:
        # In CEL a field that is not set cannot be compared, only looked for.
        same = f"has(self.{path}) == has(oldSelf.{path}) && (!has(self.{path}) || {same})"
    return Transition(f"{path} {_WHILE_SUSPENDED}", f"oldSelf.suspend || ({same})", path)


class Spec(Model):
    """What a user asks for."""

    suspend: bool = False
    """The job holds no pods while this is true. Set on a running job, a checkpoint is written first, and the
    job goes on from there when this is false again."""
    managed_by: ManagedBy = "rljob.dev/operator"
    """The controller that is responsible for the job; all others leave it alone. Cannot change."""
    image: str | None = Field(default=None, min_length=1, max_length=512)
    """Container image of all pods; it holds the runtime. Default in a cluster: the operator's for the
    accelerator (`--runtime-image`); where there is none, every template must name one. Unused on one
    machine."""
    image_pull_policy: ImagePullPolicy = "IfNotPresent"
    """When the image is fetched."""
    ray_version: str = Field(
        default="2.60.0",
        max_length=32,
        pattern=r"^[0-9]+\.[0-9]+\.[0-9]+",
        json_schema_extra=form("a whole version, such as 2.60.0"),
    )
    """Version of Ray in the image."""
    storage: Storage = Storage()
    """Where the run folder lies, in a cluster."""
    run_policy: RunPolicy = RunPolicy()
    """When the job is given up, started again, and removed, in a cluster."""
    accelerator: Literal["nvidia", "ascend", "cpu"] = "nvidia"
    """Kind of device of all three pools: decides resource names, visible-device variables and the
    communication backend."""
    accelerator_type: (
        Literal["module", "half", "card", "card-910b-2", "module-910b-8", "module-910b-16"] | None
    ) = None
    """Node label `accelerator-type` of MindCluster, with `accelerator: ascend`: pods go to such nodes only,
    and their number of chips is checked. Default: any node that has the resource."""
    resource_name: str | None = Field(
        default=None,
        max_length=253,
        pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
        json_schema_extra=form("a resource with its vendor, such as nvidia.com/gpu"),
    )
    """Kubernetes resource of one accelerator, where the cluster's device plugin names it otherwise. Default:
    `nvidia.com/gpu` for nvidia, `huawei.com/Ascend910` for ascend."""
    pools: Pools = Pools()
    """The pods: how many train, how many generate responses, and what each of them gets."""
    training: Training
    """The training itself: model, prompts, reward, algorithm, schedule."""

    rules: ClassVar[tuple[Rule, ...]] = (
        *ACCELERATOR_RULES,
        *(_probe_needs(pool) for pool in ("fastRollout", "heavyRollout")),
        *(_engines_left(pool) for pool in ("fastRollout", "heavyRollout")),
        _steps_hold_requests(),
        _shard_groups_fit(),
        _tensor_groups_fit(),
        Rule(
            message="training.parallel.maxTokensPerMicroBatch must hold the longest sample"
            " (training.data.maxPromptTokens + training.rollout.maxResponseTokens), or the part of it that a"
            " rank gets where ranks share it: by default the largest power of two of the trainer's ranks"
            " (pools.trainer.replicas * pools.trainer.acceleratorsPerWorker, divided by"
            " training.parallel.tensorParallel) do, else as many as training.parallel.contextParallel lets",
            cel=f"{_LONGEST} <= {_CAP} || {_LONGEST} <= ({_CAP} - {_CAP} % 2) * (has({_CONTEXT})"
            f" && !has({_CONTEXT}.hybrid) ? (has({_CONTEXT}.fixed) ? {_CONTEXT}.fixed.degree : 1)"
            # One, also where not even that many groups are there: another rule says so.
            f" : {[*reversed(DEGREES), 1]}.filter(d, d == 1 || (d * {_TENSOR} <= {_RANKS}"
            f" && (!has({_CONTEXT}) || !has({_CONTEXT}.hybrid.largestDegree)"
            f" || d <= {_CONTEXT}.hybrid.largestDegree)))[0])",
            holds=_longest_fits,
            fields=(
                "training.parallel.maxTokensPerMicroBatch",
                "training.data.maxPromptTokens",
                "training.rollout.maxResponseTokens",
            ),
        ),
        Rule(
            message="training.parallel.contextParallel.fixed.degree must not be above the trainer's ranks"
            " (pools.trainer.replicas * pools.trainer.acceleratorsPerWorker, divided by"
            " training.parallel.tensorParallel)",
            cel=f"!has({_CONTEXT}) || !has({_CONTEXT}.fixed)"
            f" || {_CONTEXT}.fixed.degree * {_TENSOR} <= {_RANKS}",
            holds=_degree_fits,
            fields=(
                "training.parallel.contextParallel.fixed.degree",
                "pools.trainer.replicas",
                "pools.trainer.acceleratorsPerWorker",
                "training.parallel.tensorParallel",
            ),
        ),
    )

    transitions: ClassVar[tuple[Transition, ...]] = (
        Transition("managedBy cannot change", "self.managedBy == oldSelf.managedBy", "managedBy"),
        *(_fixed(path) for path in ("accelerator", "imagePullPolicy", "rayVersion", "storage", "training")),
        *(_fixed(path, optional=True) for path in ("image", "acceleratorType", "resourceName")),
        _fixed("pools.head.resources"),
        *(
            _fixed(f"pools.{pool}.{field}")
            for pool in ("trainer", "fastRollout", "heavyRollout")
            for field in ("acceleratorsPerWorker", "cpusPerWorker", "resources")
        ),
        _fixed("pools.fastRollout.enginesPerAccelerator"),
        *(
            _fixed(f"pools.{pool}.{field}", optional=True)
            for pool in ("fastRollout", "heavyRollout")
            for field in ("minReplicas", "maxReplicas")
        ),
        *(
            _fixed(f"pools.{pool}.sharedMemory", optional=True)
            for pool in ("head", "trainer", "fastRollout", "heavyRollout")
        ),
    )

    @property
    def trainer_ranks(self) -> int:
        """Processes of the trainer: one for each accelerator, on CPUs one for each worker."""
        return self.pools.trainer.replicas * self.pools.trainer.accelerators_per_worker

    @property
    def data_ranks(self) -> int:
        """What batches are split over: tensor groups, each of `tensorParallel` ranks. 1 at least, also where
        there are fewer ranks than that."""
        return max(1, self.trainer_ranks // self.training.parallel.tensor_parallel)

    @property
    def context_parallel(self) -> ContextParallel:
        """training.parallel.contextParallel, or its default."""
        parallel = self.training.parallel
        if parallel.context_parallel is not None:
            return parallel.context_parallel
        if self.training.longest_sample_tokens <= parallel.max_tokens_per_micro_batch:
            return ContextParallel(none=SharedByNone())
        return ContextParallel(hybrid=SharedByNeed())


class RLJob(Model):
    """A reinforcement-learning job."""

    api_version: Literal["rljob.dev/v1alpha1"] = "rljob.dev/v1alpha1"
    """Always rljob.dev/v1alpha1."""
    kind: Literal["RLJob"] = "RLJob"
    """Always RLJob."""
    metadata: Metadata
    """Name of the job."""
    spec: Spec
    """What is asked for."""
    status: Status | None = None
    """What is; written by the operator and the runtime."""
