"""A job's way from its creation to its end, decision by decision."""

import time
import tracemalloc
from dataclasses import replace

import pytest

from rljob_operator.plan.decide import decide, rests_on_absence
from rljob_operator.plan.observed import Observed
from rljob_operator.plan.plan import CreateCluster, DeleteCluster, DeleteJob, EnsureAccess
from tests.support.operator.observations import (
    UID,
    at,
    cluster,
    end,
    new_job,
    observe,
    planned,
    pod,
    pods,
    running,
    said,
    said_of,
    spec,
    told,
    waiting_pod,
    with_pods,
)

NEW = Observed(new_job(spec(pools=(1, 2, 0))), (), ())
CREATE = (EnsureAccess(), CreateCluster("math-1", 1))


def test_a_job_from_creation_to_deletion():
    new = replace(NEW, job=new_job(spec({"runPolicy.ttlSecondsAfterFinished": 100}, (1, 2, 0))))
    created = planned(new, 0)
    assert created.actions == CREATE
    assert (created.status.phase, created.status.attempt, created.status.cluster_name) == (
        "Starting",
        1,
        "math-1",
    )
    assert created.requeue_after == 1800 and not created.events

    made = observe(new, created, clusters=(cluster(status_seen=False),))
    seen = planned(made, 1)
    assert seen.actions == () and not seen.events and seen.requeue_after == 9
    assert seen.status == made.job.status, "a write for each job that says nothing new"

    starting = observe(
        made, seen, clusters=(cluster(),), pods=(pod("head"), *pods()[1:2], waiting_pod("fastRollout"))
    )
    waits = planned(starting, 20)
    assert told(waits) == ["CreatedRayCluster"]
    assert waits.status.head_pod == pod("head").uid and waits.status.phase == "Starting"
    assert [entry.summary for entry in waits.status.pools] == ["1/1", "0/2", "0/0"]
    assert (waits.status.fast_rollout_replicas, waits.status.fast_rollout_selector) == (
        1,
        "rljob.dev/job=math,rljob.dev/pool=fastRollout",
    )

    ready = observe(starting, waits, pods=pods(), training=said(step=0))
    runs = planned(ready, 60)
    assert runs.status.phase == "Running" and runs.requeue_after is None
    assert [(event.reason, event.message) for event in runs.events] == [
        ("Running", "All pods are ready; step 0 of 10")
    ]

    done = with_pods(
        observe(ready, runs, training=said(step=10)),
        replace(pod("head"), ready=False, driver=end(0, "reward 0.9")),
    )
    complete = planned(done, 3600)
    assert complete.actions == (DeleteCluster("math-1", "cluster-1"),)
    assert complete.status.phase == "Complete" and complete.status.cluster_name is None
    assert said_of(complete, "Complete") == (
        "True",
        "Completed",
        "Trained 10 of 10 steps. reward 0.9 "
        "Model and report went with the pods: spec.storage.volume is not set.",
    )
    assert said_of(complete, "Running")[0] == said_of(complete, "PodsReady")[0] == "False"
    assert told(complete) == ["Complete"] and complete.requeue_after == 100

    over = observe(done, complete, clusters=(), pods=())
    assert planned(over, 3699).actions == () and planned(over, 3699).requeue_after == 1
    assert planned(over, 3700).actions == (DeleteJob(UID),)


def test_a_running_job_that_nothing_happens_to_costs_nothing():
    observed = running()
    plan = planned(observed, 1000)
    assert plan.status == observed.job.status
    assert (plan.actions, plan.events, plan.requeue_after) == ((), (), None)


def test_progress_alone_changes_nothing_of_the_operators():
    observed = running()
    later = observe(observed, planned(observed, 100), training=said(step=7))
    assert planned(later, 1000).status == later.job.status


def test_a_lost_create_is_made_good():
    lost = observe(NEW, planned(NEW, 0))
    again = planned(lost, 5)
    assert again.actions == CREATE and again.requeue_after == 10
    assert again.status == lost.job.status and not again.events


