"""What the conditions of a job say, whole: while it runs, when it is suspended, when it is done."""

from dataclasses import replace

import pytest

from rljob_operator.plan.observed import Observed
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
    spec,
    with_pods,
)

FAST = "fastRollout"
LOST_WORKER = pod(FAST, 1, phase="Failed", ready=False, main=end(1))
LOST_TRAINER = pod("trainer", phase="Failed", ready=False, main=end(1))
HEALTHY = ("False", "AllWorkersReady", "No worker is lost.")
TIMED_OUT = "The runtime did not answer within suspendGraceSeconds; waiting for the pods to end."


def rows(plan):
    """Status, reason and message of each condition but Accepted."""
    return {
        entry.type: (entry.status, entry.reason, entry.message)
        for entry in plan.status.conditions
        if entry.type != "Accepted"
    }


def resized(before, after, **answer):
    """A job whose pools are to have other sizes since 100 s, and the runtime's answer."""
    job = running(before)
    wish = observe(job, planned(job, 99), spec=spec(pools=after))
    asked = planned(wish, 100)
    return observe(wish, asked, training=said(observed_generation=2, **answer)) if answer else wish


DOING = {
    "nothing else": (running(), "Attempt 1 runs."),
    "rollout pods are to be freed": (
        resized((1, 3, 0), (1, 2, 0)),
        "Attempt 1 runs; waiting for the runtime to free pods of fast-rollout, to have 2, until 14:08 UTC.",
    ),
    "they are removed": (
        resized((1, 3, 0), (1, 2, 0), released=[pod(FAST).name]),
        "Attempt 1 runs; fast-rollout pods being removed, until 2 are left.",
    ),
    "the trainer is to stop": (
        resized((2, 2, 0), (1, 2, 0)),
        "Attempt 1 runs; waiting for the runtime to stop for trainer, to have 1, until 14:08 UTC.",
    ),
    "two pools": (
        resized((2, 3, 0), (1, 2, 0)),
        "Attempt 1 runs; waiting for the runtime to stop for trainer, to have 1, until 14:08 UTC; "
        "waiting for the runtime to free pods of fast-rollout, to have 2, until 14:08 UTC.",
    ),
    "the head is being deleted": (
        with_pods(running(), replace(pod("head"), deleting=at(130))),
        "Attempt 1 runs; its head pod is about to go.",
    ),
    "its RayCluster is gone": (
        replace(running(), clusters=()),
        "Attempt 1 runs; its head pod is about to go.",
    ),
}


@pytest.mark.parametrize(("observed", "text"), DOING.values(), ids=DOING)
def test_what_goes_on_besides_training(observed, text):
    said_now = rows(planned(observed, 100))
    assert said_now["Running"] == ("True", "Running", text)
    assert said_now["Degraded"] == HEALTHY


DEGRADED = {
    "a rollout worker": (
        LOST_WORKER,
        ("True", "RolloutWorkerLost"),
        "Waiting for 1 of 2 fast-rollout pods: Error, exit code 1. Training goes on without them.",
    ),
    "a trainer": (
        LOST_TRAINER,
        ("True", "TrainerWorkerLost"),
        "Waiting for 1 of 1 trainer pods: Error, exit code 1. "
        "Training goes on from the last checkpoint then.",
    ),
}


@pytest.mark.parametrize(("lost", "reason", "text"), DEGRADED.values(), ids=DEGRADED)
def test_a_lost_worker(lost, reason, text):
    observed = with_pods(running(), lost)
    plan = planned(observed, 100)
    assert rows(plan)["Degraded"] == (*reason, text)
    assert rows(planned(observe(observed, plan), 200))["Degraded"] == (*reason, text), "until all are ready"
    whole = planned(observe(observed, plan, pods=running().pods), 300)
    assert rows(whole)["Degraded"] == HEALTHY


def test_a_trainer_is_what_matters_where_both_are_lost():
    observed = with_pods(running(), LOST_WORKER, LOST_TRAINER)
    plan = planned(observed, 100)
    assert rows(plan)["Degraded"][1] == "TrainerWorkerLost"
    trainer_back = observe(observed, plan, pods=with_pods(running(), LOST_WORKER).pods)
    assert rows(planned(trainer_back, 200))["Degraded"][1] == "RolloutWorkerLost"


def asked(observed, changes=None):
    """The job after it was asked, at 100 s, to suspend."""
    wish = observe(observed, planned(observed, 99), spec=spec({"suspend": True, **(changes or {})}))
    return observe(wish, planned(wish, 100))


