"""From the API server's pods to what decisions rest on."""

import msgspec
import pytest

from rljob_operator.controller.items import PodItem, RayClusterItem
from rljob_operator.controller.project import cluster, pod
from rljob_operator.plan.times import moment

METADATA = {
    "name": "math-1-head-x",
    "namespace": "default",
    "uid": "u",
    "creationTimestamp": "2026-11-21T14:02:00Z",
    "labels": {
        "rljob.dev/job": "math",
        "rljob.dev/attempt": "1",
        "rljob.dev/pool": "head",
        "ray.io/cluster": "math-1",
    },
}
UNSTARTED = [{"name": "ray-head", "state": {"waiting": {"reason": "PodInitializing"}}}]


def ended(name, code, message="", reason="Error"):
    return {"name": name, "state": {"terminated": {"exitCode": code, "reason": reason, "message": message}}}


def seen(phase, inits, containers=UNSTARTED, **status):
    fields = {"phase": phase, "initContainerStatuses": inits, "containerStatuses": containers, **status}
    return pod(msgspec.convert({"metadata": METADATA, "spec": {}, "status": fields}, PodItem))


INITS = {
    # what: (the pod; exit code and message of Ray's container, why it does not start)
    "one fails": (
        seen("Failed", [ended("first", 0), ended("fetch", 3, "no such bucket")]),
        (3, "init container fetch: no such bucket"),
        "Error, exit code 3, init container fetch: no such bucket",
    ),
    "one fails without a word": (
        seen("Failed", [ended("fetch", 137, reason="OOMKilled")]),
        (137, "init container fetch"),
        "OOMKilled, exit code 137, init container fetch",
    ),
    "all are done": (seen("Pending", [ended("fetch", 0)]), None, None),
    "one is tried again": (seen("Pending", [ended("fetch", 1)]), None, None),
    "the cluster ends the pod": (
        seen("Failed", [ended("fetch", 137)], reason="Evicted"),
        (137, "init container fetch"),
        None,
    ),
    "Ray's container ended, and a sidecar after it": (
        seen("Failed", [ended("sidecar", 143)], [ended("ray-head", 1, "boom")]),
        (1, "boom"),
        None,
    ),
    "the driver ended, and a sidecar after it": (
        seen("Failed", [ended("sidecar", 143)], [ended("driver", 1), *UNSTARTED]),
        None,
        None,
    ),
}


@pytest.mark.parametrize(("found", "main", "waiting"), INITS.values(), ids=INITS)
def test_an_init_container_that_failed_is_how_the_pod_ended(found, main, waiting):
    assert (found.main and (found.main.exit_code, found.main.message)) == main
    assert found.waiting == waiting


def late(status):
    """The container's end, a minute after 14:05."""
    ended = {**status["state"]["terminated"], "finishedAt": "2026-11-21T14:06:00Z"}
    return {**status, "state": {"terminated": ended}}


RUNS = {"name": "driver", "state": {"running": {}}}
HELPERS = {
    # what: (the pod's containers, name and exit code of the helper that ended first)
    "none has ended": ([RUNS, {"name": "rewards", "state": {"running": {}}}], None),
    "the one with the reward function": ([RUNS, ended("rewards", 137, reason="OOMKilled")], ("rewards", 137)),
    "one of a template": ([ended("log", 0), RUNS], ("log", 0)),
    "two": ([late(ended("log", 1)), ended("rewards", 137), RUNS], ("rewards", 137)),
    "Ray's and the driver": ([ended("driver", 1), ended("ray-head", 1)], None),
}


@pytest.mark.parametrize(("containers", "helper"), HELPERS.values(), ids=HELPERS)
def test_which_container_beside_ray_and_the_driver_has_ended(containers, helper):
    found = seen("Running", [], containers).helper
    assert (found and (found.name, found.end.exit_code)) == helper


SINCE = "2026-11-21T14:05:00Z"
PROVISIONED = {
    # what: (KubeRay's condition, since when the RayCluster has had all its pods)
    "all pods have been ready": ({"status": "True", "lastTransitionTime": SINCE}, moment(SINCE)),
    "not yet, or suspended": ({"status": "False", "lastTransitionTime": SINCE}, None),
    "without a time": ({"status": "True"}, None),
    "with a time that is none": ({"status": "True", "lastTransitionTime": "yesterday"}, None),
}


