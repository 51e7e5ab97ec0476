"""Suspending and resuming."""

from dataclasses import replace

import pytest

from rljob_operator.plan.observed import Observed
from rljob_operator.plan.plan import CreateCluster, DeleteCluster, EnsureAccess
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

SUSPEND = spec({"suspend": True})
RELEASE = (DeleteCluster("math-1", "cluster-1"),)


VOLUME = {"storage.volume": {"persistentVolumeClaim": {"claimName": "runs"}}}


def asked(observed, seconds=100):
    """The job right after it was asked to suspend, and the operator's answer."""
    wish = observe(observed, planned(observed, 99), spec=spec({"suspend": True}))
    return wish, planned(wish, seconds)


def test_suspending_waits_for_the_checkpoint_then_for_the_pods():
    wish, plan = asked(running())
    assert plan.actions == () and plan.requeue_after == 300 and plan.status.phase == "Suspending"
    assert said_of(plan, "Suspended") == (
        "False",
        "Suspending",
        "Waiting for the runtime to write a checkpoint; pods go at 14:08 UTC at the latest.",
    )
    answered = observe(wish, plan, training=said(suspended_at_step=131))
    release = planned(answered, 130)
    assert release.actions == RELEASE and release.status.phase == "Suspending"
    assert (release.status.cluster_name, release.status.start_time) == (None, None)
    going = observe(answered, release, clusters=())
    assert planned(going, 140).status.phase == "Suspending"
    gone = planned(replace(going, pods=()), 150)
    assert said_of(gone, "Suspended") == (
        "True",
        "Suspended",
        "Checkpoint of step 131 written, but gone with the pods (no storage.volume); all pods released.",
    )
    assert gone.status.phase == "Suspended" and told(gone) == ["Suspended"]
    idle = observe(replace(going, pods=()), gone)
    assert planned(idle, 99_999).status == idle.job.status


def test_the_number_of_accelerators_that_are_free_again_is_told():
    changes = {"accelerator": "nvidia", "pools.fastRollout.acceleratorsPerWorker": 4, **VOLUME}
    suspended = spec({"suspend": True, **changes})
    wish, plan = asked(running())
    wish = replace(wish, job=replace(wish.job, spec=suspended))
    answered = observe(wish, plan, training=said(suspended_at_step=131))
    release = planned(answered, 130)
    gone = planned(observe(answered, release, clusters=(), pods=()), 150)
    assert said_of(gone, "Suspended")[2] == "Checkpoint of step 131 written; 9 accelerators released."


def test_pods_go_when_the_grace_is_over():
    wish, plan = asked(running())
    waiting = observe(wish, plan)
    assert planned(waiting, 399).actions == ()
    late = planned(waiting, 400)
    assert late.actions == RELEASE and told(late) == ["SuspendTimedOut"]
    gone = planned(observe(waiting, late, clusters=(), pods=()), 420)
    assert said_of(gone, "Suspended")[2] == (
        "The runtime did not answer in time. No checkpoint; the job begins anew; all pods released."
    )


NO_DRIVER = {
    "the head is not there": lambda seen: with_pods(seen, without=("math-1-head-0",)),
    "the head has not started": lambda seen: with_pods(seen, waiting_pod("head")),
}


@pytest.mark.parametrize("change", NO_DRIVER.values(), ids=NO_DRIVER)
def test_without_a_driver_there_is_nothing_to_wait_for(change):
    new = Observed(new_job(), (), ())
    begun = change(observe(new, planned(new, 0), clusters=(cluster(),)))
    wish = observe(begun, planned(begun, 5), spec=SUSPEND)
    assert planned(wish, 6).actions == RELEASE


@pytest.mark.parametrize("change", NO_DRIVER.values(), ids=NO_DRIVER)
def test_a_driver_that_reports_is_waited_for_though_its_pod_is_not_seen_to_run(change):
    new = Observed(new_job(), (), ())
    seen = observe(new, planned(new, 0), clusters=(cluster(),), training=said(time=stamp(at(40))))
    wish, plan = asked(change(seen), 45)
    assert (plan.status.phase, plan.actions, plan.requeue_after) == ("Suspending", (), 55)
    assert said_of(plan, "Suspended")[2].startswith("Waiting for the runtime to write a checkpoint")
    answered = observe(wish, plan, training=said(time=stamp(at(60)), suspended_at_step=131))
    assert planned(answered, 61).actions == RELEASE
    assert planned(observe(wish, plan), 99).actions == ()
    assert planned(observe(wish, plan), 100).actions == RELEASE


