"""How an attempt begins, what the status says of it, and what it waits for."""

from dataclasses import replace

import pytest

from rljob_operator.plan.observed import Observed
from rljob_operator.plan.outdated import mark
from rljob_operator.plan.plan import CreateCluster, DeleteCluster, EnsureAccess
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
    with_pods,
)

NEW = Observed(new_job(), (), ())
ACCEPTED = ("Accepted", "True", "Accepted", "The spec is valid.")
FAILED = ("Running", "False", "AttemptFailed", "The driver ended: exit code 1: boom")
NOT_DEGRADED = ("Degraded", "False", "NotRunning", "No attempt runs.")


def rows(plan):
    return [(entry.type, entry.status, entry.reason, entry.message) for entry in plan.status.conditions]


def failed():
    """A job that lost a worker, and whose driver failed at 100 s: the next attempt may begin at 120 s."""
    lost = with_pods(running(), replace(pod("fastRollout", 1), phase="Failed", ready=False, main=end(1)))
    degraded = observe(lost, planned(lost, 100))
    over = with_pods(degraded, replace(pod("head"), driver=end(1, "boom")))
    plan = planned(over, 110)
    return observe(over, plan, clusters=(), pods=()), plan


def test_the_first_attempt():
    plan = planned(NEW, 0)
    assert plan.actions == (EnsureAccess(), CreateCluster("math-1", 1))
    assert plan.requeue_after == 1800
    assert rows(plan) == [
        ACCEPTED,
        ("PodsReady", "False", "CreatingRayCluster", "Creating RayCluster math-1; start deadline 14:32 UTC."),
        ("Running", "False", "Starting", "Attempt 1 starts."),
    ]
    status = plan.status
    assert (status.attempt, status.cluster_name, status.head_pod) == (1, "math-1", None)
    assert status.attempt_time == status.start_time == "2026-11-21T14:02:00Z"
    assert (status.restarts, status.failures, status.scale_downs) == (0, 0, [])
    assert status.spec_digest == mark(spec())


def test_what_an_end_leaves_on_record():
    _, plan = failed()
    assert plan.actions == (DeleteCluster("math-1", "cluster-1"),) and plan.requeue_after == 10
    assert rows(plan) == [
        ACCEPTED,
        ("PodsReady", "False", "BackOff", "Attempt 2 begins at 14:04:00 UTC."),
        FAILED,
        NOT_DEGRADED,
    ]
    status = plan.status
    assert (status.attempt, status.cluster_name, status.head_pod) == (1, None, None)
    assert (status.attempt_time, status.start_time) == ("2026-11-21T14:04:00Z", "2026-11-21T14:02:00Z")
    assert (status.restarts, status.failures, status.scale_downs) == (0, 1, [])


def test_the_second_attempt_begins_after_its_time_and_keeps_the_jobs_clock():
    over, _ = failed()
    early = planned(over, 119)
    assert early.actions == () and early.requeue_after == 1
    plan = planned(observe(over, early), 120)
    assert plan.actions == (EnsureAccess(), CreateCluster("math-2", 2))
    assert rows(plan)[1:] == [
        ("PodsReady", "False", "CreatingRayCluster", "Creating RayCluster math-2; start deadline 14:34 UTC."),
        ("Running", "False", "Starting", "Attempt 2 starts."),
        NOT_DEGRADED,
    ]
    status = plan.status
    assert (status.attempt, status.cluster_name) == (2, "math-2")
    assert (status.attempt_time, status.start_time) == ("2026-11-21T14:04:00Z", "2026-11-21T14:02:00Z")
    assert (status.restarts, status.failures) == (1, 1)


HEAD_GOES = pod("head", deleting=at(200), deletion_grace=30)
REMAINS = {
    # what is left: clusters, pods, the names that are told, for how many seconds they are waited for
    "a RayCluster that nobody has deleted": ((cluster(),), (), "math-1", None),
    "a RayCluster that is being deleted": ((cluster(deleting=True),), (), "math-1", 110),
    "a head that is being deleted": ((), (HEAD_GOES,), "math-1", 160),
    "a RayCluster that nobody has deleted, whose head goes": ((cluster(),), (HEAD_GOES,), "math-1", None),
    "both": ((cluster(deleting=True),), (HEAD_GOES,), "math-1", 160),
    "those of two attempts": (
        (cluster(deleting=True), cluster(0, deleting=True)),
        (HEAD_GOES,),
        "math-0, math-1",
        110,
    ),
}


@pytest.mark.parametrize(("clusters", "pods", "names", "seconds"), REMAINS.values(), ids=REMAINS)
def test_what_is_left_of_earlier_attempts_goes_first(clusters, pods, names, seconds):
    over, _ = failed()
    left = replace(over, clusters=clusters, pods=pods)
    plan = planned(left, 130)
    assert CreateCluster("math-2", 2) not in plan.actions
    text = f"Waiting for RayCluster {names} to be removed."
    assert rows(plan) == [ACCEPTED, ("PodsReady", "False", "WaitingForRemoval", text), FAILED, NOT_DEGRADED]
    assert plan.requeue_after == seconds
    if seconds is not None and "," not in names:
        assert CreateCluster("math-2", 2) in planned(left, 130 + seconds).actions


