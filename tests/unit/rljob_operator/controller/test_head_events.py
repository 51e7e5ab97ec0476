"""How a head pod ended that nobody saw, as Events tell it."""

import pytest

from rljob_client.objects import ObjectMeta
from rljob_operator.controller.head_events import head_from_events
from rljob_operator.controller.items import CoreEvent, Involved
from rljob_operator.plan.attempt import attempt_of
from tests.support.operator.observations import cluster, running

DELETED = (
    "Deleted head Pod default/math-1-head-{n}; Pod status: {phase}; Pod restart policy: Never; "
    "Ray container terminated status: {ended}"
)
ENDED = (
    "&ContainerStateTerminated{{ExitCode:{code},Signal:0,Reason:{reason},Message:{message},"
    "StartedAt:2026-11-21 14:02:10 +0000 UTC,FinishedAt:2026-11-21 14:03:10 +0000 UTC,ContainerID:,}}"
)


def deleted(code, reason, n=0, uid="cluster-1", seconds=0, message=""):
    text = DELETED.format(n=n, phase="Failed", ended=ENDED.format(code=code, reason=reason, message=message))
    meta = ObjectMeta(creation_timestamp=f"2026-11-21T14:04:{seconds:02}Z")
    return CoreEvent(meta, Involved("math-1", uid), "DeletedHeadPod", text)


def taken(reason, uid="head"):
    return CoreEvent(ObjectMeta(), Involved("math-1-head-0", uid), reason, "The node was low on memory")


UNENDED = CoreEvent(
    ObjectMeta(),
    Involved("math-1", "cluster-1"),
    "DeletedHeadPod",
    DELETED.format(n=0, phase="Failed", ended="nil"),
)
TRACES = {
    # what: (Events about the RayCluster, about the pod; name, exit code, its reason, who took it) or None
    "killed for its memory": ([deleted(137, "OOMKilled")], [], ("math-1-head-0", 137, "OOMKilled", None)),
    "evicted": ([deleted(137, "Error")], [taken("Evicted")], ("math-1-head-0", 137, "Error", "Evicted")),
    "taken at once": (
        [],
        [taken("TaintManagerEviction")],
        ("math-1-head-0", None, None, "TaintManagerEviction"),
    ),
    "the first of several": (
        [deleted(1, "Error", n=1, seconds=9), deleted(137, "OOMKilled", seconds=5)],
        [],
        ("math-1-head-0", 137, "OOMKilled", None),
    ),
    "last words over several lines": (
        [deleted(1, "Error", message="no\nspace, left; on\ndevice")],
        [],
        ("math-1-head-0", 1, "Error", None),
    ),
    "it says nothing of the end": ([UNENDED], [], None),
    "a number that is none": ([deleted("9" * 5000, "Error")], [], None),
    "no Events": ([], [], None),
    "another RayCluster's": ([deleted(1, "Error", uid="of an earlier one")], [], None),
    "another pod's": ([], [taken("Evicted", "other")], None),
    "of no matter": ([], [taken("Pulled")], None),
}


@pytest.mark.parametrize(("about_cluster", "about_pod", "expected"), TRACES.values(), ids=TRACES)
def test_what_events_tell(about_cluster, about_pod, expected):
    attempt = attempt_of(running())
    found = head_from_events(attempt, cluster(), "head", about_cluster, about_pod)
    if expected is None:
        assert found is None
        return
    end = found.main
    told = (found.name, end and end.exit_code, end and end.reason, found.disrupted)
    assert told == expected and (found.uid, found.role, found.attempt) == ("head", "head", 1)
