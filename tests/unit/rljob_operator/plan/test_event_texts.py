"""The Events of a job's life, word for word and with their type: what `kubectl get events` shows."""

from dataclasses import replace

import pytest

from rljob_operator.plan.job_events import events
from rljob_operator.plan.observed import Observed
from tests.support.operator.observations import (
    cluster,
    end,
    new_job,
    observe,
    planned,
    pod,
    pods,
    running,
    said,
    spec,
    with_pods,
)

NEW = Observed(new_job(), (), ())
ASKED = observe(NEW, planned(NEW, 0))
MADE = replace(ASKED, clusters=(cluster(),))
SEEN = observe(MADE, planned(MADE, 1))
"""Its RayCluster is made, and that was told."""


def messages(plan):
    return [(event.type, event.reason, event.message) for event in plan.events]


STARTS = {
    "no report yet": (None, ""),
    "the first step": (said(step=0, total_steps=1), "; step 0 of 1"),
    "how many steps there are is not known yet": (said(step=0, total_steps=0), ""),
    "a report of another attempt": (said(attempt=2), ""),
}


@pytest.mark.parametrize(("training", "step"), STARTS.values(), ids=STARTS)
def test_a_cluster_that_is_made_and_a_job_that_runs(training, step):
    assert messages(planned(MADE, 1)) == [("Normal", "CreatedRayCluster", "Created RayCluster math-1")]
    ready = observe(SEEN, planned(SEEN, 2), pods=pods(), training=training)
    assert messages(planned(ready, 60)) == [("Normal", "Running", f"All pods are ready{step}")]


def test_a_cluster_that_is_made_once_its_name_is_free():
    taken = replace(ASKED, clusters=(cluster(owner="another"),))
    plan = planned(taken, 1)
    assert messages(plan) == [
        (
            "Warning",
            "NameTaken",
            "RayCluster math-1 exists and is not this RLJob's: waiting for it to go; "
            "start deadline 14:32 UTC.",
        )
    ]
    made = observe(taken, plan, clusters=(cluster(),))
    assert messages(planned(made, 5)) == [("Normal", "CreatedRayCluster", "Created RayCluster math-1")]


def test_a_spec_that_cannot_be_used_is_told_once_by_what_it_lacks():
    invalid = replace(NEW, job=new_job(invalid="spec.image must be set."))
    assert messages(planned(invalid, 0)) == [
        (
            "Warning",
            "InvalidSpec",
            "spec.image must be set. Set spec.suspend to true to be able to change it, or delete the RLJob.",
        )
    ]


def test_a_spec_that_could_never_be_read_is_told_too():
    unreadable = replace(NEW, job=replace(new_job(invalid="spec.new: unknown field."), spec=None))
    (event,) = planned(unreadable, 0).events
    assert (event.type, event.reason) == ("Warning", "InvalidSpec")
    assert event.message.startswith("spec.new: unknown field.")


def test_a_change_that_waits_for_the_next_attempt():
    job = running()
    changed = observe(job, planned(job, 61), spec=spec({"training.optimizer.learningRate": 0.5}))
    assert messages(planned(changed, 100)) == [
        (
            "Warning",
            "SpecOutdated",
            "The spec is valid. Attempt 1 goes on with an earlier one: set spec.suspend to true until the "
            "phase is Suspended, for the change to take effect.",
        )
    ]


def test_a_lost_head_is_told_apart_from_what_follows():
    why = "Head pod math-1-head-0 ended: NodeLost, node gpu-3."
    lost = pod("head", disrupted="NodeLost", node="gpu-3", phase="Failed")
    observed = replace(running(), pods=pods()[1:], lost_heads=(lost,))
    first, second = messages(planned(observed, 100))
    assert first[:2] == ("Warning", "HeadLost") and first[2].startswith(why)
    assert [message[2].count("NodeLost") for message in (first, second)] == [1, 1]
    assert second[:2] == ("Warning", "Restarting")
    assert second[2].startswith(f"Attempt 1 is over. The next one begins at 14:03:50 UTC, anew. {why}")