OLD_HEAD = pod("head", attempt=3)
EARLIER = {
    # of an earlier RLJob of this name: clusters, pods, the names that are told, for how many seconds they
    # are waited for
    "a RayCluster": ((cluster(3, owner="another"),), (), "math-3", None),
    "one that is being deleted": ((cluster(3, owner="another", deleting=True),), (), "math-3", None),
    "one without an owner": ((cluster(3, owner=None),), (OLD_HEAD,), "math-3", None),
    "a RayCluster and its head, which goes": (
        (cluster(3, owner="another"),),
        (replace(OLD_HEAD, deleting=at(200), deletion_grace=30),),
        "math-3",
        None,
    ),
    "a head whose RayCluster is gone": ((), (OLD_HEAD,), "math-3", None),
    "a head that is being deleted": (
        (),
        (replace(OLD_HEAD, deleting=at(200), deletion_grace=30),),
        "math-3",
        160,
    ),
    "heads of two attempts": (
        (),
        (
            replace(OLD_HEAD, deleting=at(200), deletion_grace=30),
            pod("head", attempt=4, deleting=at(210), deletion_grace=30),
        ),
        "math-3, math-4",
        160,
    ),
}
NOT_THIS_JOBS = (
    "Waiting for RayCluster {} to be removed: not this RLJob's, and its driver may write to the same run "
    "folder. Delete it where it does not go by itself."
)


@pytest.mark.parametrize(("clusters", "pods", "names", "seconds"), EARLIER.values(), ids=EARLIER)
def test_a_new_job_of_an_old_name_waits_for_what_is_left_of_the_old_one(clusters, pods, names, seconds):
    left = replace(NEW, clusters=clusters, pods=pods)
    plan = planned(left, 130)
    assert plan.actions == () and plan.requeue_after == seconds
    assert plan.status.start_time is None and plan.status.attempt == 0
    waits = ("PodsReady", "False", "WaitingForRemoval", NOT_THIS_JOBS.format(names))
    assert rows(plan) == [ACCEPTED, waits, ("Running", "False", "Pending", "No attempt runs.")]
    assert CreateCluster("math-1", 1) in planned(observe(left, plan, clusters=(), pods=()), 140).actions
    if seconds is not None and "," not in names:
        assert CreateCluster("math-1", 1) in planned(left, 130 + seconds).actions


ORPHAN = ((cluster(1, owner=None),), (pod("head"),), "math-1", None)


@pytest.mark.parametrize(
    ("clusters", "pods", "names", "seconds"),
    [*EARLIER.values(), ORPHAN],
    ids=[*EARLIER, "of the attempt before"],
)
def test_a_later_attempt_waits_for_it_too(clusters, pods, names, seconds):
    over, _ = failed()
    plan = planned(replace(over, clusters=clusters, pods=pods), 130)
    assert plan.actions == () and said_of(plan, "PodsReady")[1:] == (
        "WaitingForRemoval",
        NOT_THIS_JOBS.format(names),
    )


def test_what_is_left_of_this_job_and_of_an_earlier_one_is_told_together():
    over, _ = failed()
    left = replace(over, clusters=(cluster(1, deleting=True), cluster(3, owner=None)))
    text = "Waiting for RayCluster math-1 to be removed. " + NOT_THIS_JOBS.format("math-3")
    assert said_of(planned(left, 130), "PodsReady")[2] == text


NO_HINDRANCE = {
    "workers": ((), (pod("trainer"), pod("fastRollout"))),
    "a head whose driver has ended": ((), (pod("head", driver=end(1)),)),
    "a dead head": ((), (pod("head", phase="Failed"),)),
    "a head that only bears the labels": ((), (pod("head", cluster_uid=""),)),
    "an earlier job's head whose driver has ended": ((), (pod("head", attempt=3, driver=end(1)),)),
    "an earlier job's workers": ((), (pod("trainer", attempt=3), pod("fastRollout", attempt=3))),
}


@pytest.mark.parametrize(("clusters", "pods"), NO_HINDRANCE.values(), ids=NO_HINDRANCE)
def test_what_the_next_attempt_does_not_wait_for(clusters, pods):
    over, _ = failed()
    plan = planned(replace(over, clusters=clusters, pods=pods), 130)
    assert plan.actions == (EnsureAccess(), CreateCluster("math-2", 2))


def test_pods_under_the_next_attempts_name_go_first():
    over, _ = failed()
    plan = planned(replace(over, pods=(pod("trainer", attempt=2),)), 130)
    assert plan.actions == () and plan.requeue_after is None
    assert rows(plan)[1] == (
        "PodsReady",
        "False",
        "NameTaken",
        "Waiting for pods that KubeRay would take for those of RayCluster math-2 to go: math-2-trainer-0.",
    )
    others = tuple(pod("trainer", number, attempt=2, cluster_uid="") for number in range(7))
    words = "math-2-trainer-0, math-2-trainer-1, math-2-trainer-2 and 4 more."
    assert rows(planned(replace(over, pods=others), 130))[1][3].endswith(words)


def test_before_the_first_attempt_no_attempt_runs():
    plan = planned(replace(NEW, kuberay="missing"), 0)
    assert rows(plan)[2] == ("Running", "False", "Pending", "No attempt runs.")
    assert len(rows(plan)) == 3


def test_a_report_of_the_attempt_before_does_not_count_for_the_next():
    over, _ = failed()
    plan = planned(observe(over, planned(over, 119), training=said(suspended_at_step=5)), 120)
    assert plan.status.attempt == 2 and plan.status.phase == "Starting"
