"""What is told, and that it is told once."""

from dataclasses import replace

import pytest

from rljob_api.status import ScaleDown
from tests.support.operator.observations import (
    at,
    end,
    observe,
    planned,
    pod,
    running,
    said,
    said_of,
    spec,
    told,
    waiting_pod,
    with_group,
    with_pods,
)


def messages(plan):
    return [(event.type, event.reason, event.message) for event in plan.events]


FAST = "fastRollout"
FIRST = pod(FAST).name
OOM = replace(pod(FAST), phase="Failed", ready=False, main=end(137, "", "OOMKilled"))
EVICTED = replace(pod(FAST), phase="Failed", ready=False, disrupted="Evicted", node="gpu-14")

LOSSES = {
    "out of memory": ((OOM,), f"Lost {FIRST} (OOMKilled, exit code 137)"),
    "evicted": ((EVICTED,), f"Lost {FIRST} (Evicted on node gpu-14)"),
    "gone at once": ((), "Lost 1 fast-rollout pod"),
}


@pytest.mark.parametrize(("changed", "message"), LOSSES.values(), ids=LOSSES)
def test_a_lost_rollout_worker_is_told_once_and_nothing_else_is_done(changed, message):
    observed = running()
    lost = with_pods(observed, *changed, without=() if changed else (FIRST,))
    plan = planned(lost, 100)
    assert messages(plan) == [("Warning", "RolloutWorkerLost", message)] and plan.actions == ()
    assert not planned(observe(lost, plan), 101).events
    replaced = with_pods(observe(lost, plan), waiting_pod(FAST, 9), without=(FIRST,))
    assert not planned(replaced, 110).events


REPLACED = {
    "out of memory": (OOM, f"Lost {FIRST} (OOMKilled, exit code 137)"),
    "evicted": (EVICTED, f"Lost {FIRST} (Evicted on node gpu-14)"),
    "deleted at once": (pod(FAST), f"Lost {FIRST} (deleted)"),
}


@pytest.mark.parametrize(("last", "message"), REPLACED.values(), ids=REPLACED)
@pytest.mark.parametrize("ready", [False, True], ids=["starting", "ready"])
def test_a_lost_worker_that_was_replaced_before_anybody_looked_is_told(last, message, ready):
    successor = pod(FAST, 9) if ready else waiting_pod(FAST, 9)
    observed = with_pods(running(), successor, without=(FIRST,))
    observed = replace(observed, lost_workers=(last,))
    plan = planned(observed, 100)
    assert messages(plan) == [("Warning", "RolloutWorkerLost", message)]
    assert said_of(plan, "Degraded")[:2] == (
        ("False", "AllWorkersReady") if ready else ("True", "RolloutWorkerLost")
    )
    assert not planned(replace(observe(observed, plan), lost_workers=()), 101).events


def test_workers_of_other_clusters_are_not_the_attempts():
    others = (pod(FAST, 0, attempt=2), replace(pod(FAST), cluster_uid="of an earlier one"))
    assert not planned(replace(running(), lost_workers=others), 100).events


@pytest.mark.parametrize("left", [0, 1, 2], ids=["all gone", "one goes", "both go"])
def test_pods_that_go_for_a_wish_that_was_taken_back_are_not_lost(left):
    """Fewer were asked for, the pods go, and then more are asked for again."""
    observed = running((1, 4, 0))
    names = tuple(pod(FAST, n).name for n in (2, 3))
    down = ScaleDown(pool=FAST, replicas=2, victims=list(names), asked_time="2026-11-21T14:03:00Z")
    status = observed.job.status.model_copy(update={"scale_downs": [down]})
    observed = replace(observed, job=replace(observed.job, status=status))
    leaving = [replace(pod(FAST, n), deleting=at(130)) for n in (2, 3)]
    observed = with_pods(observed, *leaving[:left], without=names)
    observed = with_group(observed, FAST, 2, names)
    plan = planned(replace(observed, lost_workers=tuple(leaving)), 100)
    assert not plan.events
    assert said_of(plan, "Degraded")[0] == "False"
    [action] = plan.actions
    assert action.replicas == 4


