"""How an attempt's end is told from what is left of its pods, and what it costs."""

from dataclasses import replace

import pytest

from rljob_api.status import TrainingStatus
from rljob_operator.plan.attempt import attempt_of
from rljob_operator.plan.failure import Kind, disruption_backoff, ending, failure_backoff
from tests.support.operator.observations import (
    at,
    cluster,
    end,
    planned,
    pod,
    running,
    said_of,
    told,
    with_pods,
)
from tests.support.operator.observations import observe as observe_after

HEAD = "math-1-head-0"
DELETED = {"deleting": at(130), "deletion_grace": 30}
"""Deleted 100 s after the job's creation."""

ENDS = {
    "the driver is done": ({"driver": end(0)}, Kind.COMPLETE, "Completed"),
    "the driver refuses": ({"driver": end(2, "bad model")}, Kind.REFUSED, "InvalidConfiguration"),
    "the driver fails": ({"driver": end(1, "boom")}, Kind.FAILED, "AttemptFailed"),
    "the driver uses up its memory": ({"driver": end(137, "", "OOMKilled")}, Kind.FAILED, "AttemptFailed"),
    "the driver crashes": ({"driver": end(139)}, Kind.FAILED, "AttemptFailed"),
    "the driver is stopped": ({"driver": end(130)}, Kind.DISRUPTED, "HeadLost"),
    "Ray's head uses up its memory": ({"main": end(137, "", "OOMKilled")}, Kind.FAILED, "AttemptFailed"),
    "Ray's head ends": ({"main": end(1)}, Kind.FAILED, "AttemptFailed"),
    "both at once": (
        {"main": end(137, "", "OOMKilled"), "driver": end(1), **DELETED},
        Kind.FAILED,
        "AttemptFailed",
    ),
    "the pod fails for no reason told": ({"phase": "Failed"}, Kind.FAILED, "AttemptFailed"),
    "the pod is deleted, and its containers say nothing": (
        {"phase": "Failed", **DELETED},
        Kind.DISRUPTED,
        "HeadLost",
    ),
    "the kubelet evicts the pod": ({"phase": "Failed", "disrupted": "Evicted"}, Kind.FAILED, "AttemptFailed"),
    "evicted, and the driver is stopped": (
        {"driver": end(130), "disrupted": "Evicted"},
        Kind.FAILED,
        "AttemptFailed",
    ),
    "evicted, and done before": ({"driver": end(0), "disrupted": "Evicted"}, Kind.COMPLETE, "Completed"),
    "evicted, and refused before": (
        {"driver": end(2), "disrupted": "Evicted"},
        Kind.REFUSED,
        "InvalidConfiguration",
    ),
    "evicted, and Ray's head is killed": (
        {"main": end(137), "phase": "Failed", "disrupted": "Evicted", **DELETED},
        Kind.FAILED,
        "AttemptFailed",
    ),
    "drained": ({"phase": "Failed", "disrupted": "EvictionByEvictionAPI"}, Kind.DISRUPTED, "HeadLost"),
    "its node shuts down": (
        {"phase": "Failed", "disrupted": "TerminationByKubelet"},
        Kind.DISRUPTED,
        "HeadLost",
    ),
    "pre-empted, the driver fails": (
        {"driver": end(1), "disrupted": "PreemptionByScheduler"},
        Kind.DISRUPTED,
        "HeadLost",
    ),
    "deleted, then the driver fails": (
        {"driver": end(1, seconds=101), **DELETED},
        Kind.DISRUPTED,
        "HeadLost",
    ),
    "Ray's head ends, and KubeRay deletes the pod within the second": (
        {"main": end(1), **DELETED},
        Kind.FAILED,
        "AttemptFailed",
    ),
    "the driver fails too within that second": (
        {"main": end(1), "driver": end(1), **DELETED},
        Kind.FAILED,
        "AttemptFailed",
    ),
    "Ray's head ends, and the driver is stopped as KubeRay deletes the pod": (
        {"main": end(1), "driver": end(130, seconds=101), **DELETED},
        Kind.FAILED,
        "AttemptFailed",
    ),
    "deleted, the driver is stopped, and then Ray's head": (
        {"main": end(1, seconds=104), "driver": end(130, seconds=103), **DELETED},
        Kind.DISRUPTED,
        "HeadLost",
    ),
    "deleted, and Ray's head ends in order within the second": (
        {"main": end(0), **DELETED},
        Kind.DISRUPTED,
        "HeadLost",
    ),
    "deleted, and Ray's head is terminated within the second": (
        {"main": end(143), **DELETED},
        Kind.DISRUPTED,
        "HeadLost",
    ),
    "the driver fails, then it is deleted": (
        {"driver": end(1, seconds=99), **DELETED},
        Kind.FAILED,
        "AttemptFailed",
    ),
    "deleted, and done before it ended": (
        {"driver": end(0, seconds=110), **DELETED},
        Kind.COMPLETE,
        "Completed",
    ),
}


