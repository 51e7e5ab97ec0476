"""A job in a Kueue queue: how it waits, what its clocks count, and what an eviction costs."""

from dataclasses import replace

import pytest

from rljob_operator.plan.believed import plausible
from rljob_operator.plan.observed import CreationFailure, Observed, Queue, Record
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
    pods,
    said_of,
    spec,
    told,
    waiting_pod,
    with_pods,
)

QUEUE = Queue("team-a", "high")
CLOCKS = {"runPolicy.startDeadlineSeconds": 100, "runPolicy.activeDeadlineSeconds": 1000}
HELD = cluster(queue="team-a", suspended=True)
ADMITTED = replace(HELD, suspended=False)
WAITS = "Waiting for Kueue to admit RayCluster math-1 to queue team-a."
DELETED = {"deleting": at(5230), "deletion_grace": 30}
"""Deleted 5200 s after the job's creation."""


def begun(**changes):
    """A queued job whose first RayCluster was asked for."""
    new = Observed(new_job(spec({**CLOCKS, **changes}), queue=QUEUE), (), ())
    return observe(new, planned(new, 0))


def waiting():
    """Its RayCluster is there, suspended."""
    seen = replace(begun(), clusters=(HELD,))
    return observe(seen, planned(seen, 1))


def running():
    """It was admitted after 5000 s, and runs since 5060 s."""
    admitted = replace(waiting(), clusters=(ADMITTED,))
    starting = replace(observe(admitted, planned(admitted, 5000)), pods=pods())
    return observe(starting, planned(starting, 5060))


def evicted(**head):
    """Kueue has suspended its RayCluster, and KubeRay deletes the pods; workers end first."""
    observed = replace(running(), clusters=(HELD,))
    return replace(observed, pods=(replace(pod("head"), **{"ready": False, **DELETED, **head}),))


def clocks(plan):
    return plan.status.attempt_time, plan.status.start_time


def test_a_queued_job_begins_with_a_cluster_and_without_a_clock():
    new = Observed(new_job(queue=QUEUE), (), ())
    plan = planned(new, 0)
    assert plan.actions == (EnsureAccess(), CreateCluster("math-1", 1))
    assert (plan.status.phase, plan.status.attempt, clocks(plan)) == ("Pending", 1, (None, None))
    assert said_of(plan, "PodsReady") == ("False", "CreatingRayCluster", "Creating RayCluster math-1.")
    assert said_of(plan, "Running") == ("False", "Queued", "Attempt 1 waits for admission.")
    assert plan.requeue_after is None


@pytest.mark.parametrize("status_seen", [False, True], ids=["KubeRay is silent", "KubeRay knows it"])
@pytest.mark.parametrize("seconds", [1, 100_000])
def test_it_waits_for_its_admission_as_long_as_it_takes(seconds, status_seen):
    observed = replace(begun(), clusters=(replace(HELD, status_seen=status_seen),))
    plan = planned(observed, seconds)
    assert said_of(plan, "PodsReady") == ("False", "WaitingForAdmission", WAITS)
    assert (plan.status.phase, plan.actions, told(plan)) == ("Pending", (), ["CreatedRayCluster"])
    again = planned(observe(observed, plan), seconds + 100_000)
    assert again.status == plan.status and (again.actions, again.events) == ((), ())


def test_its_clocks_begin_when_the_admission_is_seen():
    observed = replace(waiting(), clusters=(ADMITTED,))
    plan = planned(observed, 5000)
    assert (plan.status.phase, plan.requeue_after) == ("Starting", 100)
    assert clocks(plan) == ("2026-11-21T15:25:20Z",) * 2
    assert said_of(plan, "PodsReady")[1:] == (
        "WaitingForPods",
        "Waiting for the head pod: not created yet; 1 of 1 trainer pods: not created yet; "
        "2 of 2 fast-rollout pods: not created yet; start deadline 15:27 UTC.",
    )
    starting = observe(observed, plan, pods=(waiting_pod("head"),))
    assert planned(starting, 5099).status.phase == "Starting"
    assert said_of(planned(starting, 5100), "Failed")[1] == "StartDeadlineExceeded"