LEFT_ALONE = {
    "managed by another": (new_job(managed_by="kueue.x-k8s.io/multikueue"), None),
    "being deleted": (new_job(deleting=True), ()),
}


@pytest.mark.parametrize(("job", "actions"), LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_jobs_that_are_left_alone(job, actions):
    plan = decide(Observed(job, (cluster(),), pods()), at(0))
    if actions is None:
        assert plan is None
    else:
        assert (plan.actions, plan.events, plan.status) == ((), (), job.status)


HINDRANCES = {
    "no KubeRay": ({"kuberay": "missing"}, "KubeRayMissing", "install KubeRay 1.4 or newer"),
    "an old KubeRay": (
        {"kuberay": "unsupported", "kuberay_detail": "ray.io/v1 is not served"},
        "KubeRayUnsupported",
        "ray.io/v1 is not served",
    ),
    "another's RayCluster of that name": (
        {"clusters": (cluster(owner="another"),)},
        "NameTaken",
        "RayCluster math-1 exists and is not this RLJob's",
    ),
    "pods of an earlier job of that name": (
        {"pods": (pod("trainer", cluster_uid="old"),)},
        "NameTaken",
        "would take for those of RayCluster math-1 to go: math-1-trainer-0",
    ),
}


@pytest.mark.parametrize(("changes", "reason", "text"), HINDRANCES.values(), ids=HINDRANCES)
def test_what_keeps_a_job_from_beginning_is_told_and_no_clock_runs(changes, reason, text):
    observed = replace(NEW, **changes)
    plan = planned(observed, 0)
    assert plan.actions == () and plan.status.phase == "Pending" and plan.requeue_after is None
    status, why, message = said_of(plan, "PodsReady")
    assert (status, why) == ("False", reason) and text in message
    late = planned(observe(observed, plan), 100_000)
    assert late.status.phase == "Pending" and late.status == plan.status
    freed = replace(observe(observed, plan), kuberay="ready", clusters=(), pods=())
    assert planned(freed, 100_000).actions == CREATE


def test_a_spec_that_cannot_be_rendered_starts_nothing_and_says_why():
    invalid = replace(NEW, job=new_job(invalid="spec.image must be set."))
    plan = planned(invalid, 0)
    assert plan.actions == () and plan.status.phase == "Pending" and told(plan) == ["InvalidSpec"]
    status, reason, message = said_of(plan, "Accepted")
    assert (status, reason) == ("False", "InvalidSpec")
    assert message.startswith("spec.image must be set. Set spec.suspend")
    mended = observe(invalid, plan, spec=spec({"image": "i"}))
    mended = replace(mended, job=replace(mended.job, invalid=None))
    assert planned(mended, 9).actions == CREATE
    assert said_of(planned(mended, 9), "Accepted")[0] == "True"


def test_a_spec_that_cannot_be_read_leaves_what_runs_alone():
    observed = running()
    unreadable = replace(observed, job=replace(observed.job, spec=None, invalid="spec.new: unknown field."))
    plan = planned(unreadable, 100)
    assert plan.actions == () and plan.status.phase == "Running"
    assert said_of(plan, "Accepted")[:2] == ("False", "InvalidSpec")


def test_what_no_attempt_needs_is_deleted_of_a_job_that_cannot_be_read_once_it_has_ended():
    observed = running()
    later = replace(observed, clusters=(*observed.clusters, cluster(2)))
    unreadable = replace(later, job=replace(later.job, spec=None, invalid="spec.new: unknown field."))
    assert planned(unreadable, 100).actions == ()
    done = observe(later, planned(with_pods(later, replace(pod("head"), driver=end(0))), 100))
    unreadable = replace(done, job=replace(done.job, spec=None, invalid="spec.new: unknown field."))
    assert planned(unreadable, 110).actions == (
        DeleteCluster("math-1", "cluster-1"),
        DeleteCluster("math-2", "cluster-2"),
    )


def test_a_moment_that_has_come_is_not_waited_for():
    """KubeRay's time to take notice of a RayCluster is over in this very moment; the next is the start
    deadline."""
    made = observe(NEW, planned(NEW, 0), clusters=(cluster(status_seen=False),))
    assert planned(made, 10).requeue_after == 1790


DEADLINES = {
    "kuberay refuses": ({"refusal": "minReplicas is above maxReplicas"}, "minReplicas is above maxReplicas"),
    "kuberay is down": ({"status_seen": False}, "taken no notice of RayCluster math-1"),
    "nothing told": ({}, "Waiting for the head pod: not created yet; 1 of 1 trainer pods: not created yet"),
}


@pytest.mark.parametrize(("fields", "text"), DEADLINES.values(), ids=DEADLINES)
def test_pods_that_never_get_ready_end_the_job_at_the_start_deadline(fields, text):
    begun = observe(NEW, planned(NEW, 0), clusters=(cluster(**fields),))
    waits = planned(begun, 10)
    assert text in said_of(waits, "PodsReady")[2]
    assert said_of(waits, "PodsReady")[2].endswith("; start deadline 14:32 UTC.")
    assert planned(observe(begun, waits), 1799).status.phase == "Starting"
    late = planned(observe(begun, waits), 1800)
    assert (
        said_of(late, "Failed")[:2] == ("True", "StartDeadlineExceeded")
        and text in said_of(late, "Failed")[2]
    )
    assert late.actions == (DeleteCluster("math-1", "cluster-1"),)


def test_the_start_deadline_is_over_once_all_pods_were_ready():
    observed = with_pods(
        running(), waiting_pod("fastRollout", 0, unschedulable="0/3 nodes are available: 3 busy.")
    )
    plan = planned(observed, 5000)
    assert plan.status.phase == "Running"
    assert said_of(plan, "PodsReady") == (
        "False",
        "WaitingForPods",
        "Waiting for 1 of 2 fast-rollout pods: busy.",
    )


def test_pods_that_are_ready_at_the_very_end_of_the_deadline_count():
    begun = observe(NEW, planned(NEW, 0), clusters=(cluster(),), pods=pods())
    assert planned(begun, 1800).status.phase == "Running"


@pytest.mark.parametrize("between", [False, True], ids=["while it runs", "between two attempts"])
def test_the_active_deadline_counts_over_all_attempts(between):
    observed = running(changes={"runPolicy.activeDeadlineSeconds": 500})
    if between:
        failed = with_pods(observed, replace(pod("head"), driver=end(1)))
        observed = observe(failed, planned(failed, 495), clusters=(), pods=())
    assert planned(observed, 499).requeue_after == 1
    plan = planned(observed, 500)
    assert said_of(plan, "Failed")[1] == "DeadlineExceeded"


def test_a_result_wins_over_a_deadline():
    observed = running(changes={"runPolicy.activeDeadlineSeconds": 500})
    assert planned(with_pods(observed, replace(pod("head"), driver=end(0))), 9000).status.phase == "Complete"


def test_an_end_is_final():
    done = with_pods(running(), replace(pod("head"), driver=end(0)))
    complete = planned(done, 100)
    for later in (
        observe(done, complete, spec=spec({"suspend": True})),
        observe(done, complete, spec=spec(pools=(2, 3, 1))),
        with_pods(observe(done, complete), replace(pod("head"), driver=end(1))),
    ):
        plan = planned(later, 9000)
        assert said_of(plan, "Complete") == said_of(complete, "Complete")
        assert plan.status.phase == "Complete" and not plan.events
        assert plan.status.observed_generation == later.job.generation


def test_a_cluster_that_no_attempt_needs_is_deleted_and_another_owners_is_not():
    observed = running()
    extra = replace(
        observed,
        clusters=(*observed.clusters, cluster(7), cluster(8, deleting=True), cluster(9, owner="another")),
    )
    assert planned(extra, 100).actions == (DeleteCluster("math-7", "cluster-7"),)


def test_a_cluster_deleted_by_somebody_is_made_again_as_the_next_attempt():
    observed = running()
    gone = replace(observed, clusters=())
    waits = planned(gone, 400)
    assert waits.actions == () and waits.status.phase == "Running", "its head still runs"
    over = observe(gone, waits, pods=())
    restarting = planned(over, 430)
    assert restarting.status.phase == "Restarting" and restarting.status.failures == 0
    begun = planned(observe(over, restarting), 431)
    assert begun.actions == (EnsureAccess(), CreateCluster("math-2", 2))


def test_a_cluster_deleted_before_it_had_a_head_is_made_again_under_its_name():
    begun = observe(NEW, planned(NEW, 0), clusters=(cluster(),))
    seen = planned(begun, 5)
    assert planned(observe(begun, seen, clusters=()), 10).actions == CREATE


def test_pods_of_an_earlier_job_of_the_same_name_are_not_this_ones():
    begun = observe(NEW, planned(NEW, 0), clusters=(cluster(),))
    old = replace(begun, pods=pods(cluster_uid="the-old-one"))
    plan = planned(old, 10)
    assert plan.status.head_pod is None and plan.status.phase == "Starting"
    assert [entry.current for entry in plan.status.pools] == [0, 0, 0]


def test_ten_thousand_pods_are_few_megabytes_and_one_short_decision():
    sizes = (2000, 4000, 4000)
    tracemalloc.start()
    many = pods(sizes)
    megabytes = tracemalloc.get_traced_memory()[0] / 1e6
    tracemalloc.stop()
    observed = replace(running(sizes), pods=many)
    began = time.process_time()
    assert planned(observed, 100).status == observed.job.status
    assert megabytes < 10 and time.process_time() - began < 0.5


def test_a_kuberay_that_is_silent_is_told_after_its_time():
    created = planned(NEW, 0)
    made = observe(NEW, created, clusters=(cluster(status_seen=False),))
    assert said_of(planned(made, 9), "PodsReady")[1] == "CreatingRayCluster"
    status, reason, message = said_of(planned(made, 10), "PodsReady")
    assert (status, reason) == ("False", "WaitingForKubeRay") and "may be down" in message


@pytest.mark.parametrize(("trainers", "asked"), [(3, None), (1, 1)], ids=["more: not begun", "fewer: asked"])
def test_a_trainer_does_not_grow_while_the_spec_is_refused(trainers, asked):
    before = running((2, 2, 0))
    refused = replace(
        before,
        job=replace(before.job, spec=spec(pools=(trainers, 2, 0)), generation=2, invalid="spec.x: no."),
    )
    plan = planned(refused, 70)
    assert plan.actions == ()
    assert next((entry.replicas for entry in plan.status.scale_downs), None) == asked
    allowed = replace(refused, job=replace(refused.job, invalid=None))
    assert [entry.replicas for entry in planned(allowed, 70).status.scale_downs] == [trainers]


OVER = observe(replace(running(), pods=()), planned(replace(running(), pods=()), 100), clusters=(), pods=())
RESTS = {
    # what: (the observation, the seconds, whether the plan rests on what is not there)
    "all is well": (running(), 100, False),
    "a worker is lost": (with_pods(running(), without=("math-1-trainer-0",)), 100, False),
    "no head is there": (replace(running(), pods=()), 100, True),
    "the driver is done": (with_pods(running(), pod("head", driver=end(0))), 100, True),
    "too long": (running(changes={"runPolicy.activeDeadlineSeconds": 90}), 100, True),
    "the next attempt is due in a while": (OVER, 101, False),
    "the next attempt begins": (OVER, 200, True),
    "the first attempt begins": (Observed(new_job(), (), ()), 0, False),
}


@pytest.mark.parametrize(("observed", "seconds", "rests"), RESTS.values(), ids=RESTS)
def test_which_plans_rest_on_what_is_not_there(observed, seconds, rests):
    assert rests_on_absence(observed.job.status, planned(observed, seconds)) == rests