@pytest.mark.parametrize(("fields", "kind", "reason"), ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("gone", [False, True], ids=["still there", "gone, but remembered"])
def test_the_heads_last_state_tells_how_the_attempt_ended(fields, kind, reason, gone):
    observed = running()
    head = replace(pod("head"), ready=False, **fields)
    if gone:
        observed = replace(with_pods(observed, without=(HEAD,)), lost_heads=(head,))
    else:
        observed = with_pods(observed, head)
    ended = ending(attempt_of(observed), at(120))
    assert (ended.kind, ended.reason) == (kind, reason)


LEFT = {
    "nothing": (),
    "Ray's end": (replace(pod("head"), ready=False, main=end(1)),),
    "another exit code": (replace(pod("head"), ready=False, driver=end(1)),),
    "a deleted pod": (replace(pod("head"), deleting=at(50)),),
}


@pytest.mark.parametrize("heads", LEFT.values(), ids=LEFT)
def test_a_job_is_done_when_its_driver_said_so(heads):
    """Whatever is left of the pod: nobody may have seen how it ended."""
    observed = with_pods(running(), *heads, without=(HEAD,))
    training = TrainingStatus(step=9, total_steps=9, weight_version=9, completed=True)
    status = observed.job.status.model_copy(update={"training": training})
    observed = replace(observed, job=replace(observed.job, status=status))
    plan = planned(observed, 120)
    assert plan.status.phase == "Complete"
    assert said_of(plan, "Complete")[2].startswith("Trained 9 of 9 steps.")


def test_a_job_that_is_done_tells_where_its_results_are():
    observed = with_pods(
        running(changes={"storage.volume": {"emptyDir": {}}}), replace(pod("head"), driver=end(0))
    )
    text = said_of(planned(observed, 120), "Complete")[2]
    assert text.endswith("Model and report are in runs/default/math of the volume.")


GOES_ON = {
    "nothing happened": {},
    "not ready": {"ready": False},
    "deleted, has time to end": {"deleting": at(130), "deletion_grace": 30},
}


@pytest.mark.parametrize("fields", GOES_ON.values(), ids=GOES_ON)
def test_an_attempt_goes_on_while_its_head_may(fields):
    observed = with_pods(running(), replace(pod("head"), **fields))
    assert ending(attempt_of(observed), at(120)) is None


def test_a_head_that_stays_long_after_it_was_to_go_is_lost():
    observed = with_pods(running(), replace(pod("head"), **DELETED))
    assert ending(attempt_of(observed), at(159)) is None
    assert ending(attempt_of(observed), at(160)).kind is Kind.DISRUPTED
    assert planned(observed, 120).requeue_after == 40


LOST_HEADS = {
    "gone without a trace": (),
    "another one in its place": (pod("head", 9),),
}


@pytest.mark.parametrize("heads", LOST_HEADS.values(), ids=LOST_HEADS)
def test_a_head_with_another_uid_ends_the_attempt_for_free(heads):
    observed = with_pods(running(), *heads, without=(HEAD,))
    plan = planned(observed, 400)
    assert plan.status.phase == "Restarting"
    assert (plan.status.failures, plan.status.cluster_name, plan.status.head_pod) == (0, None, None)
    assert told(plan) == ["HeadLost", "Restarting"]


def test_a_head_that_was_never_recorded_cannot_be_lost():
    observed = running()
    status = observed.job.status.model_copy(update={"head_pod": None})
    observed = replace(observed, job=replace(observed.job, status=status), pods=())
    assert ending(attempt_of(observed), at(100)) is None


UNRECORDED = {
    # how the first head was lost: (its last state, is a failure counted)
    "it failed by itself": ({"phase": "Failed", "main": end(137, "", "OOMKilled")}, 1),
    "its driver failed": ({"driver": end(1, "boom")}, 1),
    "the kubelet evicted it": ({"phase": "Failed", "disrupted": "Evicted"}, 1),
    "it was drained": ({"phase": "Failed", "disrupted": "EvictionByEvictionAPI"}, 0),
    "it was deleted": (DELETED, 0),
}


@pytest.mark.parametrize(("fields", "failures"), UNRECORDED.values(), ids=UNRECORDED)
def test_a_head_that_was_lost_before_the_status_named_it_ends_the_attempt(fields, failures):
    """As it is when the write that should have named it was refused, and KubeRay was quick."""
    observed = running()
    status = observed.job.status.model_copy(update={"head_pod": None})
    observed = replace(observed, job=replace(observed.job, status=status))
    lost = replace(pod("head"), ready=False, **fields)
    observed = replace(with_pods(observed, pod("head", 9), without=(HEAD,)), lost_heads=(lost,))
    plan = planned(observed, 120)
    assert (plan.status.failures, plan.status.phase) == (failures, "Restarting")
    assert planned(observed, 121).status.failures == failures  # that write may be refused, too


def test_heads_of_other_clusters_are_not_the_attempts():
    observed = running()
    status = observed.job.status.model_copy(update={"head_pod": None})
    observed = replace(observed, job=replace(observed.job, status=status))
    others = (pod("head", 7, attempt=2), replace(pod("head", 8), cluster_uid="of an earlier one"))
    plan = planned(replace(observed, lost_heads=others), 120)
    assert (plan.status.phase, plan.status.head_pod) == ("Running", pod("head").uid)


def test_a_trainer_taken_by_the_cluster_excuses_the_driver():
    observed = with_pods(
        running(),
        replace(pod("head"), driver=end(1, "rank 0 does not come back")),
        replace(pod("trainer"), disrupted="DeletionByTaintManager", ready=False),
    )
    ended = ending(attempt_of(observed), at(100))
    assert ended.kind is Kind.DISRUPTED
    assert "rank 0 does not come back" in ended.message and "math-1-trainer-0" in ended.message


def test_the_drivers_last_words_reach_the_condition_from_their_end():
    words = "line\n" * 1000 + "ValueError: the reward is not a number"
    observed = with_pods(running(), replace(pod("head"), driver=end(1, words)))
    status, reason, message = said_of(planned(observed, 120), "Running")
    assert (status, reason) == ("False", "AttemptFailed")
    assert message.endswith("ValueError: the reward is not a number") and len(message) <= 1024


def test_own_failures_count_up_to_the_limit():
    observed = running(changes={"runPolicy.backoffLimit": 1})
    first = planned(with_pods(observed, replace(pod("head"), driver=end(1, "boom"))), 120)
    assert (first.status.phase, first.status.failures) == ("Restarting", 1)
    status = observed.job.status.model_copy(update={"failures": 1})
    again = replace(observed, job=replace(observed.job, status=status))
    second = planned(with_pods(again, replace(pod("head"), driver=end(1, "boom"))), 120)
    assert (second.status.phase, second.status.failures) == ("Failed", 2)
    assert said_of(second, "Failed")[1:] == (
        "BackoffLimitExceeded",
        "Attempts that failed: 2; backoffLimit is 1. The driver ended: exit code 1: boom",
    )
    assert told(second) == ["Failed"]


def test_evictions_for_the_jobs_own_disk_end_it():
    """With backoffLimit 0 the first is the last."""
    evicted = replace(
        pod("head"),
        phase="Failed",
        disrupted="Evicted",
        eviction="Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. ",
    )
    plan = planned(with_pods(running(changes={"runPolicy.backoffLimit": 0}), evicted), 120)
    assert said_of(plan, "Failed")[1:] == (
        "BackoffLimitExceeded",
        "Attempts that failed: 1; backoffLimit is 0. The kubelet evicted head pod math-1-head-0: Evicted, "
        "node node-0: Pod ephemeral local storage usage exceeds the total limit of containers 1Gi.",
    )


@pytest.mark.parametrize(("restarts", "phase"), [(2, "Restarting"), (3, "Failed")])
def test_what_the_cluster_takes_is_free_up_to_the_limit(restarts, phase):
    observed = running(changes={"runPolicy.restartLimit": 3})
    status = observed.job.status.model_copy(update={"restarts": restarts})
    observed = replace(observed, job=replace(observed.job, status=status))
    lost = replace(pod("head"), phase="Failed", disrupted="PreemptionByScheduler")
    plan = planned(with_pods(observed, lost), 120)
    assert (plan.status.phase, plan.status.failures) == (phase, 0)
    if phase == "Failed":
        _, why, text = said_of(plan, "Failed")
        limit = "Restarts since the job was last resumed: 3; restartLimit is 3. "
        assert why == "RestartLimitExceeded" and text.startswith(limit)
        assert "PreemptionByScheduler, node node-0" in text


def test_a_job_that_is_to_be_suspended_is_not_failed_for_its_restarts():
    observed = running(changes={"runPolicy.restartLimit": 0, "suspend": True})
    lost = replace(pod("head"), phase="Failed", disrupted="PreemptionByScheduler")
    assert planned(with_pods(observed, lost), 120).status.phase == "Suspending"


def test_a_refusal_without_words_names_the_exit_code():
    plan = planned(with_pods(running(), replace(pod("head"), driver=end(2))), 120)
    assert said_of(plan, "Failed") == ("True", "InvalidConfiguration", "exit code 2")


@pytest.mark.parametrize("code", [-1, 3, 129, 131, 134, 137, 139, 143, 255])
@pytest.mark.parametrize(
    "taken", [None, "DeletionByTaintManager"], ids=["all trainers", "a trainer was taken"]
)
def test_every_other_exit_code_is_a_failure_of_the_jobs_own(code, taken):
    """Only exit code 1 may be the trainer's loss: the driver reports that itself."""
    trainer = replace(pod("trainer"), disrupted=taken)
    ended = ending(attempt_of(with_pods(running(), replace(pod("head"), driver=end(code)), trainer)), at(120))
    assert (ended.kind, ended.reason) == (Kind.FAILED, "AttemptFailed")
    assert ended.message == f"The driver ended: exit code {code}"


def test_what_the_runtime_refuses_is_not_tried_again():
    plan = planned(with_pods(running(), replace(pod("head"), driver=end(2, "no such model"))), 120)
    assert said_of(plan, "Failed") == ("True", "InvalidConfiguration", "no such model")
    assert plan.status.failures == 0


@pytest.mark.parametrize(
    ("failures", "seconds"), [(1, 10), (2, 20), (3, 40), (5, 160), (6, 300), (7, 300), (1000, 300)]
)
def test_the_wait_after_failures_doubles_up_to_five_minutes(failures, seconds):
    assert failure_backoff(failures) == seconds


@pytest.mark.parametrize(
    ("lasted", "restarts", "seconds"), [(300, 9, 1), (299, 0, 10), (5, 2, 40), (0, 99, 300)]
)
def test_the_wait_after_a_disruption_is_long_only_where_attempts_are_short(lasted, restarts, seconds):
    assert disruption_backoff(lasted, restarts) == seconds


def test_the_next_attempt_begins_when_the_wait_is_over_and_the_old_one_is_gone():
    observed = with_pods(running(), replace(pod("head"), driver=end(1, "boom")))
    over = planned(observed, 120)
    assert over.requeue_after == 10
    assert [type(action).__name__ for action in over.actions] == ["DeleteCluster"]
    waiting = observe_after(observed, over, clusters=(), pods=())
    assert planned(waiting, 129).status.attempt == 1
    begun = planned(waiting, 130)
    assert (begun.status.attempt, begun.status.cluster_name, begun.status.restarts) == (2, "math-2", 1)
    assert begun.status.phase == "Starting"


LEFTOVERS = {
    # what is left at second 130 of an attempt that ended at 120: how long it is waited for at most
    "a head that is being deleted": ({"pods": (replace(pod("head"), **DELETED),)}, 220),
    "a head that nobody deletes": ({"pods": (pod("head"),)}, 250),
    "a head whose driver has ended": ({"pods": (replace(pod("head"), driver=end(1)),)}, None),
    "workers": ({"pods": (pod("trainer"), pod("fastRollout"))}, None),
    "a RayCluster that is being deleted": ({"clusters": (cluster(deleting=True),)}, 250),
}


@pytest.mark.parametrize(("left", "until"), LEFTOVERS.values(), ids=LEFTOVERS)
def test_what_is_left_of_an_attempt_is_waited_for_but_not_for_ever(left, until):
    observed = with_pods(running(), replace(pod("head"), driver=end(1, "boom")))
    over = observe_after(observed, planned(observed, 120), **{"clusters": (), "pods": (), **left})
    plan = planned(over, 130)
    if until is None:
        assert plan.status.attempt == 2
        return
    assert said_of(plan, "PodsReady")[1] == "WaitingForRemoval" and plan.requeue_after == until - 130
    assert planned(over, until - 1).status.attempt == 1
    assert planned(over, until).status.attempt == 2


def test_a_cluster_that_is_not_even_being_deleted_is_waited_for():
    observed = with_pods(running(), replace(pod("head"), driver=end(1, "boom")))
    over = observe_after(observed, planned(observed, 120), pods=())
    late = planned(over, 9000)
    assert late.status.attempt == 1
    assert [type(action).__name__ for action in late.actions] == ["DeleteCluster"]