VOLUME = {"storage.volume": {"persistentVolumeClaim": {"claimName": "runs"}}}
SAVED = {"path": "p", "step": 39}
GOES_ON = {
    # what: (changes of the spec, the newest checkpoint that a driver told of, where the next attempt begins)
    "nothing is kept": ({}, None, "anew"),
    "it went with the pods": ({}, SAVED, "anew"),
    "what is on the volume": (VOLUME, SAVED, "from the checkpoint of step 39"),
    "what nobody told of": (
        VOLUME,
        None,
        "from the volume's newest checkpoint, or anew without one",
    ),
}


@pytest.mark.parametrize(("changes", "saved", "where"), GOES_ON.values(), ids=GOES_ON)
def test_where_the_next_attempt_goes_on(changes, saved, where):
    observed = running(changes=changes, training=said(checkpoint=saved))
    plan = planned(with_pods(observed, replace(pod("head"), driver=end(1, "boom"))), 100)
    [event] = [each.message for each in plan.events if each.reason == "Restarting"]
    assert event.startswith(f"Attempt 1 is over. The next one begins at 14:03:50 UTC, {where}. ")


def test_a_next_attempt_of_which_no_time_is_known():
    observed = with_pods(running(), replace(pod("head"), driver=end(1, "boom")))
    over = planned(observed, 100).status.model_copy(update={"attempt_time": None})
    (event,) = events(observed, observed.job.spec, over)
    assert event.message.startswith("Attempt 1 is over. The next one begins, anew. ")


def test_a_suspension_and_its_end():
    job = running()
    wish = observe(job, planned(job, 99), spec=spec({"suspend": True}))
    asked = observe(wish, planned(wish, 100))
    assert messages(planned(wish, 100)) == []
    late = planned(asked, 400)
    assert messages(late) == [
        ("Warning", "SuspendTimedOut", "The runtime did not answer within suspendGraceSeconds")
    ]
    going = observe(asked, late, clusters=())
    assert messages(planned(going, 410)) == []
    gone = observe(going, planned(going, 410), pods=())
    suspended = planned(gone, 420)
    assert messages(suspended) == [
        (
            "Normal",
            "Suspended",
            "The runtime did not answer in time. No checkpoint; the job begins anew; all pods released.",
        )
    ]
    idle = observe(gone, suspended)
    assert messages(planned(idle, 430)) == []
    resumed = observe(idle, planned(idle, 430), spec=spec())
    plan = planned(resumed, 440)
    assert messages(plan) == [("Normal", "Resumed", "The job goes on.")]
    assert messages(planned(observe(resumed, plan), 441)) == []


def test_only_a_job_that_ran_loses_workers():
    lost = pod("fastRollout", 1, phase="Failed", ready=False, main=end(1))
    starting = replace(SEEN, lost_workers=(lost,))
    assert messages(planned(starting, 50)) == []
    assert messages(planned(replace(starting, pods=pods()), 60)) == [
        ("Normal", "Running", "All pods are ready")
    ]


def test_workers_of_which_only_the_number_is_known():
    both = with_pods(running(), without=(pod("fastRollout").name, pod("fastRollout", 1).name))
    assert messages(planned(both, 100)) == [("Warning", "RolloutWorkerLost", "Lost 2 fast-rollout pods")]


def test_the_end_of_a_job():
    done = with_pods(running(), replace(pod("head"), driver=end(0, "reward 0.9")))
    plan = planned(done, 100)
    assert messages(plan) == [
        (
            "Normal",
            "Complete",
            "Trained 5 of 10 steps. reward 0.9 "
            "Model and report went with the pods: spec.storage.volume is not set.",
        )
    ]
    assert messages(planned(observe(done, plan), 101)) == []
    late = running(changes={"runPolicy.activeDeadlineSeconds": 500})
    assert messages(planned(late, 500)) == [
        (
            "Warning",
            "Failed",
            "DeadlineExceeded: The job was active for longer than activeDeadlineSeconds (500).",
        )
    ]
