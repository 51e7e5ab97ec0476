"""An attempt runs when it trains, though rollout pods find no room; the start deadline is for what training
needs."""

from dataclasses import replace

import pytest

from rljob_api.status import LoadStatus
from rljob_operator.plan.observed import Helper, Observed
from rljob_operator.plan.times import stamp
from tests.support.operator.observations import (
    at,
    cluster,
    end,
    new_job,
    observe,
    planned,
    pod,
    pods,
    said,
    said_of,
    spec,
    told,
    waiting_pod,
    with_pods,
)

NEW = Observed(new_job(spec(pools=(1, 2, 0))), (), ())
FULL = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
NO_ROOM = waiting_pod("fastRollout", 1, unschedulable=FULL)
TRAINS = said(reward=0.5, time=stamp(at(90)))


def begun(*changed, training=None):
    """An attempt whose second rollout pod finds no room."""
    started = observe(NEW, planned(NEW, 0), clusters=(cluster(),), pods=pods())
    return replace(
        with_pods(started, NO_ROOM, *changed),
        job=replace(started.job, status=started.job.status.model_copy(update={"training": training})),
    )


SAID = {
    # what its driver has said: whether it trains
    "nothing": (None, False),
    "that it has begun": (said(time=stamp(at(90))), False),
    "a step": (TRAINS, True),
    "that it trains, before its first step": (said(load=LoadStatus(), time=stamp(at(90))), True),
    "a step, in another attempt": (TRAINS.model_copy(update={"attempt": 2}), False),
    "a step, before this RayCluster": (TRAINS.model_copy(update={"time": stamp(at(-5))}), False),
}


@pytest.mark.parametrize(("training", "trains"), SAID.values(), ids=SAID)
def test_it_runs_once_it_trains_though_a_rollout_pod_finds_no_room(training, trains):
    plan = planned(begun(training=training), 100)
    assert plan.status.phase == ("Running" if trains else "Starting")
    until = "." if trains else "; start deadline 14:32 UTC."
    words = f"Waiting for 1 of 2 fast-rollout pods: Insufficient nvidia.com/gpu{until}"
    assert said_of(plan, "PodsReady") == ("False", "WaitingForPods", words)
    if trains:
        text = f"{words} Training goes on without them."
        assert said_of(plan, "Degraded") == ("True", "RolloutWorkersMissing", text)
        assert "Running" in told(plan)
        [event] = [each.message for each in plan.events if each.reason == "Running"]
        assert event == "Not all pods are ready; step 5 of 10"


LACKING = {
    "the head": waiting_pod("head"),
    "the trainer": waiting_pod("trainer", unschedulable=FULL),
    "every rollout pod": waiting_pod("fastRollout", 0, unschedulable=FULL),
}


@pytest.mark.parametrize("training", [None, said(time=stamp(at(90)))], ids=["nothing said", "no step told"])
@pytest.mark.parametrize("lacking", LACKING.values(), ids=LACKING)
def test_without_what_training_needs_the_job_ends_at_the_start_deadline(lacking, training):
    observed = begun(lacking, training=training)
    assert planned(observed, 1799).status.phase == "Starting"
    assert said_of(planned(observed, 1800), "Failed")[1] == "StartDeadlineExceeded"


ENDED = Helper("warm-up", end(0))
WORDS = "container warm-up ended: Completed, exit code 0."
UNREADY = {
    # what is not ready: (pod, PodsReady says of it, Degraded)
    "the head, by a container that ended": (
        pod("head", ready=False, helper=ENDED),
        f"Waiting for the head pod: {WORDS}",
        ("False", "AllWorkersReady", "No worker is lost."),
    ),
    "the trainer, by a container that ended": (
        pod("trainer", ready=False, helper=ENDED),
        f"Waiting for 1 of 1 trainer pods: {WORDS}",
        (
            "True",
            "TrainerPodsNotReady",
            f"Waiting for 1 of 1 trainer pods: {WORDS} The driver tells of training all the same.",
        ),
    ),
    "the trainer, whose start has yet to be seen": (
        waiting_pod("trainer"),
        "Waiting for 1 of 1 trainer pods: starting.",
        (
            "True",
            "TrainerPodsNotReady",
            "Waiting for 1 of 1 trainer pods: starting. The driver tells of training all the same.",
        ),
    ),
}


@pytest.mark.parametrize("seconds", [100, 1800], ids=["at once", "at the start deadline"])
@pytest.mark.parametrize(("unready", "text", "degraded"), UNREADY.values(), ids=UNREADY)
def test_a_job_that_trains_runs_whichever_pod_is_not_ready(unready, text, degraded, seconds):
    """A pod is never ready again once one of its containers has ended, though Ray works in it."""
    observed = with_pods(begun(training=TRAINS), pod("fastRollout", 1), unready)
    plan = planned(observed, seconds)
    assert (plan.status.phase, plan.actions) == ("Running", ())
    assert said_of(plan, "PodsReady") == ("False", "WaitingForPods", text)
    assert said_of(plan, "Degraded") == degraded
    later = planned(observe(observed, plan), seconds + 5000)
    assert (later.status, later.actions, later.events) == (plan.status, (), ())


def test_with_it_the_start_deadline_ends_nothing():
    observed = begun()
    before = planned(observed, 1799)
    assert before.status.phase == "Starting" and before.requeue_after == 1
    plan = planned(observe(observed, before), 1800)
    assert plan.status.phase == "Running" and plan.actions == ()
    assert said_of(plan, "Degraded")[:2] == ("True", "RolloutWorkersMissing")
    assert said_of(plan, "PodsReady")[2].endswith("nvidia.com/gpu.")
    later = observe(observed, plan)
    assert planned(later, 5000).status == later.job.status


def test_it_is_degraded_until_all_pods_are_ready():
    runs = observe(begun(training=TRAINS), planned(begun(training=TRAINS), 100))
    still = planned(runs, 200)
    assert said_of(still, "Degraded")[:2] == ("True", "RolloutWorkersMissing") and still.events == ()
    whole = planned(with_pods(runs, pod("fastRollout", 1)), 300)
    assert said_of(whole, "Degraded")[:2] == ("False", "AllWorkersReady")
    assert said_of(whole, "PodsReady")[0] == "True"
    lost = replace(with_pods(runs, waiting_pod("fastRollout", 9), without=("math-1-fast-rollout-0",)))
    assert said_of(planned(lost, 300), "Degraded")[:2] == ("True", "RolloutWorkerLost")


def test_a_trainer_that_is_lost_meanwhile_is_told_as_that():
    runs = observe(begun(training=TRAINS), planned(begun(training=TRAINS), 100))
    lost = with_pods(runs, waiting_pod("trainer", 9), without=("math-1-trainer-0",))
    assert said_of(planned(lost, 300), "Degraded")[:2] == ("True", "TrainerWorkerLost")
