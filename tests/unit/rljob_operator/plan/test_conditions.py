"""Conditions, the phase that sums them up, and the sentences that people read in them."""

import time
from dataclasses import replace
from datetime import UTC, timedelta, timezone

import pytest

from rljob_api.status import Status
from rljob_operator.plan.attempt import attempt_of
from rljob_operator.plan.conditions import MESSAGE_LIMIT, Row, clip, condition, finished, phase, put, tail
from rljob_operator.plan.observed import Helper
from rljob_operator.plan.times import after, clock, moment, stamp
from rljob_operator.plan.waiting import missing, unschedulable
from tests.support.operator.observations import (
    NOW,
    at,
    cluster,
    end,
    observe,
    planned,
    pod,
    pods,
    running,
    said_of,
    spec,
    waiting_pod,
    with_pods,
)


def status(*rows):
    return put(Status(), tuple(Row(*row) for row in rows), generation=1, now=NOW)


PHASES = {
    "nothing is known": ((), "Pending"),
    "waits": ((("Running", "False", "Pending"),), "Pending"),
    "starts": ((("Running", "False", "Starting"),), "Starting"),
    "runs": ((("Running", "True", "Running"),), "Running"),
    "runs on with too few": (
        (("Running", "True", "Running"), ("Degraded", "True", "RolloutWorkerLost")),
        "Running",
    ),
    "lost its head": ((("Running", "False", "HeadLost"),), "Restarting"),
    "failed": ((("Running", "False", "AttemptFailed"),), "Restarting"),
    "is to suspend": ((("Running", "True", "Running"), ("Suspended", "False", "Suspending")), "Suspending"),
    "suspends late": ((("Suspended", "False", "SuspendTimedOut"),), "Suspending"),
    "is suspended": ((("Running", "False", "Suspended"), ("Suspended", "True", "Suspended")), "Suspended"),
    "was resumed": ((("Running", "True", "Running"), ("Suspended", "False", "Resumed")), "Running"),
    "is done": ((("Running", "False", "Complete"), ("Complete", "True", "Completed")), "Complete"),
    "is given up": ((("Running", "False", "Failed"), ("Failed", "True", "DeadlineExceeded")), "Failed"),
}


@pytest.mark.parametrize(("rows", "expected"), PHASES.values(), ids=PHASES)
def test_the_phase_follows_from_the_conditions(rows, expected):
    assert phase(status(*rows)) == expected
    assert finished(status(*rows)) == (expected in ("Complete", "Failed"))


def test_a_transition_time_tells_of_flips_alone():
    before = status(("PodsReady", "False", "WaitingForPods", "3 of 8"))
    same = put(before, (Row("PodsReady", "False", "WaitingForPods", "3 of 8"),), 1, at(9))
    assert same == before
    said_more = put(before, (Row("PodsReady", "False", "WaitingForPods", "2 of 8"),), 2, at(9))
    entry = condition(said_more, "PodsReady")
    assert (entry.message, entry.observed_generation, entry.last_transition_time) == ("2 of 8", 2, stamp(NOW))
    flipped = put(before, (Row("PodsReady", "True", "AllPodsReady", ""),), 1, at(9))
    assert condition(flipped, "PodsReady").last_transition_time == stamp(at(9))


def test_conditions_are_kept_and_have_one_order():
    entries = put(
        status(("Running", "True", "Running")), (Row("Accepted", "True", "Accepted"),), 1, NOW
    ).conditions
    assert [entry.type for entry in entries] == ["Accepted", "Running"]


def test_messages_are_one_paragraph_of_bounded_length():
    assert clip("a\n  b") == "a b"
    assert len(clip("x" * 5000)) == MESSAGE_LIMIT and clip("x" * 5000).endswith("…")
    assert clip("x" * MESSAGE_LIMIT) == "x" * MESSAGE_LIMIT
    assert clip("x" * (MESSAGE_LIMIT + 1)) == "x" * (MESSAGE_LIMIT - 1) + "…"
    assert tail("y" * 20, 20) == "y" * 20 and tail("y" * 21, 20) == "…" + "y" * 19
    assert tail("y" * 600) == "y" * 600 and len(tail("y" * 601)) == 600
    assert tail("begin " + "x" * 5000 + " end", 20).endswith(" end") and len(tail("y" * 50, 20)) == 20


