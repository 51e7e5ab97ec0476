"""A driver's word that the job is done, and other signs that there was a driver whose pod nobody saw."""

from dataclasses import replace

import pytest

from rljob_api.status import Status
from rljob_operator.plan.observed import Observed
from rljob_operator.plan.times import stamp
from tests.support.operator.observations import (
    at,
    cluster,
    end,
    new_job,
    observe,
    planned,
    pod,
    running,
    said,
    said_of,
    spec,
    told,
    waiting_pod,
    with_pods,
)

DONE = said(step=10, completed=True, time=stamp(at(90)))
HEAD = "math-1-head-0"
RESULTS = "Trained 10 of 10 steps. Model and report went with the pods: spec.storage.volume is not set."
START_DEADLINE = 1800
WORKERS = (pod("trainer"), pod("fastRollout"), pod("fastRollout", 1))


def unrecorded(*pods, training=None, **fields):
    """A job whose first attempt the operator has asked for; while it was away, pods came and went."""
    new = Observed(new_job(), (), ())
    return observe(
        new, planned(new, 0), clusters=(cluster(**fields),), pods=pods or WORKERS, training=training
    )


def reported(seconds, **fields):
    return said(time=stamp(at(seconds)), **fields)


def test_a_head_that_was_lost_while_nobody_looked_costs_a_free_attempt():
    """KubeRay makes no other one: that would be waited for until the start deadline."""
    late = planned(unrecorded(training=reported(90)), START_DEADLINE + 1)
    assert (late.status.phase, late.status.failures) == ("Restarting", 0)
    assert told(late) == ["HeadLost", "Restarting"]
    assert said_of(late, "Running")[2] == "The head pod of RayCluster math-1 is gone."


def test_a_head_that_is_not_seen_yet_has_a_minute():
    observed = unrecorded(training=reported(90))
    waiting = planned(observed, 100)
    assert waiting.status.phase == "Starting" and waiting.requeue_after == 50
    assert planned(observed, 149).status.phase == "Starting"
    assert planned(observed, 150).status.phase == "Restarting"


def test_a_head_that_was_lost_before_its_driver_reported_costs_a_free_attempt():
    """KubeRay says of its RayCluster that all pods have been ready: the head too, then."""
    observed = unrecorded(provisioned=at(40))
    waiting = planned(observed, 60)
    assert waiting.status.phase == "Starting" and waiting.requeue_after == 40
    lost = planned(observed, 100)
    assert (lost.status.phase, lost.status.failures) == ("Restarting", 0)
    assert said_of(lost, "Running")[2] == "The head pod of RayCluster math-1 is gone."


SIGNS = {
    # when KubeRay said so, and the driver: until when the head pod is awaited
    "the driver says so later": (40, 90, 150),
    "KubeRay says so later": (90, 40, 150),
    "the driver's clock is some seconds ahead": (40, 120, 180),
}


@pytest.mark.parametrize(("provisioned", "report", "until"), SIGNS.values(), ids=SIGNS)
def test_of_two_signs_of_a_head_the_later_counts(provisioned, report, until):
    """A driver that reports again and again runs, though what the operator sees of pods stands still."""
    observed = unrecorded(provisioned=at(provisioned), training=reported(report))
    waiting = planned(observed, 101)
    assert (waiting.status.phase, waiting.actions) == ("Starting", ())
    assert waiting.requeue_after == until - 101
    assert planned(observed, until - 1).status.phase == "Starting"
    assert planned(observed, until).status.phase == "Restarting"


def test_a_report_of_a_clock_that_is_far_ahead_puts_nothing_off():
    observed = unrecorded(provisioned=at(40), training=reported(90_000))
    assert planned(observed, 99).status.phase == "Starting"
    assert planned(observed, 100).status.phase == "Restarting"


def test_a_job_that_trains_runs_though_its_head_is_not_seen():
    observed = unrecorded(training=reported(90, reward=0.5))
    plan = planned(observed, 100)
    assert said_of(plan, "Running")[2] == "Attempt 1 runs; its head pod is not seen yet."
    assert said_of(plan, "PodsReady")[2] == "Waiting for the head pod: not seen yet."
    assert planned(observe(observed, plan), 150).status.phase == "Restarting"


