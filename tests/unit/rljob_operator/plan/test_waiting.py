"""What a job waits for, in words: PodsReady of an attempt, and the causes of single pods."""

from dataclasses import replace

import pytest

from rljob_operator.plan.attempt import attempt_of
from rljob_operator.plan.observed import CreationFailure, Helper, Observed, Pod
from rljob_operator.plan.waiting import (
    all_ready,
    creation_failure,
    loss,
    missing,
    notice_due,
    pods_ready,
    uncreatable,
)
from rljob_operator.plan.waiting import unschedulable as without_counts
from tests.support.operator.observations import (
    NOW,
    at,
    cluster,
    end,
    new_job,
    observe,
    planned,
    pod,
    pods,
    running,
    spec,
    waiting_pod,
    with_pods,
)

NEW = Observed(new_job(), (), ())
ASKED = observe(NEW, planned(NEW, 0))
SEEN = replace(ASKED, clusters=(cluster(),), pods=pods())
UNSEEN = replace(ASKED, clusters=(cluster(status_seen=False),))
REFUSED = CreationFailure("math-1", "RayClusterRefused", "the webhook says no.\n  Twice.", at(30))
OVER_QUOTA = (
    'pods "math-1-trainer-worker-{suffix}" is forbidden: exceeded quota: gpus, requested: '
    "requests.nvidia.com/gpu=8,pods=1, used: requests.nvidia.com/gpu={used},pods=9, limited: "
    "requests.nvidia.com/gpu=16,pods=9"
)
"""As the API server says it: of a pod whose name it has just made up, beside what others use now."""
UNTIL = "; start deadline 14:32 UTC."


def row(observed: Observed, seconds: float = 5, deadline: str | None = "14:32 UTC") -> tuple[str, str, str]:
    attempt = attempt_of(observed)
    assert attempt is not None
    found = pods_ready(attempt, observed.job.spec, observed, deadline, at(seconds))
    assert found.type == "PodsReady"
    return found.status, found.reason, found.message