def test_the_active_deadline_counts_from_the_admission():
    observed = running()
    assert planned(observed, 5999).status.phase == "Running"
    assert said_of(planned(observed, 6000), "Failed")[1] == "DeadlineExceeded"


def test_an_admitted_attempt_waits_for_its_pods():
    plan = planned(replace(begun(), clusters=(ADMITTED,)), 10)
    assert said_of(plan, "PodsReady")[1] == "WaitingForPods"
    assert plan.status.attempt_time == "2026-11-21T14:02:10Z"


BY_SOMEBODY = cluster(suspended=True)
BY_SOMEBODY_TEXT = (
    "RayCluster math-1 is suspended by somebody else (spec.suspend of RayCluster math-1): set it to false; "
    "where Kueue does it, give RLJob math the label kueue.x-k8s.io/queue-name, then suspend and resume the "
    "RLJob."
)


def without_queue(*existing, seconds=1, **changes):
    """A job without a queue whose RayCluster somebody suspends."""
    new = Observed(new_job(spec({**CLOCKS, **changes})), (), ())
    seen = observe(new, planned(new, 0), clusters=(BY_SOMEBODY,), pods=existing)
    return observe(seen, planned(seen, seconds))


@pytest.mark.parametrize("seconds", [10, 101, 999])
def test_a_job_that_somebody_suspends_without_a_queue_says_so_and_has_no_start_deadline(seconds):
    plan = planned(without_queue(), seconds)
    assert (plan.status.phase, plan.actions) == ("Starting", ())
    assert said_of(plan, "PodsReady") == ("False", "RayClusterSuspended", BY_SOMEBODY_TEXT)
    assert said_of(plan, "Running") == ("False", "Starting", "Attempt 1 starts.")
    assert (clocks(plan), plan.requeue_after) == ((None, stamp(at(0))), 1000 - seconds)


def test_the_active_deadline_of_a_job_without_a_queue_counts_on():
    assert said_of(planned(without_queue(), 1000), "Failed")[1] == "DeadlineExceeded"


def test_its_start_deadline_counts_from_when_it_is_seen_to_go_on():
    free = replace(without_queue(), clusters=(cluster(),))
    goes_on = observe(free, planned(free, 500))
    assert said_of(planned(goes_on, 599), "PodsReady")[1] == "WaitingForPods"
    assert said_of(planned(goes_on, 600), "Failed")[1] == "StartDeadlineExceeded"


def test_one_that_is_suspended_with_pods_waits_for_their_end_past_its_start_deadline():
    plan = planned(without_queue(waiting_pod("head")), 200)
    assert (plan.status.phase, plan.actions) == ("Starting", ())
    assert said_of(plan, "PodsReady")[2] == BY_SOMEBODY_TEXT


def test_one_that_is_suspended_while_it_runs_ends_with_a_word_on_why():
    new = Observed(new_job(spec(CLOCKS)), (), ())
    seen = observe(new, planned(new, 0), clusters=(cluster(),), pods=pods())
    stopped = observe(seen, planned(seen, 5), clusters=(BY_SOMEBODY,), pods=())
    plan = planned(stopped, 50)
    text = "RayCluster math-1 was suspended by somebody else (spec.suspend). The head pod of"
    assert said_of(plan, "Running") == ("False", "HeadLost", f"{text} RayCluster math-1 is gone.")
    assert plan.status.failures == 0


def test_an_admission_that_is_taken_back_before_there_are_pods_costs_nothing():
    admitted = replace(waiting(), clusters=(ADMITTED,))
    back = observe(admitted, planned(admitted, 5000), clusters=(HELD,))
    plan = planned(back, 9000)
    assert said_of(plan, "PodsReady")[1] == "WaitingForAdmission"
    assert (plan.status.attempt, plan.status.phase, clocks(plan)) == (1, "Pending", (None, None))