NO_SIGN = {
    "no report": ({}, None),
    "a report of an earlier attempt": ({}, reported(90, attempt=0)),
    "a report from before this RayCluster was made": ({"created": at(95)}, reported(90)),
    "a report without a time": ({}, said()),
    "a time that is none": ({}, said(time="yesterday")),
    "a time beyond all times": ({}, said(time="9999-12-31T23:59:59-12:00")),
    "a time far ahead": ({}, said(time="9999-12-31T23:59:59Z")),
}


@pytest.mark.parametrize(("fields", "training"), NO_SIGN.values(), ids=NO_SIGN)
def test_without_a_report_a_head_may_still_come(fields, training):
    observed = unrecorded(training=training, **fields)
    assert planned(observed, START_DEADLINE - 1).status.phase == "Starting"


HEADS = {
    "a head was never seen": (),
    "another head has not started": (waiting_pod("head", 9),),
    "another head cannot be placed": (waiting_pod("head", 9, unschedulable="no room"),),
}


@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("seconds", [91, START_DEADLINE + 1])
def test_a_job_is_done_though_nobody_saw_its_driver(heads, seconds):
    plan = planned(unrecorded(*heads, *WORKERS, training=DONE), seconds)
    assert said_of(plan, "Complete")[2].startswith("Trained 10 of 10 steps.")
    assert told(plan)[-1] == "Complete" and len(plan.actions) == 1


def test_a_driver_that_has_said_so_may_end_by_itself():
    observed = running(training=DONE)
    assert planned(observed, 95).status.phase == "Running"
    ended = with_pods(observed, replace(pod("head"), driver=end(0, "the last words")))
    assert "the last words" in said_of(planned(ended, 96), "Complete")[2]


def test_no_deadline_fails_a_job_that_is_done():
    observed = running(changes={"runPolicy.activeDeadlineSeconds": 500}, training=DONE)
    assert planned(observed, 499).status.phase == "Running"
    assert said_of(planned(observed, 501), "Complete")[2] == RESULTS


def released():
    """The job as it is when it was to be suspended and its driver did not answer in time."""
    wish = observe(running(), planned(running(), 99), spec=spec({"suspend": True}))
    asked = observe(wish, planned(wish, 100))
    return observe(asked, planned(asked, 400), clusters=(), pods=())


def failed():
    """The job between two attempts."""
    observed = with_pods(running(), replace(pod("head"), driver=end(1, "boom")))
    return observe(observed, planned(observed, 120), clusters=(), pods=())


BETWEEN = {
    # where the driver's word finds the job: (the job, when)
    "pods are about to go": (lambda: replace(released(), pods=(pod("head", deleting=at(430)),)), 410),
    "suspended": (lambda: observe(released(), planned(released(), 420)), 430),
    "to go on": (lambda: replace(released(), job=replace(released().job, spec=spec())), 430),
    "the next attempt is due": (failed, 500),
    "the next attempt is not due": (failed, 125),
}


@pytest.mark.parametrize(("make", "seconds"), BETWEEN.values(), ids=BETWEEN)
def test_a_job_whose_driver_is_done_while_its_pods_go_is_not_trained_again(make, seconds):
    observed = make()
    assert planned(observed, seconds).status.phase != "Complete"
    status = observed.job.status.model_copy(update={"training": DONE})
    plan = planned(replace(observed, job=replace(observed.job, status=status)), seconds)
    assert (plan.status.phase, plan.status.attempt, plan.actions) == ("Complete", 1, ())
    assert told(plan) == ["Complete"] and said_of(plan, "Complete")[2] == RESULTS


def second_attempt(training):
    """A second attempt whose head is there, with what drivers have reported."""
    observed = failed()
    begun = observe(observed, planned(observed, 200), clusters=(cluster(2),), pods=(pod("head", 0, 2),))
    return observe(begun, planned(begun, 210), training=training)


def test_the_word_of_an_earlier_attempts_driver_does_not_end_a_later_one():
    """Such as that of a driver on a node that was given up: the later one finds out by itself."""
    gone = replace(second_attempt(DONE), pods=())
    assert planned(gone, 220).status.phase == "Restarting"
    early = said(attempt=2, step=10, total_steps=20, completed=True)
    assert planned(replace(second_attempt(early), pods=()), 220).status.phase == "Restarting"
    done = said(attempt=2, step=20, total_steps=20, completed=True)
    assert planned(replace(second_attempt(done), pods=()), 220).status.phase == "Complete"


def test_a_job_without_an_attempt_is_not_done():
    status = Status(training=said(attempt=0, step=10, completed=None))
    assert planned(Observed(new_job(status=status), (), ()), 0).status.attempt == 1