def suspended(text, reason="Suspending", status="False"):
    words = ("False", "Suspended", "The job is suspended.")
    return {"PodsReady": words, "Running": words, "Degraded": words, "Suspended": (status, reason, text)}


def test_a_suspension_from_the_request_to_the_last_pods_end():
    wish = observe(running(), planned(running(), 99), spec=spec({"suspend": True}))
    asks = planned(wish, 100)
    assert rows(asks) == {
        "PodsReady": ("True", "AllPodsReady", "All pods are ready."),
        "Running": ("True", "Running", "Attempt 1 runs."),
        "Degraded": HEALTHY,
        "Suspended": (
            "False",
            "Suspending",
            "Waiting for the runtime to write a checkpoint; pods go at 14:08 UTC at the latest.",
        ),
    }
    assert asks.status.suspend_time == "2026-11-21T14:03:40Z"
    answered = observe(wish, asks, training=said(suspended_at_step=7))
    release = planned(answered, 130)
    assert rows(release) == suspended("Waiting for the pods to end.")
    assert release.status.attempt_time == "2026-11-21T14:04:10Z"
    assert (release.status.cluster_name, release.status.head_pod, release.status.start_time) == (None,) * 3
    going = observe(answered, release, clusters=())
    assert rows(planned(going, 140)) == suspended("Waiting for the pods to end.")
    gone = planned(observe(going, planned(going, 140), pods=()), 150)
    assert rows(gone) == suspended(
        "Checkpoint of step 7 written, but gone with the pods (no storage.volume); all pods released.",
        "Suspended",
        status="True",
    )


VOLUME = {"storage.volume": {"persistentVolumeClaim": {"claimName": "runs"}}}
OLDER = said(checkpoint={"step": 3, "path": "p"})
UNKNOWN = "No new checkpoint; the job goes on from the volume's newest one, or anew without one"
KEPT = {
    # what: (changes of the spec, what the driver has said, what is told)
    "nothing": ({}, None, "No checkpoint; the job begins anew"),
    "what went with the pods": ({}, OLDER, "No checkpoint; the job begins anew"),
    "an older checkpoint": (VOLUME, OLDER, "No new checkpoint; the job goes on from that of step 3"),
    "what nobody told of": (VOLUME, None, UNKNOWN),
    "the answer came after all": (VOLUME, said(suspended_at_step=7), "Checkpoint of step 7 written"),
    "nothing was trained yet": ({}, said(suspended_at_step=0), "No checkpoint; the job begins anew"),
    "an answer of another attempt": (VOLUME, said(attempt=0, suspended_at_step=2), UNKNOWN),
}


@pytest.mark.parametrize(("changes", "training", "kept"), KEPT.values(), ids=KEPT)
def test_a_suspension_without_an_answer(changes, training, kept):
    job = asked(running(changes=changes), changes)
    late = planned(job, 400)
    assert rows(late) == suspended(TIMED_OUT, "SuspendTimedOut")
    going = observe(job, late, clusters=())
    assert rows(planned(going, 410)) == suspended(TIMED_OUT, "SuspendTimedOut")
    empty = observe(going, planned(going, 410), pods=(), training=training)
    gone = planned(empty, 420)
    told = suspended(
        f"The runtime did not answer in time. {kept}; all pods released.", "Suspended", status="True"
    )
    assert rows(gone) == told
    late_word = observe(empty, gone, training=said(suspended_at_step=9))
    assert rows(planned(late_word, 500)) == told, "what was released is not told anew"


def test_a_job_that_is_suspended_between_two_attempts_waits_for_the_pods_of_the_last():
    failed = with_pods(running(), replace(pod("head"), driver=end(1)))
    over = observe(failed, planned(failed, 110), clusters=(), pods=(pod("trainer", deleting=at(140)),))
    asks = observe(over, planned(over, 115), spec=spec({"suspend": True}))
    assert rows(planned(asks, 116)) == suspended("Waiting for the pods to end.")


def test_whatever_ends_an_attempt_ends_its_resizes():
    under_way = observe(resized((1, 3, 0), (1, 2, 0)), planned(resized((1, 3, 0), (1, 2, 0)), 100))
    assert under_way.job.status.scale_downs
    for code in (0, 1):
        ended = with_pods(under_way, replace(pod("head"), driver=end(code)))
        assert planned(ended, 120).status.scale_downs == []
    asks = observe(under_way, planned(under_way, 110), spec=spec({"suspend": True}, (1, 2, 0)))
    answered = replace(
        asks,
        job=replace(
            asks.job, status=asks.job.status.model_copy(update={"training": said(suspended_at_step=7)})
        ),
    )
    assert planned(answered, 120).status.scale_downs == []