def test_a_cluster_that_is_deleted_while_it_waits_is_made_again():
    plan = planned(replace(waiting(), clusters=()), 9000)
    assert plan.actions == (EnsureAccess(), CreateCluster("math-1", 1))


def test_an_eviction_waits_for_the_driver_and_loses_no_worker():
    plan = planned(evicted(), 5201)
    assert (plan.status.phase, plan.actions, told(plan)) == ("Running", (), [])
    text = "Kueue has evicted RayCluster math-1: waiting for its pods to end."
    assert said_of(plan, "PodsReady") == ("False", "Evicted", text)
    assert said_of(plan, "Degraded")[0] == "False"


def test_conditions_of_a_job_that_is_being_evicted_speak_of_the_newest_generation():
    edited = evicted()
    edited = replace(edited, job=replace(edited.job, generation=7))
    assert {entry.observed_generation for entry in planned(edited, 5201).status.conditions} == {7}


def test_a_start_deadline_does_not_end_a_job_that_is_being_evicted():
    admitted = replace(waiting(), clusters=(ADMITTED,))
    starting = observe(admitted, planned(admitted, 5000), clusters=(HELD,))
    leaving = with_pods(starting, waiting_pod("head", **DELETED))
    assert planned(leaving, 5201).status.phase == "Starting"


ENDS = {
    "the driver stops with a checkpoint": (
        {"driver": end(130, seconds=5210)},
        "The driver was stopped (deleted, node node-0).",
    ),
    "Ray's container ends first": (
        {"main": end(143, seconds=5210)},
        "Ray's head in pod math-1-head-0 ended: exit code 143 (deleted, node node-0).",
    ),
}


@pytest.mark.parametrize(("head", "text"), ENDS.values(), ids=ENDS)
def test_an_eviction_ends_the_attempt_for_free(head, text):
    plan = planned(evicted(**head), 5210)
    assert plan.actions == (DeleteCluster("math-1", "cluster-1"),)
    assert (plan.status.phase, plan.status.failures, plan.status.cluster_name) == ("Restarting", 0, None)
    assert said_of(plan, "Running") == ("False", "HeadLost", f"Kueue evicted RayCluster math-1. {text}")
    assert told(plan) == ["HeadLost", "Restarting"]


def test_a_head_that_is_gone_was_evicted_too():
    plan = planned(replace(evicted(), pods=()), 5240)
    assert said_of(plan, "Running")[2].startswith("Kueue evicted RayCluster math-1. The head pod")
    assert plan.status.failures == 0


def test_what_the_driver_did_itself_is_not_the_eviction():
    failed = planned(evicted(driver=end(1, "boom", seconds=5100)), 5210)
    assert (failed.status.failures, said_of(failed, "Running")[2]) == (
        1,
        "The driver ended: exit code 1: boom",
    )
    assert planned(evicted(driver=end(0, seconds=5210)), 5210).status.phase == "Complete"


def test_an_evicted_job_is_queued_again_when_its_pods_have_ended():
    observed = evicted(driver=end(130, seconds=5210))
    over = observe(observed, planned(observed, 5210))
    assert said_of(planned(over, 5300), "PodsReady")[1] == "WaitingForRemoval"
    leaving = replace(over, clusters=(), pods=(replace(over.pods[0], driver=None),))
    assert said_of(planned(leaving, 5300), "PodsReady")[1] == "WaitingForRemoval"
    free = replace(over, clusters=(), pods=())
    again = planned(free, 5300)
    assert again.actions == (EnsureAccess(), CreateCluster("math-2", 2))
    assert (again.status.phase, again.status.restarts, again.status.attempt_time) == ("Pending", 1, None)
    queued = observe(free, again, clusters=(cluster(2, queue="team-a", suspended=True),))
    waits = planned(queued, 9000)
    assert said_of(waits, "PodsReady")[2] == WAITS.replace("math-1", "math-2")
    assert clocks(waits) == (None, None)
    admitted = observe(queued, waits, clusters=(cluster(2, queue="team-a"),))
    runs = planned(replace(admitted, pods=pods(attempt=2)), 9100)
    assert (runs.status.phase, runs.status.restarts) == ("Running", 1)
    assert clocks(runs) == ("2026-11-21T16:33:40Z",) * 2


