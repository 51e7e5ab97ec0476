"""A reconciler on an API server that is a table of objects, on a clock that the test sets."""

from datetime import UTC, datetime, timedelta
from random import Random
from types import SimpleNamespace

import msgspec

from rljob_client.errors import AlreadyExists, Conflict, NotFound, Refusal
from rljob_operator.controller.act import Actor
from rljob_operator.controller.items import RayClusterItem, RLJobItem
from rljob_operator.controller.jobs import JobStore
from rljob_operator.controller.mutation_cache import MutationCache, seen_cluster
from rljob_operator.controller.reconcile import Reconciler
from rljob_operator.metrics import OperatorMetrics
from rljob_operator.plan.conditions import condition
from rljob_operator.plan.observed import Observed
from rljob_operator.plan.times import stamp
from rljob_operator.render import KubeRay
from tests.support.jobs import job

BEGIN = datetime(2026, 11, 21, 14, 2, tzinfo=UTC)
REF = ("default", "math")
CLUSTER = ("RayCluster", "math-1")


class ReconcilerSite:
    """A reconciler, an API server that is a table of objects, and what was written and told."""

    def __init__(self, generation=1, image="i", defaults=None):
        self.objects, self.refused, self.writes, self.events, self.pods = {}, {}, [], [], ()
        self.there = None
        """Pods as the API server has them; None: as the watch told of them last."""
        self.others = ()
        """RayClusters of the job that another leader made."""
        self.listed = ()
        """RayClusters as the watch told of them last."""
        self.stale = None
        """The resourceVersion that the job has at the API server; None: that of the newest view."""
        self.storable = lambda status: status
        self.denials = []
        """What the next requests are answered with: a pair each, of a verb and an error."""
        self.others_for = None
        """Seconds for which the namespace is another operator's; None: it is not."""
        self.reads = 0
        self.lists = 0
        """How often the job's objects were listed anew."""
        self.seconds = 0.0
        self.item = job({"image": image, "/metadata.name": "math", "/metadata.namespace": "default"})
        self.item["metadata"] |= {"uid": "job-uid", "creationTimestamp": "2026-11-21T14:02:00Z"}
        self.version = 0
        self.start(defaults)
        self.change(generation)

    def start(self, defaults=None):
        """A new leader, who remembers nothing. `defaults`: images of jobs that name none."""
        images = defaults or {}
        self.jobs = JobStore(lambda ref: None, images)
        self.metrics = OperatorMetrics()
        self.written = MutationCache()
        kuberay = SimpleNamespace(capabilities=KubeRay(True))
        actor = Actor(self, kuberay, self.written, lambda: self.seconds, lambda size: b"x" * size, images)
        self.reconciler = Reconciler(
            self.jobs,
            self,
            actor,
            self,
            SimpleNamespace(
                record=lambda about, happening: self.events.append((happening.reason, happening.note))
            ),
            SimpleNamespace(trouble=None, doubt=lambda: None, storable=lambda status: self.storable(status)),
            self.metrics,
            lambda: BEGIN + timedelta(seconds=self.seconds),
            Random(0),
            self.elsewhere,
        )
        if self.version:
            self.seen({})

    def change(self, generation):
        """The job has a new spec."""
        self.item["metadata"] |= {"generation": generation}
        self.seen({})

    def seen(self, changes):
        """The watch tells of the job as it is with these changes."""
        self.version += 1
        self.item["metadata"] |= {"resourceVersion": str(self.version)}
        self.item |= changes
        item = msgspec.json.decode(msgspec.json.encode(self.item), type=RLJobItem)
        self.jobs.seen(REF, self.jobs.read(item))
        return self.item

    async def at(self, seconds):
        """What is written when the job is looked at, until nothing is to be done at once; seconds until it is
        looked at again."""
        self.seconds, self.writes, self.reads = seconds, [], 0
        while (wait := await self.reconciler.reconcile(REF)) < 1:
            self.seconds += wait
        return wait

    def ready(self):
        found = condition(self.jobs.get(REF).job.status, "PodsReady")
        return found.reason, found.message

    def time_to_running(self):
        """Of how many jobs it was measured, and the seconds in all."""
        names = ("count", "sum")
        return tuple(
            self.metrics.registry.get_sample_value(f"rljob_time_to_running_seconds_{name}") for name in names
        )

    # The observer

    async def observe(self, ref, entry, now, anew=False):
        self.deny("list" if anew else "observe")
        self.lists += anew
        seen = (*self.written.newest(ref, self.listed, self.seconds), *self.others)
        pods = self.pods if seen else ()
        return Observed(entry.job, seen, self.there if anew and self.there is not None else pods)

    def forget(self, ref):
        pass

    def leave(self, ref):
        self.written.forget(ref)

    async def elsewhere(self, namespace):
        return self.others_for

    def told(self, ref, observed):
        pass

    # The API server

    def deny(self, verb):
        if self.denials and self.denials[0][0] == verb:
            raise self.denials.pop(0)[1]

    async def apply_status(self, document):
        self.deny("apply")
        if self.stale is not None and document["metadata"]["resourceVersion"] != self.stale:
            self.writes.append(("refused",))
            raise Conflict("apply", "the object has been modified", Refusal(409, "Conflict"))
        if self.stale is not None:
            self.version = int(self.stale)
            self.stale = None
        self.writes.append(("status",))
        return self.seen({"status": document["status"]})

    async def get(self, resource, namespace, name, kind):
        self.reads += 1
        self.deny("get")
        if (resource.kind, name) not in self.objects:
            raise NotFound("get", "not found", Refusal(404))
        return msgspec.convert(self.objects[resource.kind, name], kind)

    async def delete(self, resource, namespace, name, uid, version=None):
        self.writes.append(("delete", resource.kind, name))
        self.deny("delete")
        there = self.objects.get((resource.kind, name))
        if version is not None and there["metadata"]["resourceVersion"] != version:
            raise Conflict("delete", "the object has been modified", Refusal(409, "Conflict"))
        self.objects.pop((resource.kind, name), None)

    async def patch(self, resource, namespace, name, changes, version=None):
        self.writes.append(("patch", resource.kind, name))
        if ("patch", resource.kind, name) in self.refused:
            raise self.refused["patch", resource.kind, name]
        there = self.objects[resource.kind, name]
        metadata = changes.get("metadata", {})
        if metadata.get("uid", there["metadata"]["uid"]) != there["metadata"]["uid"]:
            raise Conflict("patch", "Precondition failed: UID", Refusal(409, "Conflict"))
        if version not in (None, there["metadata"]["resourceVersion"]):
            raise Conflict("patch", "the object has been modified", Refusal(409, "Conflict"))
        annotations = {**there["metadata"]["annotations"], **metadata.get("annotations", {})}
        patched = {**there, "metadata": {**there["metadata"], "annotations": annotations}}
        patched["spec"] = {**there["spec"], **changes.get("spec", {})}
        patched["metadata"]["resourceVersion"] = str(int(there["metadata"]["resourceVersion"]) + 1)
        self.objects[resource.kind, name] = patched
        return patched

    async def create(self, manifest):
        name = manifest["kind"], manifest["metadata"]["name"]
        self.writes.append(name)
        if name in self.refused:
            raise self.refused[name]
        if name in self.objects:
            raise AlreadyExists("create", "exists", Refusal(409, "AlreadyExists"))
        created = stamp(BEGIN + timedelta(seconds=self.seconds))
        added = {"uid": "cluster-1", "resourceVersion": "5", "creationTimestamp": created}
        self.objects[name] = {**manifest, "metadata": {**manifest["metadata"], **added}}
        return self.objects[name]

    def seen_cluster(self):
        """The RayCluster as an informer shows it, which has none here."""
        return seen_cluster(msgspec.convert(self.objects[CLUSTER], RayClusterItem))


async def made_site():
    """A job whose RayCluster is there."""
    site = ReconcilerSite()
    await site.at(0)
    site.written.created(REF, site.seen_cluster(), 1e9)
    return site
