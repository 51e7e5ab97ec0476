"""What goes with each kind of accelerator, and what does not."""

from typing import TYPE_CHECKING

from rljob_api.base import Rule, value_at

if TYPE_CHECKING:
    from rljob_api.job import Spec

CPU_HEAD_DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Head widths of vLLM's attention kernels for CPUs (0.32)."""
_CPU_HEAD_DIMS = ", ".join(map(str, CPU_HEAD_DIMS))

ASCEND_CHIPS: dict[str, tuple[int, ...]] = {
    "module": (1, 2, 4, 8),
    "half": (1, 2, 4),
    "card": (1, 2),
    "card-910b-2": (1, 2),
    "module-910b-8": tuple(range(1, 9)),
    "module-910b-16": (*range(1, 9), 10, 12, 14, 16),
}
"""Chips that one pod may ask for, by the `accelerator-type` of its node (MindCluster's affinity rules: a pod
that needs less than a node stays in one ring of four; one that needs more than half of 16 has as many in each
half)."""

_CHIPS = "; ".join(f"{kind}: {', '.join(map(str, counts))}" for kind, counts in ASCEND_CHIPS.items())

_ENGINE = "self.training.rollout.engine"
_SHARED = "pools.fastRollout.enginesPerAccelerator"


def _one_on_cpus(pool: str) -> Rule:
    path = f"pools.{pool}.acceleratorsPerWorker"

    def holds(spec: "Spec") -> bool:
        return spec.accelerator != "cpu" or value_at(spec, path) == 1

    return Rule(
        f"{path} must be 1 with accelerator: cpu",
        f"self.accelerator != 'cpu' || self.{path} == 1",
        holds,
        (path,),
    )


def _transport_needs(transport: str, accelerator: str) -> Rule:
    sync = "training.async.weightSync"
    path = f"{sync}.transport"

    def holds(spec: "Spec") -> bool:
        return value_at(spec, path) != transport or spec.accelerator == accelerator

    return Rule(
        f"{path}: {transport} needs accelerator: {accelerator}",
        f"!has(self.{sync}) || self.{path} != '{transport}' || self.accelerator == '{accelerator}'",
        holds,
        (path, "accelerator"),
    )


def _head_dim_fits(spec: "Spec") -> bool:
    training = spec.training
    on_cpu = spec.accelerator == "cpu" and training.rollout.engine.vllm is not None
    return not on_cpu or training.model.random is None or training.model.random.head_dim in CPU_HEAD_DIMS


def _chips_fit(pool: str) -> Rule:
    path = f"pools.{pool}.acceleratorsPerWorker"

    def holds(spec: "Spec") -> bool:
        kind = spec.accelerator_type
        return kind is None or value_at(spec, path) in ASCEND_CHIPS[kind]

    table = {kind: list(counts) for kind, counts in ASCEND_CHIPS.items()}
    return Rule(
        f"{path} must fit acceleratorType ({_CHIPS})",
        f"!has(self.acceleratorType) || self.{path} in {table}[self.acceleratorType]",
        holds,
        (path, "acceleratorType"),
    )


def _not_on_cpus(path: str) -> Rule:
    return Rule(
        f"{path} is for accelerator: nvidia and ascend: CPUs compute in main memory",
        f"self.accelerator != 'cpu' || !self.{path}",
        lambda spec: spec.accelerator != "cpu" or not value_at(spec, path),
        (path, "accelerator"),
    )