CREATING = ("False", "CreatingRayCluster", f"Creating RayCluster math-1{UNTIL}")
NO_NOTICE = "KubeRay has taken no notice of RayCluster math-1 yet: its operator may be down"
CASES = {
    "all is there": (SEEN, 5, ("True", "AllPodsReady", "All pods are ready.")),
    "nothing yet": (ASKED, 5, CREATING),
    "kuberay is gone": (
        replace(ASKED, kuberay="missing"),
        5,
        (
            "False",
            "KubeRayMissing",
            f"This cluster has no RayClusters (ray.io/v1): install KubeRay 1.4 or newer{UNTIL}",
        ),
    ),
    "kuberay is too old": (
        replace(ASKED, kuberay="unsupported", kuberay_detail="no workersToDelete"),
        5,
        (
            "False",
            "KubeRayUnsupported",
            "This cluster's KubeRay is not supported: no workersToDelete. Install 1.4 or newer" + UNTIL,
        ),
    ),
    "the spec cannot be rendered": (
        replace(ASKED, job=replace(ASKED.job, invalid="spec.image must be set.")),
        5,
        ("False", "InvalidSpec", f"RayCluster math-1 is not created: see Accepted{UNTIL}"),
    ),
    "another's RayCluster has the name": (
        replace(ASKED, clusters=(cluster(owner="other"),)),
        5,
        (
            "False",
            "NameTaken",
            f"RayCluster math-1 exists and is not this RLJob's: waiting for it to go{UNTIL}",
        ),
    ),
    "the API server refuses it": (
        replace(ASKED, creation_failure=REFUSED),
        5,
        ("False", "RayClusterRefused", f"the webhook says no. Twice{UNTIL}"),
    ),
    "it refused another attempt's": (
        replace(ASKED, creation_failure=replace(REFUSED, cluster="math-7")),
        5,
        CREATING,
    ),
    "kuberay refuses it": (
        replace(ASKED, clusters=(cluster(refusal="min is above  MAX."),)),
        5,
        ("False", "RayClusterRefused", f"KubeRay refuses RayCluster math-1: min is above MAX{UNTIL}"),
    ),
    "a quota is used up": (
        replace(ASKED, clusters=(cluster(refusal=OVER_QUOTA.format(suffix="x7k2p", used=9)),)),
        5,
        (
            "False",
            "RayClusterRefused",
            'KubeRay refuses RayCluster math-1: pods "math-1-trainer-worker-*" is forbidden: exceeded quota: '
            "gpus, requested: requests.nvidia.com/gpu=8,pods=1, limited: requests.nvidia.com/gpu=16,pods=9"
            + UNTIL,
        ),
    ),
    "kuberay does not see what it has made": (
        replace(ASKED, clusters=(cluster(refusal='services "math-1-head-svc"  already exists.\n'),)),
        5,
        (
            "False",
            "WaitingForKubeRay",
            "KubeRay goes on with RayCluster math-1 as soon as it sees what it has made, or once what is not "
            f'the RayCluster\'s is deleted (services "math-1-head-svc" already exists){UNTIL}',
        ),
    ),
    "kuberay has some seconds to see it": (UNSEEN, 9.9, CREATING),
    "kuberay does not see it": (UNSEEN, 10, ("False", "WaitingForKubeRay", NO_NOTICE + UNTIL)),
    "kuberay has made pods before its status": (
        replace(UNSEEN, pods=(waiting_pod("head"),)),
        10,
        (
            "False",
            "WaitingForPods",
            "Waiting for the head pod: starting; 1 of 1 trainer pods: not created yet; "
            f"2 of 2 fast-rollout pods: not created yet{UNTIL}",
        ),
    ),
    "the head is being deleted": (
        with_pods(SEEN, replace(pod("head"), deleting=at(1))),
        5,
        ("False", "WaitingForPods", f"Waiting for the head pod: being deleted{UNTIL}"),
    ),
    "there is no head": (
        with_pods(SEEN, without=(pod("head").name,)),
        5,
        ("False", "WaitingForPods", f"Waiting for the head pod: not created yet{UNTIL}"),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("observed", "seconds", "expected"), CASES.values(), ids=CASES)
def test_what_the_condition_says(observed, seconds, expected):
    assert row(observed, seconds) == expected


def test_without_a_deadline_the_sentence_ends():
    assert row(ASKED, deadline=None)[2] == "Creating RayCluster math-1."
    assert row(replace(ASKED, creation_failure=REFUSED), deadline=None)[2] == "the webhook says no. Twice."
    assert row(UNSEEN, 60, None)[2] == f"{NO_NOTICE}."


def test_another_programs_words_leave_room_for_the_deadline():
    long = replace(ASKED, creation_failure=replace(REFUSED, message="x" * 5000))
    assert row(long)[2] == "x" * 600 + UNTIL
    long = replace(ASKED, clusters=(cluster(refusal="y" * 5000),))
    assert row(long)[2] == f"KubeRay refuses RayCluster math-1: {'y' * 600}{UNTIL}"
    long = replace(ASKED, clusters=(cluster(refusal=f"{'z' * 5000} already exists"),))
    assert row(long)[2].endswith(f" ({'z' * 600}){UNTIL}")


def test_what_keeps_a_cluster_from_being_made_is_its_own():
    observed = replace(NEW, creation_failure=REFUSED)
    assert creation_failure(observed, "math-1") == REFUSED
    assert creation_failure(observed, "math-2") is None and creation_failure(NEW, "math-1") is None
    mine = replace(NEW, clusters=(cluster(), cluster(2, owner="other")))
    assert uncreatable(mine, "math-1") is None and uncreatable(mine, "math-3") is None
    taken = uncreatable(mine, "math-2")
    assert taken is not None and (taken.type, taken.status, taken.reason) == (
        "PodsReady",
        "False",
        "NameTaken",
    )


def test_when_kuberay_should_have_seen_a_cluster():
    assert notice_due(None) is None
    assert notice_due(cluster()) is None
    assert notice_due(cluster(status_seen=False)) == at(10)


FULL = "0/3 nodes are available: 3 Insufficient cpu."
NO_IMAGE = waiting_pod("trainer", 0, waiting="ErrImagePull: no")
ENDED = {"phase": "Failed", "ready": False, "main": end(1)}
CAUSES = {
    "no room before a missing image": (
        [NO_IMAGE, waiting_pod("trainer", 1, unschedulable=FULL)],
        "Insufficient cpu",
    ),
    "a missing image before a lost pod": (
        [pod("trainer", 0, **ENDED), waiting_pod("trainer", 1, waiting="ErrImagePull: no")],
        "ImagePullBackOff",
    ),
    "a lost pod before one that is being deleted": (
        [pod("trainer", 0, deleting=at(9)), pod("trainer", 1, **ENDED)],
        "Error, exit code 1",
    ),
    "one that failed without a word before one that is being deleted": (
        [pod("trainer", 0, deleting=at(9)), pod("trainer", 1, phase="Failed", ready=False)],
        "failed",
    ),
    "one that is being deleted before one that starts": (
        [waiting_pod("trainer", 0), pod("trainer", 1, deleting=at(9))],
        "being deleted",
    ),
    "a container of a template's that has ended": (
        [waiting_pod("trainer", 0), pod("trainer", 1, ready=False, helper=Helper("log", end(0)))],
        "container log ended: Completed, exit code 0",
    ),
    "one that ends with its pod": (
        [pod("trainer", 0), pod("trainer", 1, deleting=at(9), helper=Helper("log", end(137)))],
        "being deleted",
    ),
    "one that is evicted and still runs": (
        [pod("trainer", 0), pod("trainer", 1, ready=False, disrupted="Preempting", node=None)],
        "Preempting",
    ),
    "a container's reason, in one line": (
        [pod("trainer", 0), waiting_pod("trainer", 1, waiting="CreateContainerError:\n  no  room")],
        "CreateContainerError: no room",
    ),
    "a container's reason, cut": (
        [pod("trainer", 0), waiting_pod("trainer", 1, waiting="E" * 300)],
        "E" * 200,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("workers", "cause"), CAUSES.values(), ids=CAUSES)
def test_of_several_causes_the_one_that_people_can_do_most_about_is_told(workers, cause):
    of = spec(pools=(2, 2, 0))
    attempt = attempt_of(with_pods(running((2, 2, 0)), *workers))
    assert attempt is not None and not all_ready(attempt, of)
    short = sum(not worker.ready or worker.deleting is not None for worker in workers)
    assert missing(attempt, of) == f"{short} of 2 trainer pods: {cause}"


def test_a_pod_that_does_not_exist_yet_is_told_unless_another_has_a_cause_of_its_own():
    of = spec(pools=(3, 2, 0))
    some = with_pods(running((3, 2, 0)), waiting_pod("trainer", 1), without=(pod("trainer", 2).name,))
    assert missing(attempt_of(some), of) == "2 of 3 trainer pods: not created yet"
    leaving = with_pods(some, pod("trainer", 1, deleting=at(9)))
    assert missing(attempt_of(leaving), of) == "2 of 3 trainer pods: being deleted"
    full = with_pods(some, waiting_pod("trainer", 1, unschedulable=FULL))
    assert missing(attempt_of(full), of) == "2 of 3 trainer pods: Insufficient cpu"


LOSSES: dict[str, tuple[Pod, str]] = {
    "evicted from a node": (
        pod("trainer", disrupted="Evicted", node="gpu-1", main=end(137)),
        "Evicted on node gpu-1",
    ),
    "evicted, node unknown": (pod("trainer", disrupted="Evicted", node=None), "Evicted"),
    "its program ended": (pod("trainer", main=end(3), deleting=at(9)), "Error, exit code 3"),
    "deleted": (pod("trainer", deleting=NOW), "deleted"),
    "failed without a word": (pod("trainer", phase="Failed"), "failed"),
}


@pytest.mark.parametrize(("lost", "why"), LOSSES.values(), ids=LOSSES)
def test_why_a_pod_is_lost(lost, why):
    assert loss(lost) == why


def test_the_schedulers_reasons_are_sorted_named_once_and_cut():
    message = "0/9 nodes are available: 5 b, 3 a, 1 b. preemption: 0/9 nodes are available: 9 no victims."
    assert without_counts(message) == "a, b"
    assert without_counts("0/1 nodes are available: 1 a, .") == "a"
    assert without_counts("0/9 nodes are available: 9 " + "x" * 300 + ".") == "x" * 200


def test_a_quota_that_is_used_up_is_told_in_the_same_words_with_each_try():
    told = [
        (
            row(replace(ASKED, clusters=(cluster(refusal=said),))),
            row(replace(ASKED, creation_failure=replace(REFUSED, message=said))),
        )
        for said in (OVER_QUOTA.format(suffix="x7k2p", used=9), OVER_QUOTA.format(suffix="bq4zt", used=12))
    ]
    assert told[0] == told[1], "what others use, or a pod's new name, is no news of this job"


@pytest.mark.parametrize("name", ["math-1-head", "math-1-trainer-worker", "data-loader"])
def test_names_that_are_not_made_up_with_each_try_are_told_whole(name):
    refusal = f'pods "{name}" is forbidden: violates PodSecurity "restricted:latest"'
    assert row(replace(ASKED, clusters=(cluster(refusal=refusal),)))[2].count(f'"{name}"') == 1
