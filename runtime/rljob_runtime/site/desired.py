"""What the RLJob asks of a running job: the fields that may change while it runs.

Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from rljob_api import RLJob


@dataclass(frozen=True)
class DesiredState:
    """The newest state of the fields that a running job follows."""

    generation: int
    """metadata.generation that it stands for; 0 on one machine."""
    trainer: int
    """Workers that the trainer's pool is to have."""
    fast: int
    """Workers that the fast rollout pool is to have."""
    heavy: int
    """Workers that the heavy rollout pool is to have."""
    suspend: bool = False
    deleted: bool = False
    """The RLJob is gone, or about to go."""
    doomed: frozenset[str] = frozenset()
    """Pods that the operator has begun to remove; none of them comes back."""
    operator_at: int = 0
    """The newest generation that the operator has acted on."""
    trainer_resize: int | None = None
    """Workers that the operator is about to make the trainer's pool have; None: it is resizing no trainer."""
    resize_refused: bool = False
    """The operator may not change the trainer's pool now, and tries again."""
    refused: bool = False
    """The operator says that it cannot do what the generation that it has acted on asks for."""
    # Not compared: every write of the status gives another version, and asks nothing new.
    version: str | None = field(default=None, compare=False)
    """The object's resourceVersion; None on one machine."""

    @property
    def settled(self) -> bool:
        """Whether the operator begins no more removal that an older generation asked for."""
        return self.operator_at >= self.generation

    @classmethod
    def of(cls, job: RLJob) -> "DesiredState":
        """What a manifest asks for, on one machine."""
        pools = job.spec.pools
        return cls(0, pools.trainer.replicas, pools.fast_rollout.replicas, pools.heavy_rollout.replicas)

    def workers(self, pool: str) -> int:
        """Workers that `pool` ("fast" or "heavy") is to have."""
        return self.fast if pool == "fast" else self.heavy


# What is read of the object. msgspec ignores all other fields, and copies an empty default for each instance.
class _Pool(msgspec.Struct):
    replicas: int


class _Pools(msgspec.Struct, rename="camel"):
    trainer: _Pool
    fast_rollout: _Pool
    heavy_rollout: _Pool


class _Spec(msgspec.Struct):
    pools: _Pools
    suspend: bool = False


class _ScaleDown(msgspec.Struct):
    pool: str
    replicas: int
    victims: list[str] = []
    refused: bool = False


class _Condition(msgspec.Struct):
    type: str
    status: str


class _Status(msgspec.Struct, rename="camel"):
    observed_generation: int = 0
    scale_downs: list[_ScaleDown] = []
    conditions: list[_Condition] = []


class _Metadata(msgspec.Struct, rename="camel"):
    generation: int
    resource_version: str | None = None
    deletion_timestamp: str | None = None


class _Object(msgspec.Struct):
    metadata: _Metadata
    spec: _Spec
    status: _Status = msgspec.field(default_factory=_Status)


def desired_state_of(found: Mapping[str, Any]) -> DesiredState:
    """What an RLJob asks for, as the API server returns it. Raises `ValueError` where it is not understood.

    Only what a running job follows is read, so that a newer version of the definition does no harm.
    """
    try:
        job = msgspec.convert(found, _Object)
    except msgspec.ValidationError as error:
        raise ValueError(f"an RLJob that this runtime does not understand: {error}") from None
    pools, status = job.spec.pools, job.status
    resize = next((each for each in status.scale_downs if each.pool == "trainer"), None)
    return DesiredState(
        generation=job.metadata.generation,
        trainer=pools.trainer.replicas,
        fast=pools.fast_rollout.replicas,
        heavy=pools.heavy_rollout.replicas,
        suspend=job.spec.suspend,
        deleted=job.metadata.deletion_timestamp is not None,
        doomed=frozenset(victim for each in status.scale_downs for victim in each.victims),
        operator_at=status.observed_generation,
        trainer_resize=resize.replicas if resize is not None else None,
        resize_refused=resize is not None and resize.refused,
        refused=any((each.type, each.status) == ("Accepted", "False") for each in status.conditions),
        version=job.metadata.resource_version,
    )
