"""How a job comes to its end, and what follows.

Guarantees: a finished job holds no pods: its RayClusters are deleted, the driver's last words are in the
condition, logs and results in the run folder. Its terminal condition never changes.
"""

from datetime import datetime

from rljob_api.job import Spec
from rljob_api.status import Status, TrainingStatus
from rljob_operator.plan.conditions import Row, condition, put
from rljob_operator.plan.observed import Job, Observed
from rljob_operator.plan.plan import DeleteJob
from rljob_operator.plan.pools import count
from rljob_operator.plan.step import Step
from rljob_operator.plan.times import stamp
from rljob_operator.plan.ttl import expiry
from rljob_operator.plan.volume import path_in_volume


def completed(status: Status, job: Job, spec: Spec, words: str, now: datetime) -> Status:
    """The status of a job whose training is done; `words` are the driver's last."""
    parts = (_trained(status.training, status.attempt), words, _results(job, spec))
    text = " ".join(part for part in parts if part)
    return _finished(status, Row("Complete", "True", "Completed", text), job.generation, now)


def failed(status: Status, generation: int, reason: str, message: str, now: datetime) -> Status:
    """The status of a job that is given up."""
    return _finished(status, Row("Failed", "True", reason, message), generation, now)


def _finished(status: Status, row: Row, generation: int, now: datetime) -> Status:
    ended = status.model_copy(
        update={"cluster_name": None, "head_pod": None, "scale_downs": [], "completion_time": stamp(now)}
    )
    text = "The job is finished."
    rows = [Row("PodsReady", "False", row.type, text), Row("Running", "False", row.type, text)]
    rows += [
        Row(kind, "False", row.type, text) for kind in ("Degraded", "Suspended") if condition(status, kind)
    ]
    return put(ended, (row, *rows), generation, now)


def _results(job: Job, spec: Spec) -> str:
    # The run folder was in an emptyDir of the head pod.
    if not spec.storage.volume:
        return "Model and report went with the pods: spec.storage.volume is not set."
    return f"Model and report are in {path_in_volume(job.namespace, job.name)} of the volume."


def _trained(training: TrainingStatus | None, attempt: int) -> str:
    # The last report may never have been written; one of an earlier attempt has fewer steps.
    if training is None or training.attempt != attempt:
        return "Training is done."
    return f"Trained {training.step} of {training.total_steps} steps."


def after_finish(observed: Observed, spec: Spec | None, now: datetime) -> Step:
    """What follows the end: counts go down as pods end, and the RLJob is deleted when its time is over."""
    # With the spec, the pools' sizes and ttlSecondsAfterFinished cannot be read either.
    if spec is None:
        return Step(observed.job.status)
    status = count(observed, spec)
    expires = expiry(status, spec)
    if expires is None or now < expires:
        return Step(status, wakes=(expires,))
    return Step(status, (DeleteJob(observed.job.uid),))
