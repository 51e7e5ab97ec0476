"""When the next attempt begins.

Guarantees: an attempt begins only when every RayCluster of the job is gone or was asked to go, when the
driver before it has ended (or had its time to), when its own name is free, and when nothing is left of an
earlier RLJob of the same name: two attempts never run at once, whichever RLJob they are of. A job that cannot
be carried out here begins no attempt, and none of its deadlines runs; nor does one run while an attempt waits
in a queue.
"""

from datetime import UTC, datetime

from rljob_api.job import Spec
from rljob_api.status import Status
from rljob_operator.plan import deadlines, queueing, waiting
from rljob_operator.plan.attempt import cluster_name, head_ended, own_clusters, own_pods
from rljob_operator.plan.conditions import RESTART_REASONS, Row, condition, put
from rljob_operator.plan.observed import Observed, Pod
from rljob_operator.plan.outdated import mark
from rljob_operator.plan.plan import CreateCluster, EnsureAccess
from rljob_operator.plan.step import Step
from rljob_operator.plan.suspension import withdrawn
from rljob_operator.plan.times import moment, stamp

_FOR_EVER = datetime.max.replace(tzinfo=UTC)
_OWN_LEFT = "Waiting for RayCluster {} to be removed."
_OTHERS_LEFT = (
    "Waiting for RayCluster {} to be removed: not this RLJob's, and its driver may write to the same run "
    "folder. Delete it where it does not go by itself."
)


def begin(observed: Observed, spec: Spec, status: Status, now: datetime) -> Step:
    """A job without an attempt that is not suspended: the next attempt, or what it waits for."""
    obstacle = _obstacle(observed, status, now)
    if obstacle is not None:
        row, wake = obstacle
        rows = (row, _not_running(status), *withdrawn(status), *_not_degraded(status))
        return Step(put(status, rows, observed.job.generation, now), wakes=(wake,))
    return _attempt(observed, spec, status, now)


def _attempt(observed: Observed, spec: Spec, status: Status, now: datetime) -> Step:
    job, number = observed.job, status.attempt + 1
    name = cluster_name(job.name, number)
    first = status.start_time is None
    # The clocks of a queued attempt begin with its admission.
    begins = stamp(now) if job.queue is None else None
    begun = status.model_copy(
        update={
            "attempt": number,
            "spec_digest": mark(spec),
            "cluster_name": name,
            "head_pod": None,
            "attempt_time": begins,
            "start_time": begins if first or begins is None else status.start_time,
            "restarts": 0 if first else status.restarts + 1,
            "scale_downs": [],
        }
    )
    rows = (queueing.starting(begun), *withdrawn(status), *_not_degraded(status))
    begun = put(begun, rows, job.generation, now)
    ready = waiting.creating(name, deadlines.start_text(begun, spec))
    return Step(
        put(begun, (ready,), job.generation, now),
        (EnsureAccess(), CreateCluster(name, number)),
        (deadlines.start(begun, spec),),
    )


def _obstacle(observed: Observed, status: Status, now: datetime) -> tuple[Row, datetime | None] | None:
    """Why the next attempt cannot begin, and when time alone ends that."""
    name = cluster_name(observed.job.name, status.attempt + 1)
    row = waiting.uncreatable(observed, name)
    # Nothing that time changes: a KubeRay that comes, or a spec that is mended, is heard of.
    if row is not None:
        return row, None
    if status.attempt_time is not None and now < moment(status.attempt_time):
        text = f"Attempt {status.attempt + 1} begins at {moment(status.attempt_time):%H:%M:%S UTC}."
        return Row("PodsReady", "False", "BackOff", text), moment(status.attempt_time)
    # KubeRay finds pods by the name of their RayCluster: it would take these for the new one's.
    if taken := sorted(pod.name for pod in observed.pods if pod.cluster == name):
        more = f" and {len(taken) - 3} more" if len(taken) > 3 else ""
        which = f"{', '.join(taken[:3])}{more}"
        text = f"Waiting for pods that KubeRay would take for those of RayCluster {name} to go: {which}."
        return Row("PodsReady", "False", "NameTaken", text), None
    return _remains(observed, status, now)


def _remains(observed: Observed, status: Status, now: datetime) -> tuple[Row, datetime | None] | None:
    """What must go first: RayClusters of earlier attempts or of an earlier RLJob of this name, and heads
    whose driver may still run."""
    # Two drivers on one run folder would overwrite each other's checkpoints.
    each_kind = (_of_earlier_attempts(observed, status), _of_earlier_jobs(observed, status))
    left = [{name: until for name, until in kind.items() if now < until} for kind in each_kind]
    if not any(left):
        return None
    texts = (_OWN_LEFT, _OTHERS_LEFT)
    said = [text.format(", ".join(sorted(names))) for text, names in zip(texts, left, strict=True) if names]
    wake = min(until for names in left for until in names.values())
    row = Row("PodsReady", "False", "WaitingForRemoval", " ".join(said))
    return row, None if wake == _FOR_EVER else wake


def _of_earlier_attempts(observed: Observed, status: Status) -> dict[str, datetime]:
    """Names of this RLJob's RayClusters of which something is left, and until when each is waited for."""
    clusters = [
        (cluster.name, deadlines.removal(status, None) if cluster.deleting else None)
        for cluster in own_clusters(observed)
    ]
    heads = [
        (pod.cluster, deadlines.removal(status, pod))
        for pod in _working_heads(observed)
        if pod.attempt <= status.attempt
    ]
    return _longest(*clusters, *heads)


def _of_earlier_jobs(observed: Observed, status: Status) -> dict[str, datetime]:
    """The same of RayClusters that bear this RLJob's labels and are not its own, most often of an earlier one
    of its name: each is waited for until it is gone, and its head then as one of this RLJob is."""
    foreign = [(cluster.name, None) for cluster in observed.clusters if cluster.owner != observed.job.uid]
    # One that is not being deleted will be: Kubernetes deletes what has lost its owner.
    heads = [
        (pod.cluster, deadlines.removal(status, pod) if pod.deleting is not None else None)
        for pod in _working_heads(observed)
        if pod.attempt > status.attempt
    ]
    return _longest(*foreign, *heads)


def _working_heads(observed: Observed) -> list[Pod]:
    """Heads whose driver may still run."""
    return [pod for pod in own_pods(observed) if pod.role == "head" and not head_ended(pod)]


def _longest(*waits: tuple[str, datetime | None]) -> dict[str, datetime]:
    """By name, the last of the times until which it is waited for; None stands for ever."""
    longest: dict[str, datetime] = {}
    for name, until in waits:
        longest[name] = max(longest.get(name, until or _FOR_EVER), until or _FOR_EVER)
    return longest


def _not_running(status: Status) -> Row:
    """Running before the next attempt: it keeps telling how the one before ended."""
    old = condition(status, "Running")
    # Why the attempt before ended is what people look for while they wait.
    if old is not None and old.status == "False" and old.reason in RESTART_REASONS:
        return Row("Running", "False", old.reason, old.message)
    return Row("Running", "False", "Pending", "No attempt runs.")


def _not_degraded(status: Status) -> tuple[Row, ...]:
    if condition(status, "Degraded") is None:
        return ()
    return (Row("Degraded", "False", "NotRunning", "No attempt runs."),)
