"""The parts of a Kubernetes pod that an RLJob names itself, and those that it passes on."""

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from rljob_api.base import Model, form

QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi|E|Ei)?$"
"""Form of an amount of a resource."""
QUANTITY_LENGTH = 32
"""Most characters of one. Kubernetes' own largest amount has 19 digits."""


class _IsQuantity:
    """Marks the values of a mapping as quantities, for the CRD."""


def _quantities(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    found = {name: _quantity(amount) for name, amount in value.items()}
    broken = [(str(name), value[name]) for name, text in found.items() if text is None]
    if broken:
        raise PydanticCustomError("quantities", "not all are quantities", {"broken": broken})
    return found


def _quantity(amount: Any) -> str | None:
    """The amount as text; None where it is no quantity."""
    if isinstance(amount, int) and not isinstance(amount, bool) and 0 <= amount < 10**QUANTITY_LENGTH:
        return str(amount)
    fits = isinstance(amount, str) and len(amount) <= QUANTITY_LENGTH and re.fullmatch(QUANTITY, amount)
    return amount if fits else None


Quantities = Annotated[dict[str, str], BeforeValidator(_quantities), _IsQuantity()]
"""Amounts by resource name, as Kubernetes writes them: `{cpu: 4, memory: 16Gi}`."""

FreeForm = dict[str, Any]
"""Passed on as it is; Kubernetes checks it where it is used."""


def holds_quantities(metadata: list[Any]) -> bool:
    """Whether a field's metadata marks it as `Quantities`."""
    return any(isinstance(entry, _IsQuantity) for entry in metadata)


class Resources(Model):
    """CPU, memory and other resources of the main container of a pod. The accelerators come from
    `acceleratorsPerWorker` and need not be named."""

    requests: Quantities = Field(default_factory=dict)
    """What the scheduler sets aside, such as `{cpu: 8, memory: 64Gi}`."""
    limits: Quantities = Field(default_factory=dict)
    """What the container may use at most."""


class Storage(Model):
    """Where the job's run folder lies: checkpoints, metrics, events, the report and the trained model. All
    pods mount it at the same place."""

    volume: FreeForm = Field(default_factory=dict)
    """A Kubernetes volume source, such as `{persistentVolumeClaim: {claimName: runs}}`, that all pods can
    mount. Default: an emptyDir of each pod. Then the checkpoints are the trainer pod's own and lost with it,
    and the trainer can have one worker only."""
    mount_path: str = Field(
        default="/rljob", min_length=2, max_length=255, pattern=r"^/[^:]+$",
        json_schema_extra=form("an absolute path without colons, such as /rljob"),
    )  # fmt: skip
    """Folder in the pods where the volume is mounted. Relative paths of the RLJob are relative to it; the
    job's own folder is `runs/NAMESPACE/NAME` in it."""


_MAX_SECONDS = 2**31 - 1
"""Of a duration, as in a batch/v1 Job: 68 years."""


class RunPolicy(Model):
    """When a job in a cluster is given up, started again, and removed."""

    backoff_limit: int = Field(default=3, ge=0, le=1000)
    """Attempts after the first that the job's own failures may cost: the driver or Ray's head ends by itself,
    with exit code 1, in a crash or for its memory, or the kubelet evicts the head's pod for more disk than
    its limits allow. What the cluster takes does not count: pods that are lost, deleted, drained, pre-empted
    or evicted from a node that runs short, lost nodes. Exit code 2 fails the job at once."""
    restart_limit: int = Field(default=100, ge=0, le=100_000)
    """Attempts after the first since the job was last resumed, whatever ended the one before: also what does
    not count against `backoffLimit`. The next end of an attempt fails the job."""
    active_deadline_seconds: int | None = Field(default=None, ge=1, le=_MAX_SECONDS)
    """Longest time from the start, in seconds, over all attempts; afterwards the job fails. A suspended job's
    clock stands still and begins anew when it resumes, a queued job's with each admission."""
    start_deadline_seconds: int = Field(default=1800, ge=1, le=_MAX_SECONDS)
    """Longest time, in seconds, from the creation of an attempt's pods until those that training needs are
    ready: the head, all of the trainer's and one of the rollouts'; afterwards the job fails. A job that has
    them runs, without the others; so does one whose driver has told that it trains, whichever of its pods is
    not ready. Time in a queue does not count. A resize of the trainer waits as long for its pods; training
    then goes on with those before until they are there."""
    ttl_seconds_after_finished: int | None = Field(default=None, ge=0, le=_MAX_SECONDS)
    """The RLJob is deleted this many seconds after it is Complete or Failed. Default: never."""
    suspend_grace_seconds: int = Field(default=300, ge=0, le=_MAX_SECONDS)
    """Longest time, in seconds, that the runtime has to write a checkpoint when the job is suspended."""
    drain_grace_seconds: int = Field(default=300, ge=0, le=_MAX_SECONDS)
    """Longest time, in seconds, that the runtime has to move the requests away from rollout workers, or to
    checkpoint before the trainer is resized; afterwards the pods go without its answer."""


ImagePullPolicy = Literal["Always", "IfNotPresent", "Never"]
ManagedBy = Literal["rljob.dev/operator", "kueue.x-k8s.io/multikueue"]