def test_a_worker_that_is_lost_while_its_pool_grows():
    job = running()
    grows = observe(job, planned(job, 99), spec=spec(pools=(1, 4, 0)))
    waits = observe(grows, planned(grows, 100))
    assert rows(planned(waits, 110))["Degraded"] == HEALTHY
    replaced = with_pods(waits, pod(FAST, 2), without=(pod(FAST, 1).name,))
    plan = planned(replace(replaced, lost_workers=(LOST_WORKER,)), 120)
    assert rows(plan)["Degraded"][:2] == ("True", "RolloutWorkerLost"), "as many are ready as before"


def test_a_spec_that_cannot_be_read_is_looked_at_and_changes_nothing_else():
    job = running()
    unreadable = replace(job, job=replace(job.job, spec=None, invalid="spec.x: no.", generation=4))
    plan = planned(unreadable, 100)
    assert plan.status.observed_generation == 4 and plan.status.phase == "Running"
    done = with_pods(job, replace(pod("head"), driver=end(0)))
    finished_job = observe(done, planned(done, 100))
    unreadable = replace(finished_job, job=replace(finished_job.job, spec=None, invalid="spec.x: no."))
    assert planned(unreadable, 200).status == finished_job.job.status


def test_a_job_that_was_created_suspended():
    plan = planned(Observed(new_job(spec({"suspend": True})), (), ()), 0)
    said_now = suspended("Created suspended: nothing was started.", "Suspended", status="True")
    del said_now["Degraded"]
    assert rows(plan) == said_now


def finished(text, kind, reason, message):
    words = ("False", kind, text)
    return {"PodsReady": words, "Running": words, "Degraded": words, kind: ("True", reason, message)}


VOLUME = {
    "storage.volume": {"persistentVolumeClaim": {"claimName": "runs"}},
    "runPolicy.ttlSecondsAfterFinished": 50,
}


def test_a_job_that_is_done():
    done = with_pods(running(), replace(pod("head"), driver=end(0, "reward 0.9")))
    plan = planned(done, 100)
    assert rows(plan) == finished(
        "The job is finished.",
        "Complete",
        "Completed",
        "Trained 5 of 10 steps. reward 0.9 "
        "Model and report went with the pods: spec.storage.volume is not set.",
    )
    status = plan.status
    assert (status.completion_time, plan.requeue_after) == ("2026-11-21T14:03:40Z", None)
    assert (status.cluster_name, status.head_pod, status.scale_downs) == (None, None, [])


def test_a_job_that_is_done_and_has_a_volume():
    job = running(changes=VOLUME, training=said(attempt=0))
    plan = planned(with_pods(job, replace(pod("head"), driver=end(0))), 100)
    assert rows(plan)["Complete"] == (
        "True",
        "Completed",
        "Training is done. Model and report are in runs/default/math of the volume.",
    )
    assert plan.requeue_after == 50


def test_a_job_whose_pods_never_get_ready():
    new = Observed(new_job(spec({"runPolicy.startDeadlineSeconds": 600})), (), ())
    begun = observe(new, planned(new, 0), clusters=(cluster(),), pods=(pod("head"),))
    assert rows(planned(begun, 600))["Failed"] == (
        "True",
        "StartDeadlineExceeded",
        "What training needs was not ready within startDeadlineSeconds (600). "
        "Waiting for 1 of 1 trainer pods: not created yet; 2 of 2 fast-rollout pods: not created yet.",
    )


def test_a_job_that_is_given_up():
    job = asked(running(changes={"runPolicy.backoffLimit": 0}))
    back = observe(job, planned(job, 110), spec=spec({"runPolicy.backoffLimit": 0}))
    failed = planned(with_pods(back, replace(pod("head"), driver=end(1, "boom"))), 120)
    said_now = finished(
        "The job is finished.",
        "Failed",
        "BackoffLimitExceeded",
        "Attempts that failed: 1; backoffLimit is 0. The driver ended: exit code 1: boom",
    )
    assert rows(failed) == {**said_now, "Suspended": ("False", "Failed", "The job is finished.")}
    assert failed.status.failures == 1
