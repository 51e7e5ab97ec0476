"""The RLJob: its envelope, spec and status."""

from collections.abc import Callable
from typing import ClassVar, Literal

from pydantic import Field

from rljob_api.base import Model, Rule, value_at
from rljob_api.pools import Pools
from rljob_api.status import Status
from rljob_api.training import Training

GROUP = "rljob.dev"
VERSION = "v1alpha1"
KIND = "RLJob"

CPU_HEAD_DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Head widths of vLLM's attention kernels for CPUs (0.32)."""
_CPU_HEAD_DIMS = ", ".join(map(str, CPU_HEAD_DIMS))


class Metadata(Model):
    """The part of ObjectMeta that a manifest for one machine uses."""

    model_config = {**Model.model_config, "extra": "ignore"}

    name: str = Field(min_length=1, max_length=40, pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
    """Name of the job: a DNS label; objects made for the job add their suffixes to it."""
    namespace: str = "default"
    """Namespace in a cluster; unused on one machine."""


def _one_accelerator(pool: str, with_what: str, cel: str, applies: Callable[["Spec"], bool]) -> Rule:
    """`pools.POOL.acceleratorsPerWorker` is 1 where `applies` holds, which `cel` states too."""
    path = f"pools.{pool}.acceleratorsPerWorker"

    def holds(spec: "Spec") -> bool:
        return not applies(spec) or value_at(spec, path) == 1

    return Rule(f"{path} must be 1 with {with_what}", f"!({cel}) || self.{path} == 1", holds, (path,))


def _transport_needs(transport: str, accelerator: str) -> Rule:
    path = "training.async.weightSync.transport"

    def holds(spec: "Spec") -> bool:
        return value_at(spec, path) != transport or spec.accelerator == accelerator

    return Rule(
        f"{path}: {transport} needs accelerator: {accelerator}",
        f"self.{path} != '{transport}' || self.accelerator == '{accelerator}'",
        holds,
        (path, "accelerator"),
    )


def _head_dim_fits(spec: "Spec") -> bool:
    training = spec.training
    on_cpu = spec.accelerator == "cpu" and training.rollout.engine.vllm is not None
    return not on_cpu or training.model.random is None or training.model.random.head_dim in CPU_HEAD_DIMS


class Spec(Model):
    """What a user asks for."""

    accelerator: Literal["nvidia", "ascend", "cpu"] = "nvidia"
    """Kind of device of all three pools: decides resource names, visible-device variables and the
    communication backend."""
    pools: Pools = Pools()
    """Who trains and who generates."""
    training: Training
    """What is learned."""

    rules: ClassVar[tuple[Rule, ...]] = (
        *(
            _one_accelerator(
                pool, "accelerator: cpu", "self.accelerator == 'cpu'", lambda spec: spec.accelerator == "cpu"
            )
            for pool in ("trainer", "fastRollout", "heavyRollout")
        ),
        *(
            _one_accelerator(
                pool,
                "the torch engine",
                "has(self.training.rollout.engine.torch)",
                lambda spec: spec.training.rollout.engine.torch is not None,
            )
            for pool in ("fastRollout", "heavyRollout")
        ),
        _transport_needs("nccl", "nvidia"),
        _transport_needs("hccl", "ascend"),
        Rule(
            message=f"training.model.random.headDim must be one of {_CPU_HEAD_DIMS} for vLLM on CPUs",
            cel="self.accelerator != 'cpu' || !has(self.training.rollout.engine.vllm)"
            " || !has(self.training.model.random)"
            f" || self.training.model.random.headDim in {list(CPU_HEAD_DIMS)}",
            holds=_head_dim_fits,
            fields=("training.model.random.headDim",),
        ),
    )


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