ENDS = {
    # what the driver does while it is to suspend: exit code, phase right after, failures
    "it stops": (130, "Suspending", 0),
    "it fails": (1, "Suspending", 1),
    "it is done": (0, "Complete", 0),
    "it refuses": (2, "Failed", 0),
}


@pytest.mark.parametrize(("code", "phase", "failures"), ENDS.values(), ids=ENDS)
def test_how_the_driver_may_end_while_the_job_is_to_suspend(code, phase, failures):
    wish, plan = asked(running())
    ended = with_pods(observe(wish, plan), replace(pod("head"), ready=False, driver=end(code)))
    after = planned(ended, 120)
    assert (after.status.phase, after.status.failures, after.actions) == (phase, failures, RELEASE)


def test_an_answer_of_an_earlier_attempt_does_not_count():
    wish, plan = asked(running())
    old = observe(wish, plan, training=said(attempt=0, suspended_at_step=9))
    assert planned(old, 130).actions == ()


def test_a_job_created_suspended_gets_nothing():
    new = Observed(new_job(SUSPEND), (), ())
    plan = planned(new, 0)
    assert plan.actions == () and plan.requeue_after is None
    assert (plan.status.phase, plan.status.attempt, plan.status.start_time) == ("Suspended", 0, None)
    assert said_of(plan, "Suspended")[2] == "Created suspended: nothing was started."


def test_resuming_starts_the_clock_anew_with_the_spec_as_it_is_now():
    wish, plan = asked(running(changes={"runPolicy.activeDeadlineSeconds": 500}))
    answered = observe(wish, plan, training=said(suspended_at_step=131))
    released = observe(answered, planned(answered, 130), clusters=(), pods=())
    suspended = observe(released, planned(released, 150))
    bigger = observe(
        suspended, planned(suspended, 9000), spec=spec({"runPolicy.activeDeadlineSeconds": 500}, (2, 4, 1))
    )
    resumed = planned(bigger, 9000)
    assert resumed.actions == (EnsureAccess(), CreateCluster("math-2", 2))
    assert (resumed.status.start_time, resumed.status.restarts) == ("2026-11-21T16:32:00Z", 0)
    assert [entry.desired for entry in resumed.status.pools] == [2, 4, 1]
    assert said_of(resumed, "Suspended")[:2] == ("False", "Resumed") and told(resumed) == ["Resumed"]
    assert resumed.status.suspend_time is None


def test_a_resize_of_a_suspended_job_waits_for_its_resumption():
    new = Observed(new_job(SUSPEND), (), ())
    suspended = observe(new, planned(new, 0), spec=spec({"suspend": True}, (2, 4, 1)))
    plan = planned(suspended, 10)
    assert plan.actions == () and plan.status.phase == "Suspended"


def test_a_suspension_that_is_withdrawn_in_time_changes_nothing():
    wish, plan = asked(running())
    withdrawn = observe(wish, plan, spec=spec())
    back = planned(withdrawn, 120)
    assert back.status.phase == "Running" and back.actions == () and back.status.suspend_time is None
    assert said_of(back, "Suspended")[:2] == ("False", "Resumed")


def test_a_suspension_withdrawn_too_late_costs_a_restart_but_no_failure():
    wish, plan = asked(running(), seconds=400)
    withdrawn = observe(wish, plan, spec=spec(), training=said(suspended_at_step=131))
    stopped = with_pods(withdrawn, replace(pod("head"), ready=False, driver=end(130, seconds=410)))
    after = planned(stopped, 411)
    assert (after.status.phase, after.status.failures) == ("Restarting", 0)


def test_each_request_to_suspend_has_its_own_grace():
    wish, plan = asked(running())
    withdrawn = observe(wish, plan, spec=spec())
    again = observe(withdrawn, planned(withdrawn, 390), spec=spec({"suspend": True}))
    assert planned(again, 395).status.suspend_time == "2026-11-21T14:08:35Z"
    assert planned(again, 395).requeue_after == (at(695) - at(395)).total_seconds()