def test_times_are_whole_seconds_and_tell_the_date_only_where_it_differs():
    paris = NOW.astimezone(timezone(timedelta(hours=1)))
    assert stamp(paris) == "2026-11-21T14:02:00Z" and moment("2026-11-21T15:02:00+01:00") == NOW
    assert moment("2026-11-21T15:02:00+01:00").tzinfo is UTC
    assert stamp(at(0.9)) == "2026-11-21T14:02:00Z" and moment("2026-11-21T14:02:00Z") == NOW
    assert clock(after(stamp(NOW), 1800), NOW) == "14:32 UTC"
    assert clock(after(stamp(NOW), 36_000), NOW) == "2026-11-22 00:02 UTC"
    assert after(stamp(NOW), 1e12).year == 9999


def test_times_are_in_utc_wherever_the_operator_runs(monkeypatch):
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        assert stamp(NOW) == "2026-11-21T14:02:00Z" and moment(stamp(NOW)) == NOW
    time.tzset()


SCHEDULER = {
    "one reason": (
        "0/12 nodes are available: 12 Insufficient nvidia.com/gpu. preemption: 0/12 nodes are available: "
        "12 No preemption victims found for incoming pod.",
        "Insufficient nvidia.com/gpu",
    ),
    "several, whatever their order": (
        "0/9 nodes are available: 5 node(s) had untolerated taint {a: b}, 4 Insufficient cpu.",
        "Insufficient cpu, node(s) had untolerated taint {a: b}",
    ),
    "another form": (
        "pod has unbound immediate PersistentVolumeClaims",
        "pod has unbound immediate PersistentVolumeClaims",
    ),
}


@pytest.mark.parametrize(("message", "expected"), SCHEDULER.values(), ids=SCHEDULER)
def test_the_schedulers_words_lose_their_counts(message, expected):
    assert unschedulable(message) == expected
    assert unschedulable(message.replace("12", "7").replace("5", "3")) == expected


NO_ROOM = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
MISSING = {
    "no room for one": ({"unschedulable": NO_ROOM}, "1 of 2 fast-rollout pods: Insufficient nvidia.com/gpu"),
    "no image": (
        {"waiting": 'ImagePullBackOff: Back-off pulling image "r/i:1": ErrImagePull: rpc error: not found'},
        "1 of 2 fast-rollout pods: ImagePullBackOff: cannot pull image r/i:1",
    ),
    "no image, tried again": (
        {"waiting": 'ErrImagePull: failed to pull and unpack image "r/i:1": not found'},
        "1 of 2 fast-rollout pods: ImagePullBackOff: cannot pull image r/i:1",
    ),
    "no image, whichever": (
        {"waiting": "ErrImagePull: no"},
        "1 of 2 fast-rollout pods: ImagePullBackOff",
    ),
    "no secret": (
        {"waiting": "CreateContainerConfigError: secret not found"},
        "1 of 2 fast-rollout pods: CreateContainerConfigError: secret not found",
    ),
    "starting": ({}, "1 of 2 fast-rollout pods: starting"),
    "evicted": (
        {"phase": "Failed", "disrupted": "Evicted", "node": "gpu-14"},
        "1 of 2 fast-rollout pods: Evicted on node gpu-14",
    ),
    "out of memory": (
        {"phase": "Failed", "main": end(137, "", "OOMKilled")},
        "1 of 2 fast-rollout pods: OOMKilled, exit code 137",
    ),
    "being deleted": ({"deleting": at(9)}, "1 of 2 fast-rollout pods: being deleted"),
}


@pytest.mark.parametrize(("fields", "expected"), MISSING.values(), ids=MISSING)
def test_what_a_job_waits_for_is_said_in_words(fields, expected):
    observed = with_pods(running(), waiting_pod("fastRollout", 1, **fields))
    assert missing(attempt_of(observed), spec()) == expected


def test_every_pool_that_lacks_pods_is_named_with_the_cause_that_matters_most():
    observed = running((2, 3, 1))
    observed = with_pods(
        observed,
        pod("head", ready=False),
        waiting_pod("trainer", 0),
        waiting_pod("trainer", 1, unschedulable=NO_ROOM),
        without=("math-1-fast-rollout-0", "math-1-fast-rollout-2"),
    )
    assert missing(attempt_of(observed), spec(pools=(2, 3, 1))) == (
        "the head pod: starting; 2 of 2 trainer pods: Insufficient nvidia.com/gpu; "
        "2 of 3 fast-rollout pods: not created yet"
    )


