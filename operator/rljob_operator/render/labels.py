"""Labels, annotations and owner references of what is made for a job.

Guarantees: every object and pod of a job is found by `rljob.dev/job`; no key here is one that KubeRay sets.
"""

import re
from collections.abc import Mapping
from typing import Any

from rljob_api import GROUP, KIND, VERSION
from rljob_operator.plan.observed import Queue, Record, Role
from rljob_operator.render.names import JobKey

JOB = f"{GROUP}/job"
ATTEMPT = f"{GROUP}/attempt"
POOL = f"{GROUP}/pool"
FAILURES = f"{GROUP}/failures"
RESTARTS = f"{GROUP}/restarts"
START_TIME = f"{GROUP}/start-time"
HEAD = f"{GROUP}/head"
QUEUE = "kueue.x-k8s.io/queue-name"
PRIORITY_CLASS = "kueue.x-k8s.io/priority-class"


def object_labels(key: JobKey) -> dict[str, str]:
    """Labels of the objects that last as long as the job."""
    return {"app.kubernetes.io/name": "rljob", **_common(key)}


def cluster_labels(key: JobKey, attempt: int) -> dict[str, str]:
    """Labels of an attempt's RayCluster."""
    return {**object_labels(key), ATTEMPT: str(attempt)}


def record_annotations(record: Record) -> dict[str, str]:
    """What the operator notes on a RayCluster."""
    noted = {FAILURES: str(record.failures), RESTARTS: str(record.restarts)}
    return noted if record.start_time is None else {**noted, START_TIME: record.start_time}


def record_of(annotations: Mapping[str, str]) -> Record | None:
    """What was noted on a RayCluster; None where nothing was, or what is there is not the operator's."""
    failures, restarts = annotations.get(FAILURES, ""), annotations.get(RESTARTS, "")
    # Nine digits: more attempts than any job makes.
    if not all(re.fullmatch("[0-9]{1,9}", number) for number in (failures, restarts)):
        return None
    return Record(int(failures), int(restarts), annotations.get(START_TIME))


def queue_of(labels: Mapping[str, str]) -> Queue | None:
    """The queue that an RLJob's labels name; None where they name none."""
    name = labels.get(QUEUE)
    return Queue(name, labels.get(PRIORITY_CLASS)) if name else None


def queue_labels(queue: Queue) -> dict[str, str]:
    """Labels by which Kueue queues a RayCluster."""
    priority = {PRIORITY_CLASS: queue.priority_class} if queue.priority_class else {}
    return {QUEUE: queue.name, **priority}


def pod_labels(key: JobKey, attempt: int, role: Role) -> dict[str, str]:
    """Labels of a pod. `app.kubernetes.io/name` is KubeRay's on pods: its head service selects by it."""
    component = {"app.kubernetes.io/component": "head" if role == "head" else "worker"}
    return {**_common(key), **component, ATTEMPT: str(attempt), POOL: role}


def owner_references(key: JobKey) -> list[dict[str, Any]]:
    """The RLJob as controlling owner: what it owns goes when it goes."""
    return [
        {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": KIND,
            "name": key.name,
            "uid": key.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]


def _common(key: JobKey) -> dict[str, str]:
    return {
        "app.kubernetes.io/instance": key.name,
        "app.kubernetes.io/part-of": "rljob",
        "app.kubernetes.io/managed-by": "rljob-operator",
        JOB: key.name,
    }
