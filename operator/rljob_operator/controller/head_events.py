"""How a head pod ended, as Kubernetes Events tell it: for one that was deleted while the operator was down.
Pure.

Guarantees: only Events about the very RayCluster and pod count. KubeRay says how Ray's container had ended
when it deletes a head pod (`DeletedHeadPod`, v1.4 to v1.6); the cluster's own controllers say on the pod that
they evicted or pre-empted it. Where these Events have expired, nothing is known.
"""

import re
from collections.abc import Iterable

from rljob_operator.controller.items import CoreEvent
from rljob_operator.plan.attempt import Attempt
from rljob_operator.plan.observed import Cluster, ContainerEnd, Pod

_TAKEN = ("Evicted", "Preempted", "Preempting", "TaintManagerEviction", "NodeNotReady", "NodeShutdown")
"""Reasons of Events about a pod that the cluster takes."""
_DELETED = re.compile(
    r"^Deleted head Pod \S+/(?P<name>[^\s;/]+); Pod status: \w+;.*"
    r"Ray container terminated status: &ContainerStateTerminated\{ExitCode:(?P<code>-?\d{1,10}),Signal:\d+,"
    r"Reason:(?P<reason>\w*),Message:(?P<message>.*?),StartedAt:",
    re.DOTALL,
)
"""KubeRay prints Go's form of the container's state into the message, and says it nowhere else."""


def head_from_events(
    attempt: Attempt,
    cluster: Cluster,
    uid: str,
    about_cluster: Iterable[CoreEvent],
    about_pod: Iterable[CoreEvent],
) -> Pod | None:
    """The head pod `uid` as the Events tell it; None where they tell nothing of its end. Of several heads of
    the RayCluster it is the first: the attempt ends with it."""
    mine = [event for event in about_cluster if event.involved_object.uid == cluster.uid]
    found = [match for event in sorted(mine, key=_time) if (match := _DELETED.match(event.message))]
    taken = [event for event in about_pod if event.involved_object.uid == uid and event.reason in _TAKEN]
    if not found and not taken:
        return None
    end = None
    if found:
        code, reason, message = int(found[0]["code"]), found[0]["reason"], found[0]["message"]
        end = ContainerEnd(code, reason, message, cluster.created)
    return Pod(
        name=found[0]["name"] if found else taken[0].involved_object.name,
        uid=uid,
        role="head",
        attempt=attempt.number,
        cluster=cluster.name,
        cluster_uid=cluster.uid,
        created=cluster.created,
        phase="Failed",
        ready=False,
        disrupted=taken[0].reason if taken else None,
        main=end,
    )


def _time(event: CoreEvent) -> str:
    return event.metadata.creation_timestamp