WORKER = {"trainer": "trainer", "fastRollout": "rollout"}
LOST = {
    "a rollout worker": ("fastRollout", "RolloutWorkerLost", "Training goes on without them."),
    "a trainer worker": ("trainer", "TrainerWorkerLost", "Training goes on from the last checkpoint then."),
}


@pytest.mark.parametrize(("role", "reason", "text"), LOST.values(), ids=LOST)
def test_a_lost_worker_degrades_a_job_until_all_are_ready_again(role, reason, text):
    observed = running()
    lost = planned(with_pods(observed, replace(pod(role), phase="Failed", ready=False, main=end(1))), 100)
    assert said_of(lost, "Degraded")[:2] == ("True", reason) and said_of(lost, "Degraded")[2].endswith(text)
    assert lost.status.phase == "Running"
    replacing = replace(with_pods(observed, waiting_pod(role, 7), without=(pod(role).name,)))
    replacing = replace(replacing, job=replace(replacing.job, status=lost.status))
    assert said_of(planned(replacing, 110), "Degraded")[:2] == ("True", reason)
    whole = with_pods(replacing, replace(pod(role, 7)))
    assert said_of(planned(whole, 120), "Degraded")[0] == "False"


@pytest.mark.parametrize("role", ["trainer", "fastRollout"])
def test_a_pod_of_which_only_a_sidecar_ended_is_not_lost(role):
    """It is never ready again, and Ray works on in it."""
    observed = running()
    quiet = pod(role, ready=False, helper=Helper("log", end(1)))
    plan = planned(with_pods(observed, quiet), 100)
    assert said_of(plan, "Degraded") == ("False", "AllWorkersReady", "No worker is lost.")
    assert "container log ended: Error, exit code 1" in said_of(plan, "PodsReady")[2]
    assert plan.status.phase == "Running" and plan.events == ()
    later = observe(with_pods(observed, quiet), plan)
    assert planned(later, 200).status == plan.status
    gone = with_pods(later, waiting_pod(role, 7), without=(quiet.name,))
    lost = planned(replace(gone, lost_workers=(replace(quiet, phase="Failed", main=end(1)),)), 210)
    assert said_of(lost, "Degraded")[:2] == ("True", LOST[f"a {WORKER[role]} worker"][1])
    unwell = planned(with_pods(observed, pod(role, ready=False)), 100)
    assert said_of(unwell, "Degraded")[0] == "True", "its readiness probe fails"


def test_a_pool_that_only_grows_is_not_degraded():
    observed = running()
    bigger = replace(observed, job=replace(observed.job, spec=spec(pools=(1, 5, 0)), generation=2))
    plan = planned(bigger, 100)
    assert said_of(plan, "Degraded")[0] == "False" and said_of(plan, "PodsReady")[0] == "False"


def test_every_condition_speaks_of_the_generation_that_was_looked_at():
    observed = running()
    edited = replace(observed, job=replace(observed.job, generation=5))
    assert {entry.observed_generation for entry in planned(edited, 100).status.conditions} == {5}
    assert planned(edited, 100).status.observed_generation == 5


def test_degraded_speaks_of_the_newest_generation_also_while_the_next_attempt_starts():
    """`kubectl wait` passes over a condition of an older one."""
    running_one = running()
    lost = replace(running_one, pods=(), lost_heads=(pod("head"),))
    ended = replace(observe(lost, planned(lost, 200)), clusters=(), lost_heads=())
    begun = observe(ended, planned(ended, 300))
    starting = replace(begun, job=replace(begun.job, generation=7))
    plan = planned(starting, 310)
    assert said_of(plan, "Running") == ("False", "Starting", "Attempt 2 starts.")
    assert said_of(plan, "Degraded") == ("False", "NotRunning", "No attempt runs.")
    assert {entry.observed_generation for entry in plan.status.conditions} == {7}


def test_a_message_never_changes_because_time_passes():
    begun = replace(running(), clusters=(cluster(),), pods=pods(phase="Pending", ready=False))
    early, late = planned(begun, 100), planned(begun, 1000)
    assert [entry.message for entry in early.status.conditions] == [
        entry.message for entry in late.status.conditions
    ]
