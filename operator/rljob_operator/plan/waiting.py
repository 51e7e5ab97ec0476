"""What a job waits for, in one sentence for people.

Guarantees: a sentence changes only when what it speaks of does: it holds no durations that grow, and
none of the scheduler's counts of nodes, nor what others use of a quota.
"""

import re
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from rljob_api.job import Spec
from rljob_operator.plan import queueing
from rljob_operator.plan.attempt import Attempt, alive, dead
from rljob_operator.plan.conditions import Row
from rljob_operator.plan.observed import GROUPS, POOLS, Cluster, CreationFailure, Observed, Pod
from rljob_operator.plan.pools import counted, wanted
from rljob_operator.plan.refusal_words import steady

NOTICE = timedelta(seconds=10)
"""KubeRay makes the first pod of a RayCluster, or writes its status, within this time: else it is told."""
_CAUSE_LIMIT = 200
_WORDS_LIMIT = 600
"""Of another program's words: the start deadline that follows has room then."""
_STARTS = 4
"""Rank (see `_cause`) of a pod that only starts: every other cause is told rather than this one."""


def uncreatable(observed: Observed, name: str) -> Row | None:
    """PodsReady where the RayCluster `name` cannot be made here and now; None where it can."""
    if observed.job.invalid is not None:
        return Row("PodsReady", "False", "InvalidSpec", f"RayCluster {name} is not created: see Accepted.")
    if observed.kuberay == "missing":
        text = "This cluster has no RayClusters (ray.io/v1): install KubeRay 1.4 or newer."
        return Row("PodsReady", "False", "KubeRayMissing", text)
    if observed.kuberay == "unsupported":
        text = f"This cluster's KubeRay is not supported: {observed.kuberay_detail}. Install 1.4 or newer."
        return Row("PodsReady", "False", "KubeRayUnsupported", text)
    taken = [cluster.owner for cluster in observed.clusters if cluster.name == name]
    # Most often of an earlier RLJob of this name, whose deletion is under way.
    if any(owner != observed.job.uid for owner in taken):
        text = f"RayCluster {name} exists and is not this RLJob's: waiting for it to go."
        return Row("PodsReady", "False", "NameTaken", text)
    return None


def creation_failure(observed: Observed, name: str) -> CreationFailure | None:
    """What kept the RayCluster `name`, or what its pods need, from being made."""
    return _of(observed.creation_failure, name)


def access_failure(observed: Observed, name: str) -> CreationFailure | None:
    """What kept an access object of the attempt with RayCluster `name` from being made again."""
    return _of(observed.access_failure, name)


def _of(found: CreationFailure | None, name: str) -> CreationFailure | None:
    return found if found is not None and found.cluster == name else None


def _failed_to_create(observed: Observed, name: str) -> Row | None:
    """PodsReady after a failed creation: kept until a creation succeeds, so that the condition does not flip
    with each retry."""
    found = creation_failure(observed, name)
    if found is None:
        return None
    return Row("PodsReady", "False", found.reason, _clause(found.message)[:_WORDS_LIMIT])


def with_refusal(rows: tuple[Row, ...], refused: CreationFailure) -> tuple[Row, ...]:
    """The conditions of an attempt whose RayCluster may not be changed now: Running tells of it, and
    PodsReady before it runs."""
    kind = "Running" if any((row.type, row.status) == ("Running", "True") for row in rows) else "PodsReady"
    said = f"{_clause(refused.message)[:_WORDS_LIMIT]}; tried again every half minute."
    return tuple(replace(row, message=f"{row.message} {said}") if row.type == kind else row for row in rows)


def _clause(words: str) -> str:
    """Another program's words without a full stop at the end: ours go on."""
    return steady(words).rstrip(".")


def pods_ready(attempt: Attempt, spec: Spec, observed: Observed, deadline: str | None, now: datetime) -> Row:
    """PodsReady of a running attempt; `deadline` is the start deadline for people, while there is one."""
    cluster, head = attempt.cluster, attempt.head
    until = _until(deadline)
    if head is not None and head.ready and head.deleting is None and all_ready(attempt, spec):
        return Row("PodsReady", "True", "AllPodsReady", "All pods are ready.")
    if cluster is None and attempt.pods == 0:
        row = uncreatable(observed, attempt.name) or _failed_to_create(observed, attempt.name)
        if row is not None:
            return replace(row, message=row.message.removesuffix(".") + until)
        return creating(attempt.name, deadline)
    if cluster is not None and cluster.refusal is not None:
        refusal = _clause(cluster.refusal)
        if refusal.endswith("already exists"):
            return Row("PodsReady", "False", "WaitingForKubeRay", _exists(attempt.name, refusal) + until)
        text = f"KubeRay refuses RayCluster {attempt.name}: {refusal[:_WORDS_LIMIT]}"
        return Row("PodsReady", "False", "RayClusterRefused", text + until)
    held = queueing.pods_ready(attempt, observed.job.name)
    if held is not None:
        return held
    if cluster is not None and not cluster.status_seen and attempt.pods == 0:
        if now < cluster.created + NOTICE:
            return creating(attempt.name, deadline)
        text = f"KubeRay has taken no notice of RayCluster {attempt.name} yet: its operator may be down"
        return Row("PodsReady", "False", "WaitingForKubeRay", text + until)
    return Row("PodsReady", "False", "WaitingForPods", f"Waiting for {missing(attempt, spec)}{until}")


