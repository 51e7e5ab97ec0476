"""A driver that has fallen silent is told of, once, and nothing else is done."""

from dataclasses import replace

import pytest

from rljob_operator.plan.plan import Event
from rljob_operator.plan.silence import REASON
from rljob_operator.plan.times import stamp
from tests.support.operator.observations import (
    at,
    observe,
    planned,
    running,
    said,
    said_of,
    told,
    waiting_pod,
    with_pods,
)

EVERY = {"report_seconds": 30}
TEXT = (
    "The driver has told nothing since 14:03:30 UTC, and should every 30 s: it hangs, or does not reach the "
    "API server."
)

SAID = {
    # what the driver said last: the second from which it is silent
    "that it reports": (said(time=stamp(at(90)), **EVERY), 180),
    "nothing of reports": (said(time=stamp(at(90))), None),
    "something in another attempt": (said(time=stamp(at(90)), attempt=2, **EVERY), None),
    "no time": (said(**EVERY), None),
    "a time that is none": (said(time="x", **EVERY), None),
}


@pytest.mark.parametrize(("training", "silent"), SAID.values(), ids=SAID)
def test_a_driver_is_silent_after_three_reports_that_did_not_come(training, silent):
    job = running(training=training)
    before = planned(job, 179)
    assert said_of(before, "Degraded")[:2] == ("False", "AllWorkersReady")
    assert before.requeue_after == (silent - 179 if silent is not None else None)
    later = planned(observe(job, before), 180)
    assert said_of(later, "Degraded") == (
        ("True", REASON, TEXT) if silent else ("False", "AllWorkersReady", "No worker is lost.")
    )
    assert later.events == ((Event("Warning", REASON, TEXT),) if silent else ()) and later.actions == ()
    assert later.status.phase == "Running"


def silent_job():
    job = running(training=SAID["that it reports"][0])
    return observe(job, planned(job, 180))


def test_it_is_told_once_and_not_any_more_once_it_reports():
    job = silent_job()
    again = planned(job, 1000)
    assert again.events == () and again.status == job.job.status
    reports = observe(job, again, training=said(time=stamp(at(1000)), **EVERY))
    assert said_of(planned(reports, 1001), "Degraded")[:2] == ("False", "AllWorkersReady")


def test_a_lost_worker_is_told_first():
    lost = with_pods(silent_job(), waiting_pod("trainer", 9), without=("math-1-trainer-0",))
    status, reason, message = said_of(planned(lost, 200), "Degraded")
    assert (status, reason) == ("True", "TrainerWorkerLost")
    assert message.startswith("Waiting for 1 of 1 trainer pods") and message.endswith(TEXT)


def test_a_pool_that_grows_meanwhile_has_lost_nothing():
    job = silent_job()
    larger = job.job.spec.pools.fast_rollout.model_copy(update={"replicas": 3})
    pools = job.job.spec.pools.model_copy(update={"fast_rollout": larger})
    grown = replace(job, job=replace(job.job, spec=job.job.spec.model_copy(update={"pools": pools})))
    reports = observe(grown, planned(grown, 200), training=said(time=stamp(at(201)), **EVERY))
    assert said_of(planned(reports, 202), "Degraded")[:2] == ("False", "AllWorkersReady")


def test_a_job_that_starts_is_not_called_silent():
    job = running(training=SAID["that it reports"][0])
    starts = observe(with_pods(job, waiting_pod("head")), planned(job, 100))
    unstarted = [entry for entry in starts.job.status.conditions if entry.type != "Running"]
    status = starts.job.status.model_copy(update={"conditions": unstarted})
    plan = planned(replace(starts, job=replace(starts.job, status=status)), 1000)
    assert plan.status.phase == "Starting" and REASON not in told(plan)