def test_restarts_are_counted_over_attempts_that_end_in_the_queue():
    """The spec is changed while the job waits: suspended, changed and resumed within moments."""
    observed = waiting()
    for number in range(1, 4):
        changed = spec({**CLOCKS, "training.seed": number})
        outdated = observe(observed, planned(observed, number * 1000), spec=changed)
        ended = planned(outdated, number * 1000 + 1)
        assert said_of(ended, "Running")[1] == "SpecOutdated"
        free = observe(outdated, ended, clusters=(), pods=())
        again = planned(free, number * 1000 + 400)
        assert again.actions == (EnsureAccess(), CreateCluster(f"math-{number + 1}", number + 1))
        assert (again.status.restarts, clocks(again)) == (number, (None, None))
        observed = observe(free, again, clusters=(cluster(number + 1, queue="team-a", suspended=True),))
    limited = observe(observed, planned(observed, 9000), spec=spec({**CLOCKS, "runPolicy.restartLimit": 3}))
    assert said_of(planned(limited, 9001), "Failed")[1] == "RestartLimitExceeded"


def test_no_clock_runs_while_the_api_server_refuses_to_have_it_queued_again():
    observed = evicted(driver=end(130, seconds=5210))
    free = observe(observed, planned(observed, 5210), clusters=(), pods=())
    again = planned(free, 5300)
    assert (again.actions, clocks(again)) == ((EnsureAccess(), CreateCluster("math-2", 2)), (None, None))
    refused = CreationFailure("math-2", "RayClusterRefused", "no such queue", at(5330))
    told_of = replace(observe(free, again), creation_failure=refused)
    plan = planned(told_of, 9000)
    assert (plan.status.phase, said_of(plan, "PodsReady")[1]) == ("Pending", "RayClusterRefused")


def test_another_leader_counts_from_the_admission_too():
    queued = replace(running(), clusters=(replace(ADMITTED, record=Record(0, 0, stamp(at(0)))),))
    status = plausible(queued, at(5500))
    assert status == queued.job.status and status.start_time == stamp(at(5000))


def test_a_job_that_waits_can_be_suspended_and_is_queued_anew_when_it_resumes():
    observed = waiting()
    asked = observe(observed, planned(observed, 10), spec=spec({**CLOCKS, "suspend": True}))
    plan = planned(asked, 20)
    assert plan.actions == (DeleteCluster("math-1", "cluster-1"),)
    gone = observe(asked, plan, clusters=())
    suspended = planned(gone, 30)
    assert suspended.status.phase == "Suspended"
    resumed = planned(observe(gone, suspended, spec=spec(CLOCKS)), 40)
    assert resumed.actions == (EnsureAccess(), CreateCluster("math-2", 2))
    assert (clocks(resumed), resumed.status.restarts) == ((None, None), 0)


def test_more_workers_are_asked_of_the_queue_at_once():
    observed = observe(waiting(), planned(waiting(), 10), spec=spec(CLOCKS, (2, 4, 0)))
    sizes = {action.pool: action.replicas for action in planned(observed, 20).actions}
    assert sizes == {"trainer": 2, "fastRollout": 4}


def test_fewer_workers_are_asked_of_the_queue_after_the_grace():
    """Kueue may admit the job at any moment, and KubeRay must not choose which of its pods go."""
    fewer = observe(waiting(), planned(waiting(), 10), spec=spec(CLOCKS, (1, 1, 0)))
    plan = planned(fewer, 20)
    assert (plan.actions, plan.requeue_after) == ((), 300)
    [patch] = planned(observe(fewer, plan), 320).actions
    assert (patch.pool, patch.replicas, patch.workers_to_delete) == ("fastRollout", 1, ())
