"""The RLJob: its envelope, spec and status."""

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


class Spec(Model):
    """What a user asks for."""

    accelerator: Literal["nvidia", "ascend", "cpu"] = "nvidia"
    """Kind of device of all three pools: its resource name, visible-device variables and communication backend."""
    pools: Pools = Pools()
    """Who trains and who generates."""
    training: Training
    """What is learned."""

    rules: ClassVar[tuple[Rule, ...]] = (
        *(
            Rule(
                message=f"pools.{pool}.acceleratorsPerWorker must be 1 with accelerator: cpu",
                cel=f"self.accelerator != 'cpu' || self.pools.{pool}.acceleratorsPerWorker == 1",
                holds=lambda self, pool=pool: (
                    self.accelerator != "cpu" or value_at(self, f"pools.{pool}.acceleratorsPerWorker") == 1
                ),
                fields=(f"pools.{pool}.acceleratorsPerWorker",),
            )
            for pool in ("trainer", "fastRollout", "heavyRollout")
        ),
        *(
            Rule(
                message=f"pools.{pool}.acceleratorsPerWorker must be 1 with the torch engine",
                cel=f"!has(self.training.rollout.engine.torch) || self.pools.{pool}.acceleratorsPerWorker == 1",
                holds=lambda self, pool=pool: (
                    self.training.rollout.engine.torch is None
                    or value_at(self, f"pools.{pool}.acceleratorsPerWorker") == 1
                ),
                fields=(f"pools.{pool}.acceleratorsPerWorker",),
            )
            for pool in ("fastRollout", "heavyRollout")
        ),
        *(
            Rule(
                message=f"training.async.weightSync.transport: {transport} needs accelerator: {accelerator}",
                cel=f"self.training.async.weightSync.transport != '{transport}'"
                f" || self.accelerator == '{accelerator}'",
                holds=lambda self, transport=transport, accelerator=accelerator: (
                    self.training.async_.weight_sync.transport != transport or self.accelerator == accelerator
                ),
                fields=("training.async.weightSync.transport", "accelerator"),
            )
            for transport, accelerator in (("nccl", "nvidia"), ("hccl", "ascend"))
        ),
        Rule(
            message=f"training.model.random.headDim must be one of {_CPU_HEAD_DIMS} for vLLM on CPUs",
            cel="self.accelerator != 'cpu' || !has(self.training.rollout.engine.vllm)"
            f" || !has(self.training.model.random) || self.training.model.random.headDim in {list(CPU_HEAD_DIMS)}",
            holds=lambda self: (
                self.accelerator != "cpu"
                or self.training.rollout.engine.vllm is None
                or self.training.model.random is None
                or self.training.model.random.head_dim in CPU_HEAD_DIMS
            ),
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
