"""What an observation has that is read from the API server, whatever the watches have told."""

from datetime import UTC, datetime
from types import SimpleNamespace

import msgspec

from rljob_client.resources import PODS, RAY_CLUSTERS
from rljob_operator.controller.items import PodItem, RayClusterItem
from rljob_operator.controller.jobs import Entry
from rljob_operator.controller.lost_workers import LostWorkers
from rljob_operator.controller.mutation_cache import MutationCache, seen_cluster
from rljob_operator.controller.observe import LastHeads, Observer
from rljob_operator.controller.project import pod
from rljob_operator.plan.observed import Pod
from tests.support.operator.observations import UID, new_job

REF = ("default", "math")
NOW = datetime(2026, 11, 21, 14, 3, tzinfo=UTC)
LABELS = {"rljob.dev/job": "math", "rljob.dev/attempt": "1"}

CONTROLS = {"controller": True}


def metadata(name, uid, version="5", **more):
    return {
        "name": name, "namespace": "default", "uid": uid, "resourceVersion": version,
        "creationTimestamp": "2026-11-21T14:02:00Z", "labels": LABELS, **more,
    }  # fmt: skip


def ray_cluster(attempt=1, version="5", replicas=2):
    owner = {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "name": "math", "uid": UID} | CONTROLS
    groups = [{"groupName": "fast-rollout", "replicas": replicas}]
    owned = metadata(f"math-{attempt}", f"c{attempt}", version, ownerReferences=[owner])
    item = {"metadata": owned, "spec": {"workerGroupSpecs": groups}, "status": {"state": "ready"}}
    return msgspec.convert(item, RayClusterItem)


def head(uid="h", phase="Running", **labels):
    owner = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "math-1", "uid": "c1"} | CONTROLS
    known = metadata("math-1-head", uid, ownerReferences=[owner]) | {
        "labels": {**LABELS, "rljob.dev/pool": "head", "ray.io/cluster": "math-1", **labels}
    }
    return msgspec.convert({"metadata": known, "spec": {}, "status": {"phase": phase}}, PodItem)


class Site:
    """An observer whose watches have told of `heard`, and an API server that has `there`."""

    def __init__(self, heard, there):
        self.there, self.asked, self.held = there, [], []
        held = SimpleNamespace(
            clusters=self.informer([seen_cluster(each) for each in heard[0]]),
            pods=self.informer([pod(each) for each in heard[1]]),
            warnings=self.informer([]),
        )
        self.mutations, self.heads = MutationCache(), LastHeads()
        self.observer = Observer(held, self, self, self.mutations, self.heads, LostWorkers(), lambda: 100.0)

    def told_gone(self):
        """The watch tells that all is gone."""
        for held in self.held:
            held.clear()

    def informer(self, values):
        # By the name of the pod, or of the RayCluster.
        held = {("default", (each if isinstance(each, Pod) else each.cluster).name): each for each in values}
        self.held.append(held)
        return SimpleNamespace(of=lambda ref: held, served=True)

    async def state(self, served):
        return "ready", ""

    async def list(self, resource, item, namespace, selector="", field_selector=""):
        self.asked.append((resource, namespace, selector))
        return {RAY_CLUSTERS: self.there[0], PODS: self.there[1]}[resource]

    async def observe(self, anew=True):
        return await self.observer.observe(REF, Entry(new_job(), "1"), NOW, anew)


async def test_from_memory_nothing_is_asked_for():
    site = Site(([ray_cluster()], [head()]), ([], []))
    found = await site.observe(anew=False)
    assert site.asked == [] and (len(found.clusters), len(found.pods)) == (1, 1)


async def test_objects_of_which_no_watch_has_told():
    site = Site(([], []), ([ray_cluster()], [head()]))
    found = await site.observe()
    assert [each.uid for each in found.clusters] == ["c1"] and [each.uid for each in found.pods] == ["h"]
    assert site.asked == [(each, "default", "rljob.dev/job=math") for each in (RAY_CLUSTERS, PODS)]


async def test_objects_that_are_gone():
    site = Site(([ray_cluster()], [head()]), ([], []))
    site.heads.see(REF, [pod(head())])
    found = await site.observe()
    assert (found.clusters, found.pods) == ((), ())
    assert [each.uid for each in found.lost_heads] == ["h"]


async def test_objects_that_have_changed():
    site = Site(
        ([ray_cluster(version="5")], [head(phase="Pending")]),
        ([ray_cluster(version="6", replicas=3)], [head()]),
    )
    found = await site.observe()
    assert found.clusters[0].groups[0].replicas == 3 and found.pods[0].phase == "Running"
    again = await site.observe(anew=False)
    assert again.clusters[0].groups[0].replicas == 3, "a RayCluster never goes back"


async def test_what_was_listed_is_gone_once_the_watch_says_so():
    """Nobody wakes the job later: what is remembered of a RayCluster must not outlive it."""
    site = Site(([ray_cluster(version="5")], []), ([ray_cluster(version="6")], []))
    await site.observe()
    site.told_gone()
    assert (await site.observe(anew=False)).clusters == ()


async def test_pods_whose_labels_are_not_the_operators_are_left_out():
    strange = head("s", **{"rljob.dev/pool": "tail"})
    found = await Site(([], []), ([ray_cluster()], [head(), strange])).observe()
    assert [each.uid for each in found.pods] == ["h"]


async def test_an_object_that_cannot_be_read_counts_as_it_was(caplog):
    broken = head(phase="Failed")
    broken.metadata.creation_timestamp = "yesterday"
    site = Site(([ray_cluster()], []), ([ray_cluster()], [broken]))
    assert (await site.observe()).pods == ()
    site = Site(([ray_cluster()], [head()]), ([ray_cluster()], [broken]))
    assert [each.phase for each in (await site.observe()).pods] == ["Running"]
    assert "default/math-1-head cannot be read" in caplog.text


async def test_a_head_that_is_there_after_all_is_not_lost():
    site = Site(([ray_cluster()], []), ([ray_cluster()], [head()]))
    site.heads.see(REF, [pod(head())])
    assert [each.uid for each in (await site.observe(anew=False)).lost_heads] == ["h"]
    assert (await site.observe()).lost_heads == ()
