"""Builders of what the operator observes: a job at any point of its life, in one line."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from rljob_api.job import RLJob, Spec
from rljob_api.status import Status, TrainingStatus
from rljob_operator.plan.decide import decide
from rljob_operator.plan.observed import (
    GROUPS,
    POOLS,
    Cluster,
    ContainerEnd,
    Group,
    Job,
    Observed,
    Pod,
    Pool,
    Role,
)
from rljob_operator.plan.plan import Plan
from tests.support.jobs import job

NOW = datetime(2026, 11, 21, 14, 2, tzinfo=UTC)
NAME = "math"
UID = "job-uid"


def at(seconds: float) -> datetime:
    """The time so many seconds after the job was created."""
    return NOW + timedelta(seconds=seconds)


def spec(changes: dict[str, Any] | None = None, pools: tuple[int, int, int] = (1, 2, 0)) -> Spec:
    """A small job's spec: workers of trainer, fast and heavy rollouts, and changes at dotted paths."""
    sizes = {f"pools.{pool}.replicas": size for pool, size in zip(POOLS, pools, strict=True)}
    return RLJob.model_validate(job({**sizes, **(changes or {})})).spec


def new_job(of: Spec | None = None, **fields: Any) -> Job:
    """A job that was just created."""
    known = {
        "namespace": "default", "name": NAME, "uid": UID, "generation": 1, "created": NOW, "deleting": False,
        "managed_by": "rljob.dev/operator", "spec": of or spec(), "invalid": None, "status": Status(),
    }  # fmt: skip
    return Job(**{**known, **fields})


def cluster(attempt: int = 1, sizes: tuple[int, int, int] = (1, 2, 0), **fields: Any) -> Cluster:
    """An attempt's RayCluster that KubeRay has taken notice of."""
    groups = tuple(Group(pool, size) for pool, size in zip(POOLS, sizes, strict=True))
    known = {
        "name": f"{NAME}-{attempt}", "uid": f"cluster-{attempt}", "owner": UID, "attempt": attempt,
        "created": NOW, "deleting": False, "groups": groups, "status_seen": True,
        "head": f"uid-{NAME}-{attempt}-head-0",
    }  # fmt: skip
    return Cluster(**{**known, **fields})


def pod(role: Role, number: int = 0, attempt: int = 1, **fields: Any) -> Pod:
    """A pod that is ready."""
    name = f"{NAME}-{attempt}-{'head' if role == 'head' else GROUPS[role]}-{number}"
    known = {
        "name": name, "uid": f"uid-{name}", "role": role, "attempt": attempt, "cluster": f"{NAME}-{attempt}",
        "cluster_uid": f"cluster-{attempt}", "created": at(number), "phase": "Running", "ready": True,
        "node": f"node-{number}",
    }  # fmt: skip
    return Pod(**{**known, **fields})


def pods(sizes: tuple[int, int, int] = (1, 2, 0), attempt: int = 1, **fields: Any) -> tuple[Pod, ...]:
    """A head and workers, all ready unless `fields` say otherwise."""
    workers = [
        pod(pool, number, attempt, **fields)
        for pool, size in zip(POOLS, sizes, strict=True)
        for number in range(size)
    ]
    return (pod("head", 0, attempt, **fields), *workers)


def waiting_pod(role: Role, number: int = 0, **fields: Any) -> Pod:
    """A pod that has not started."""
    return pod(role, number, **{"phase": "Pending", "ready": False, "node": None, **fields})


def end(code: int, message: str = "", reason: str = "", seconds: float = 100) -> ContainerEnd:
    """How a container ended."""
    return ContainerEnd(code, reason or ("Completed" if code == 0 else "Error"), message, at(seconds))


def said(**fields: Any) -> TrainingStatus:
    """What the runtime wrote."""
    known = {"attempt": 1, "observed_generation": 1, "step": 5, "total_steps": 10, "weight_version": 5}
    return TrainingStatus(**{**known, **fields})


def observe(before: Observed, plan: Plan, **changes: Any) -> Observed:
    """What is observed after the plan's status was written; `changes` are fields of Observed, or of the job
    where they are named `spec`, `generation` or `training`."""
    status = plan.status.model_copy(update={"training": changes.pop("training", plan.status.training)})
    fields = {name: changes.pop(name) for name in ("spec", "generation") if name in changes}
    if "spec" in fields:
        fields.setdefault("generation", before.job.generation + 1)
    return replace(before, job=replace(before.job, status=status, **fields), **changes)


def planned(observed: Observed, seconds: float) -> Plan:
    """The decision, `seconds` after the job was created; fails where the job is another controller's."""
    plan = decide(observed, at(seconds))
    assert plan is not None
    return plan


def running(
    sizes: tuple[int, int, int] = (1, 2, 0),
    changes: dict[str, Any] | None = None,
    training: TrainingStatus | None = None,
    seconds: float = 60,
) -> Observed:
    """A job whose first attempt has been running since `seconds` after its creation."""
    new = Observed(new_job(spec(changes, sizes)), (), ())
    # Two decisions, as in an operator: on the new job, and on its pods that run.
    begun = observe(new, planned(new, 0), clusters=(cluster(sizes=sizes),), pods=pods(sizes))
    return observe(begun, planned(begun, seconds), training=training or said())


def with_pods(observed: Observed, *changed: Pod, without: tuple[str, ...] = ()) -> Observed:
    """The same with these pods in place of those of their names, and without others."""
    kept = {entry.name: entry for entry in observed.pods if entry.name not in without}
    return replace(observed, pods=tuple({**kept, **{entry.name: entry for entry in changed}}.values()))


def with_group(observed: Observed, pool: Pool, replicas: int, names: tuple[str, ...] = ()) -> Observed:
    """The same with the pool's worker group patched."""
    first = observed.clusters[0]
    groups = tuple(Group(pool, replicas, names) if group.pool == pool else group for group in first.groups)
    return replace(observed, clusters=(replace(first, groups=groups), *observed.clusters[1:]))


def said_of(plan: Plan, kind: str) -> tuple[str, str, str]:
    """Status, reason and message of one of the plan's conditions."""
    entry = next(entry for entry in plan.status.conditions if entry.type == kind)
    return entry.status, entry.reason, entry.message


def told(plan: Plan) -> list[str]:
    """Reasons of the plan's events."""
    return [event.reason for event in plan.events]