def test_several_losses_are_one_event():
    observed = running((1, 9, 0))
    dead = [replace(pod(FAST, n), phase="Failed", ready=False, main=end(1)) for n in range(8)]
    (event,) = planned(with_pods(observed, *dead), 100).events
    assert event.message.count("exit code 1") == 5 and event.message.endswith(", 3 more")


def test_a_lost_trainer_worker_is_told_and_starts_no_attempt():
    lost = with_pods(
        running(), replace(pod("trainer"), phase="Failed", ready=False, main=end(137, "", "OOMKilled"))
    )
    plan = planned(lost, 100)
    assert told(plan) == ["TrainerWorkerLost"] and plan.actions == ()
    assert (plan.status.attempt, plan.status.failures, plan.status.phase) == (1, 0, "Running")


def test_growing_is_told_when_it_is_asked_for():
    observed = running()
    wish = observe(observed, planned(observed, 99), spec=spec(pools=(1, 5, 1)))
    plan = planned(wish, 100)
    assert messages(plan) == [
        ("Normal", "ScaledUp", "fast-rollout 2 → 5"),
        ("Normal", "ScaledUp", "heavy-rollout 0 → 1"),
    ]
    assert not planned(observe(wish, plan), 101).events


def test_shrinking_is_told_when_the_pods_are_gone():
    observed = running((1, 3, 0))
    wish = observe(observed, planned(observed, 99), spec=spec(pools=(1, 2, 0)))
    asked = planned(wish, 100)
    assert not asked.events and asked.requeue_after == 300
    answered = observe(wish, asked, training=said(observed_generation=2, released=[FIRST]))
    taken = planned(answered, 110)
    assert not taken.events and taken.status.scale_downs[0].victims == [FIRST]
    leaving = with_group(observe(answered, taken), FAST, 2, (FIRST,))
    gone = with_pods(leaving, without=(FIRST,))
    clearing = planned(gone, 130)
    assert not clearing.events
    cleared = with_group(observe(gone, clearing), FAST, 2)
    assert messages(planned(cleared, 131)) == [("Normal", "ScaledDown", "fast-rollout: 1 removed, 2 wanted")]
    assert not planned(observe(cleared, planned(cleared, 131)), 132).events


def test_pods_that_go_without_an_answer_are_told_once():
    observed = running((1, 3, 0))
    wish = observe(observed, planned(observed, 99), spec=spec(pools=(1, 2, 0)))
    late = observe(wish, planned(wish, 100))
    plan = planned(late, 400)
    assert messages(plan) == [
        (
            "Warning",
            "DrainTimedOut",
            "fast-rollout 3 → 2 without the runtime's answer: drainGraceSeconds are over",
        )
    ]
    assert plan.status.scale_downs[0] == ScaleDown(
        pool=FAST,
        replicas=2,
        victims=["math-1-fast-rollout-2"],
        asked_time="2026-11-21T14:03:40Z",
        timed_out=True,
    )
    assert not planned(observe(late, plan), 401).events


def test_a_refusal_of_kuberay_is_told_once():
    observed = running()
    begun = replace(observed, pods=(), job=replace(observed.job, status=_before_its_pods(observed)))
    refused = replace(begun, clusters=(replace(observed.clusters[0], refusal="minReplicas is negative"),))
    plan = planned(refused, 10)
    assert messages(plan) == [
        (
            "Warning",
            "RayClusterRefused",
            "KubeRay refuses RayCluster math-1: minReplicas is negative; start deadline 14:32 UTC.",
        )
    ]
    assert not planned(observe(refused, plan), 11).events


def _before_its_pods(observed):
    """The status of the job as it was right after its cluster was asked for."""
    new = replace(
        observed, clusters=(), pods=(), job=replace(observed.job, status=type(observed.job.status)())
    )
    return planned(new, 0).status


def test_the_restart_tells_where_it_goes_on_and_why():
    kept = {"storage.volume": {"persistentVolumeClaim": {"claimName": "runs"}}}
    observed = running(changes=kept, training=said(checkpoint={"step": 5, "path": "p"}))
    plan = planned(with_pods(observed, replace(pod("head"), driver=end(1, "boom"))), 100)
    assert messages(plan) == [
        (
            "Warning",
            "Restarting",
            "Attempt 1 is over. The next one begins at 14:03:50 UTC, from the checkpoint of step 5. "
            "The driver ended: exit code 1: boom",
        )
    ]