def _exists(name: str, refusal: str) -> str:
    # Most often KubeRay has made it itself, and its view of the cluster is late, as after an API server's
    # return: it then goes on by itself.
    return (
        f"KubeRay goes on with RayCluster {name} as soon as it sees what it has made, or once what is not "
        f"the RayCluster's is deleted ({refusal[:_WORDS_LIMIT]})"
    )


def notice_due(cluster: Cluster | None) -> datetime | None:
    """When KubeRay should have taken notice of a RayCluster; None where it has."""
    return None if cluster is None or cluster.status_seen else cluster.created + NOTICE


def creating(name: str, deadline: str | None) -> Row:
    """PodsReady of an attempt whose RayCluster `name` was asked for; `deadline` as for `pods_ready`."""
    return Row("PodsReady", "False", "CreatingRayCluster", f"Creating RayCluster {name}{_until(deadline)}")


def _until(deadline: str | None) -> str:
    return f"; start deadline {deadline}." if deadline is not None else "."


def all_ready(attempt: Attempt, spec: Spec) -> bool:
    """Whether every pool has as many ready workers as it should."""
    return not any(_missing(attempt, spec))


def missing(attempt: Attempt, spec: Spec) -> str:
    """The pods that are not ready, pool by pool, and why."""
    head, parts = attempt.head, []
    if head is None:
        parts.append(f"the head pod: not {'created' if attempt.reported is None else 'seen'} yet")
    elif not head.ready or head.deleting is not None:
        parts.append(f"the head pod: {_why([head], 0)}")
    return "; ".join([*parts, *_missing(attempt, spec)])


def _missing(attempt: Attempt, spec: Spec) -> Iterable[str]:
    for pool in POOLS:
        pods, desired = attempt.workers[pool], wanted(spec, pool)
        count = counted(pods, pool, desired)
        short = desired - count.ready
        if short > 0:
            idle = [pod for pod in pods if not (pod.ready and alive(pod))]
            yield f"{short} of {desired} {GROUPS[pool]} pods: {_why(idle, desired - len(pods))}"


def _why(pods: list[Pod], uncreated: int) -> str:
    """The cause that people can do most about, of the first pod that has it."""
    causes = sorted((_cause(pod), pod.name) for pod in pods)
    # Where pods are not even created, that others are just starting is not what people look for.
    if causes and (uncreated <= 0 or causes[0][0][0] < _STARTS):
        return causes[0][0][1]
    return "not created yet"


def _cause(pod: Pod) -> tuple[int, str]:
    """Why a pod is not ready, and how much that should be told before other pods' causes (0: most)."""
    if pod.unschedulable is not None:
        return 0, unschedulable(pod.unschedulable)
    if pod.waiting is not None:
        return 1, _not_started(pod.waiting)
    if dead(pod) or pod.disrupted is not None:
        return 2, loss(pod)
    if pod.deleting is not None:
        return 3, "being deleted"
    if pod.helper is not None:
        end = pod.helper.end
        return 3, f"container {pod.helper.name} ended: {end.reason}, exit code {end.exit_code}"
    return _STARTS, "starting"


def _not_started(waiting: str) -> str:
    """The kubelet's reason and message; it says by turns that it cannot pull an image and that it will not
    try."""
    if not waiting.startswith(("ErrImagePull", "ImagePullBackOff")):
        return " ".join(waiting.split())[:_CAUSE_LIMIT]
    # By turns "Back-off pulling image" and the registry's own words: the image is in both.
    image = re.search(r'image "([^"]+)"', waiting)
    return f"ImagePullBackOff: cannot pull image {image[1]}" if image else "ImagePullBackOff"


def loss(pod: Pod) -> str:
    """Why a pod is lost."""
    if pod.disrupted is not None:
        return pod.disrupted if pod.node is None else f"{pod.disrupted} on node {pod.node}"
    if pod.main is not None:
        return f"{pod.main.reason}, exit code {pod.main.exit_code}"
    return "deleted" if pod.deleting is not None else "failed"


def unschedulable(message: str) -> str:
    """The scheduler's reasons without its counts of nodes, which change as other jobs come and go."""
    # As in "0/5 nodes are available: 2 Insufficient cpu, 3 node(s) were unschedulable. preemption: ...".
    text = message.partition("available:")[2] or message
    text = re.split(r"\. |\.$|preemption:", text.strip())[0]
    # Sorted, without counts: the same shortage is the same sentence, whichever node is told first.
    reasons = {re.sub(r"^\d+ ", "", part.strip()) for part in text.split(", ")}
    return ", ".join(sorted(reasons - {""}))[:_CAUSE_LIMIT]