ACCELERATOR_RULES: tuple[Rule, ...] = (
    *(_one_on_cpus(pool) for pool in ("trainer", "fastRollout", "heavyRollout")),
    Rule(
        message="training.rollout.engine.torch needs accelerator: cpu, for it computes on CPUs",
        cel=f"!has({_ENGINE}) || !has({_ENGINE}.torch) || self.accelerator == 'cpu'",
        holds=lambda self: self.training.rollout.engine.torch is None or self.accelerator == "cpu",
        fields=("training.rollout.engine.torch", "accelerator"),
    ),
    Rule(
        message="training.rollout.engine.vllm.speculation is for accelerator: nvidia and cpu, where"
        " vLLM's check of drafts is known to keep the distribution",
        cel=f"self.accelerator != 'ascend' || !has({_ENGINE}) || !has({_ENGINE}.vllm)"
        f" || !has({_ENGINE}.vllm.speculation)",
        holds=lambda self: (
            self.accelerator != "ascend"
            or self.training.rollout.engine.vllm is None
            or self.training.rollout.engine.vllm.speculation is None
        ),
        fields=("training.rollout.engine.vllm.speculation", "accelerator"),
    ),
    Rule(
        message=f"{_SHARED} above 1 needs accelerator: nvidia and acceleratorsPerWorker: 1",
        cel=f"self.{_SHARED} == 1 || (self.accelerator == 'nvidia'"
        " && self.pools.fastRollout.acceleratorsPerWorker == 1)",
        holds=lambda self: (
            self.pools.fast_rollout.engines_per_accelerator == 1
            or (self.accelerator == "nvidia" and self.pools.fast_rollout.accelerators_per_worker == 1)
        ),
        fields=(_SHARED, "accelerator", "pools.fastRollout.acceleratorsPerWorker"),
    ),
    Rule(
        message=f"training.async.weightSync.transport must not be nccl with {_SHARED} above 1: an"
        " accelerator has one member in a group of NCCL",
        cel=f"self.{_SHARED} == 1 || !has(self.training.async.weightSync)"
        " || self.training.async.weightSync.transport != 'nccl'",
        holds=lambda self: (
            self.pools.fast_rollout.engines_per_accelerator == 1
            or self.training.async_.weight_sync.transport != "nccl"
        ),
        fields=("training.async.weightSync.transport",),
    ),
    _transport_needs("nccl", "nvidia"),
    _transport_needs("hccl", "ascend"),
    Rule(
        message=f"training.model.random.headDim must be one of {_CPU_HEAD_DIMS} for vLLM on CPUs",
        # An engine that is not set is vllm.
        cel=f"self.accelerator != 'cpu' || (has({_ENGINE}) && !has({_ENGINE}.vllm))"
        " || !has(self.training.model.random)"
        f" || self.training.model.random.headDim in {list(CPU_HEAD_DIMS)}",
        holds=_head_dim_fits,
        fields=("training.model.random.headDim",),
    ),
    Rule(
        message="acceleratorType is for accelerator: ascend",
        cel="!has(self.acceleratorType) || self.accelerator == 'ascend'",
        holds=lambda self: self.accelerator_type is None or self.accelerator == "ascend",
        fields=("acceleratorType", "accelerator"),
    ),
    Rule(
        message="resourceName is for accelerator: nvidia and ascend",
        cel="!has(self.resourceName) || self.accelerator != 'cpu'",
        holds=lambda self: self.resource_name is None or self.accelerator != "cpu",
        fields=("resourceName", "accelerator"),
    ),
    *(_chips_fit(pool) for pool in ("trainer", "fastRollout", "heavyRollout")),
    Rule(
        message="training.adapter is for accelerator: nvidia and cpu",
        cel="!has(self.training.adapter) || self.accelerator != 'ascend'",
        holds=lambda self: self.training.adapter is None or self.accelerator != "ascend",
        fields=("training.adapter", "accelerator"),
    ),
    Rule(
        message="training.model.dtype must be bfloat16 with training.adapter and accelerator: nvidia,"
        " where vLLM multiplies adapters in 16 bits",
        cel="!has(self.training.adapter) || self.accelerator != 'nvidia'"
        " || self.training.model.dtype == 'bfloat16'",
        holds=lambda self: (
            self.training.adapter is None
            or self.accelerator != "nvidia"
            or self.training.model.dtype == "bfloat16"
        ),
        fields=("training.model.dtype", "training.adapter", "accelerator"),
    ),
    _not_on_cpus("training.model.offloadActivations"),
    _not_on_cpus("training.parallel.cpuOffload"),
)
"""What of a spec an accelerator does not go with."""