@pytest.mark.parametrize(("condition", "since"), PROVISIONED.values(), ids=PROVISIONED)
def test_since_when_a_ray_cluster_has_had_all_its_pods(condition, since):
    others = {"type": "HeadPodReady", "status": "True", "lastTransitionTime": "2026-11-21T14:03:00Z"}
    fields = {"conditions": [others, {"type": "RayClusterProvisioned", **condition}]}
    item = {"metadata": METADATA, "spec": {}, "status": fields}
    assert cluster(msgspec.convert(item, RayClusterItem)).provisioned == since


LIMIT = 'Usage of EmptyDir volume "run" exceeds the limit "1Gi". '
ROOM = "Pod was rejected: Node didn't have enough resource: cpu, requested: 500, used: 3900, capacity: 4000 "


def marked(reason):
    return [{"type": "DisruptionTarget", "status": "True", "reason": reason}]


TAKEN = {
    # what: (status of the pod, why it ends, what the kubelet said)
    "for its own limits": ({"reason": "Evicted", "message": LIMIT}, "Evicted", LIMIT.strip()),
    "from a node that runs short": (
        {"reason": "Evicted", "message": "low", "conditions": marked("TerminationByKubelet")},
        "TerminationByKubelet",
        "low",
    ),
    "its node shuts down": (
        {"reason": "Terminated", "message": "shutdown", "conditions": marked("TerminationByKubelet")},
        "TerminationByKubelet",
        "",
    ),
    "pre-empted": ({"conditions": marked("PreemptionByScheduler")}, "PreemptionByScheduler", ""),
    "drained": ({"conditions": marked("EvictionByEvictionAPI")}, "EvictionByEvictionAPI", ""),
    "its node is lost": ({"reason": "NodeLost"}, "NodeLost", ""),
    "its node has no room for it": ({"reason": "OutOfcpu", "message": ROOM}, "OutOfcpu", ROOM.strip()),
    "its node has no device for it": (
        {"reason": "OutOfnvidia.com/gpu", "message": "none"},
        "OutOfnvidia.com/gpu",
        "none",
    ),
    "the kubelet does not let it begin": (
        {"reason": "UnexpectedAdmissionError", "message": "Allocate failed"},
        "UnexpectedAdmissionError",
        "Allocate failed",
    ),
    "the kubelet finds no cores that belong together": (
        {"reason": "TopologyAffinityError", "message": "no affinity"},
        "TopologyAffinityError",
        "no affinity",
    ),
    "its node's labels have changed": (
        {"reason": "NodeAffinity", "message": "no match"},
        "NodeAffinity",
        "no match",
    ),
    "by itself": ({"reason": "DeadlineExceeded"}, None, ""),
}


@pytest.mark.parametrize(("status", "disrupted", "said"), TAKEN.values(), ids=TAKEN)
def test_who_ended_a_pod(status, disrupted, said):
    found = seen("Failed", [], **status)
    assert (found.disrupted, found.eviction) == (disrupted, said)


RAY_CLUSTER = {
    "apiVersion": "ray.io/v1",
    "kind": "RayCluster",
    "name": "math-1",
    "uid": "c",
    "controller": True,
}
OWNERS = {
    # what: (owner reference of a pod that bears the labels of a head, UID of its RayCluster)
    "KubeRay's": (RAY_CLUSTER, "c"),
    "of an older version of its API": ({**RAY_CLUSTER, "apiVersion": "ray.io/v1alpha1"}, "c"),
    "nobody": (None, ""),
    "a Deployment's": ({**RAY_CLUSTER, "apiVersion": "apps/v1", "kind": "ReplicaSet"}, ""),
    "another kind of that name": ({**RAY_CLUSTER, "apiVersion": "ray.io.example/v1"}, ""),
    "one that does not control it": ({**RAY_CLUSTER, "controller": False}, ""),
    "of another attempt": ({**RAY_CLUSTER, "name": "math-2"}, ""),
    "of another job": ({**RAY_CLUSTER, "name": "other-1"}, ""),
}


@pytest.mark.parametrize(("owner", "uid"), OWNERS.values(), ids=OWNERS)
def test_labels_alone_make_no_pod_of_a_ray_cluster(owner, uid):
    metadata = {**METADATA, "ownerReferences": [owner] if owner else []}
    assert pod(msgspec.convert({"metadata": metadata}, PodItem)).cluster_uid == uid


def test_a_pod_whose_labels_contradict_each_other_belongs_to_no_ray_cluster():
    labels = {**METADATA["labels"], "ray.io/cluster": "math-2"}
    metadata = {**METADATA, "labels": labels, "ownerReferences": [RAY_CLUSTER]}
    assert pod(msgspec.convert({"metadata": metadata}, PodItem)).cluster_uid == ""
