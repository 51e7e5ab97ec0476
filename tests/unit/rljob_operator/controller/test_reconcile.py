"""What one look at a job after the other does where the API server refuses things, and when all is made."""

import json
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from random import Random
from types import SimpleNamespace

import msgspec
import pytest

from rljob_api.crd import object_schema
from rljob_api.job import Spec
from rljob_client.errors import AlreadyExists, Conflict, Forbidden, Invalid, NoSuchResource, NotFound, Refusal
from rljob_operator.controller import reconcile as reconcile_module
from rljob_operator.controller.act import Actor
from rljob_operator.controller.items import RayClusterItem, RLJobItem
from rljob_operator.controller.jobs import JobStore
from rljob_operator.controller.mutation_cache import MutationCache, seen_cluster
from rljob_operator.controller.reconcile import Reconciler
from rljob_operator.kube.work_queue import NotNow
from rljob_operator.metrics import OperatorMetrics
from rljob_operator.plan.conditions import condition
from rljob_operator.plan.observed import Observed, Record
from rljob_operator.plan.outdated import FIXED
from rljob_operator.plan.times import stamp
from rljob_operator.render import KubeRay
from rljob_operator.render.images import with_runtime_image
from tests.support.jobs import job
from tests.support.operator.observations import pod, pods, waiting_pod

BEGIN = datetime(2026, 11, 21, 14, 2, tzinfo=UTC)
REF = ("default", "math")
CLUSTER = ("RayCluster", "math-1")


class Site:
    """A reconciler, an API server that is a table of objects, and what was written and told."""

    def __init__(self, generation=1, image="i", defaults=None):
        self.objects, self.refused, self.writes, self.events, self.pods = {}, {}, [], [], ()
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
            OperatorMetrics(),
            lambda: BEGIN + timedelta(seconds=self.seconds),
            Random(0),
            self.elsewhere,
        )
        if self.version:
            self._seen({})

    def change(self, generation):
        """The job has a new spec."""
        self.item["metadata"] |= {"generation": generation}
        self._seen({})

    def _seen(self, changes):
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

    # The observer

    async def observe(self, ref, entry, now):
        seen = (*self.written.newest(ref, self.listed, self.seconds), *self.others)
        return Observed(entry.job, seen, self.pods if seen else ())

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
        return self._seen({"status": document["status"]})

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


REFUSALS = {
    "a field that is not known": (
        CLUSTER,
        Invalid("create", 'strict decoding error: unknown field "spec.nodeSelecter"', Refusal(400)),
        'The API server refuses RayCluster math-1: strict decoding error: unknown field "spec.nodeSelecter"',
    ),
    "a quota": (
        CLUSTER,
        Forbidden("create", "exceeded quota: one", Refusal(403, "Forbidden")),
        "The API server refuses RayCluster math-1: exceeded quota: one",
    ),
    "a policy, of what the pods need": (
        ("RoleBinding", "math-driver"),
        Forbidden("create", "denied the request", Refusal(403, "Forbidden")),
        "The API server refuses RoleBinding math-driver: denied the request",
    ),
}


class TestRefused:
    @pytest.mark.parametrize(("name", "error", "words"), REFUSALS.values(), ids=REFUSALS)
    async def test_it_is_told_once_and_tried_every_half_minute(self, name, error, words):
        site = Site()
        site.refused[name] = error
        wait = await site.at(0)
        told = f"{words}; start deadline 14:32 UTC."
        assert site.ready() == ("RayClusterRefused", told) and 25 < wait <= 30
        assert site.events == [("RayClusterRefused", told)]
        assert await site.at(10) > 15 and site.writes == []
        for seconds in (31, 62, 700):
            assert 25 < await site.at(seconds) <= 30
            assert site.writes.count(name) == 1 and ("status",) not in site.writes
            assert ("ServiceAccount", "math-driver") not in site.writes, "it is there"
        assert len(site.events) == 1
        site.refused.clear()
        await site.at(731)
        assert CLUSTER in site.objects
        await site.at(732)
        assert site.ready()[0] == "CreatingRayCluster"

    async def test_another_spec_is_tried_at_once(self):
        site = Site()
        site.refused[CLUSTER] = Invalid("create", "unknown field", Refusal(400))
        await site.at(0)
        site.refused.clear()
        site.change(generation=2)
        await site.at(5)
        assert CLUSTER in site.objects and site.ready()[0] == "CreatingRayCluster"

    async def test_the_job_fails_in_these_words(self):
        site = Site()
        site.refused[CLUSTER] = Invalid("create", "unknown field spec.x", Refusal(400))
        await site.at(0)
        await site.at(1801)
        failed = condition(site.jobs.get(REF).job.status, "Failed")
        assert failed.reason == "StartDeadlineExceeded" and "unknown field spec.x" in failed.message

    async def test_a_namespace_that_goes_is_no_refusal(self):
        site = Site()
        causes = (("NamespaceTerminating", ""),)
        site.refused[CLUSTER] = Forbidden("create", "no", Refusal(403, "Forbidden", "", causes))
        assert await site.at(0) > 400
        assert site.ready()[0] == "CreatingRayCluster" and site.events == []


class TestUnrenderable:
    async def test_it_is_told_once_with_a_trace_and_tried_every_half_minute(self, monkeypatch, caplog):
        def broken(*_):
            raise ZeroDivisionError("somewhere")

        site = Site()
        monkeypatch.setattr("rljob_operator.controller.act.ray_cluster", broken)
        assert 25 < await site.at(0) <= 30
        reason, message = site.ready()
        words = "RayCluster math-1 cannot be made of the spec, by a defect of the operator: ZeroDivisionError"
        assert reason == "RayClusterRefused" and message.startswith(words)
        for seconds in (31, 62, 93):
            assert 25 < await site.at(seconds) <= 30
        assert len(site.events) == 1 and caplog.text.count("ZeroDivisionError: somewhere") == 1
        monkeypatch.undo()
        await site.at(124)
        assert CLUSTER in site.objects


FOREIGN = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "math-1", "uid": "x"}}


class TestTaken:
    async def test_a_name_that_becomes_free_is_noticed_within_half_a_minute(self):
        """The RayCluster carries no label of ours: no watch tells of it."""
        site = Site()
        site.objects[CLUSTER] = FOREIGN
        assert 25 < await site.at(0) <= 30
        words = "RayCluster math-1 exists and is not this RLJob's: waiting for it to go"
        told = ("NameTaken", f"{words}; start deadline 14:32 UTC.")
        assert site.ready() == told and site.events == [told]
        for seconds in (31, 62):
            assert 25 < await site.at(seconds) <= 30
            assert ("status",) not in site.writes
        del site.objects[CLUSTER]
        await site.at(93)
        assert site.objects[CLUSTER]["metadata"]["ownerReferences"][0]["uid"] == "job-uid"
        assert site.events == [told]

    async def test_one_that_is_the_jobs_own_is_taken_for_made(self):
        """The answer to its creation was lost."""
        site = Site()
        await site.at(0)
        site.start()
        await site.at(1)
        assert CLUSTER in site.writes
        assert site.ready()[0] == "CreatingRayCluster" and site.events == []


class TestRestored:
    @pytest.fixture
    async def site(self):
        """A job that runs."""
        site = Site()
        await site.at(0)
        site.pods = pods((1, 1, 0))
        await site.at(5)
        assert condition(site.jobs.get(REF).job.status, "Running").status == "True"
        site.seconds = 9
        return site

    async def test_a_look_costs_few_reads_and_no_write(self, site):
        site.start()
        site.written.created(REF, _seen(site), 1e9)
        for seconds, reads in ((10, 4), (11, 0), (300, 0), (460, 4), (470, 0)):
            await site.at(seconds)
            assert (site.reads, site.writes) == (reads, []), seconds

    @pytest.mark.parametrize("kind", ["ServiceAccount", "Role", "RoleBinding"])
    async def test_what_was_deleted_comes_back(self, site, kind):
        site.start()
        site.written.created(REF, _seen(site), 1e9)
        del site.objects[kind, "math-driver"]
        await site.at(10)
        assert site.writes == [(kind, "math-driver")] and (kind, "math-driver") in site.objects

    async def test_it_is_tried_again_where_it_is_refused(self, site):
        site.start()
        site.written.created(REF, _seen(site), 1e9)
        del site.objects["RoleBinding", "math-driver"]
        site.refused["RoleBinding", "math-driver"] = Forbidden("create", "no", Refusal(403, "Forbidden"))
        assert 25 < await site.at(10) <= 30
        assert condition(site.jobs.get(REF).job.status, "Running").status == "True"
        site.refused.clear()
        await site.at(41)
        assert ("RoleBinding", "math-driver") in site.objects


def _seen(site):
    """The RayCluster as an informer shows it, which has none here."""
    return seen_cluster(msgspec.convert(site.objects[CLUSTER], RayClusterItem))


class TestOlderDefinition:
    """A definition that lacks a field of the status."""

    async def test_the_job_goes_on_and_nothing_is_written_twice(self, caplog):
        site = Site()
        site.storable = lambda status: status.model_copy(update={"spec_digest": None})
        await site.at(0)
        site.written.created(REF, _seen(site), 1e9)
        assert "specDigest" not in site.item["status"] and site.item["status"]["attempt"] == 1
        for turn in range(50):
            site._seen({})
            await site.at(31 * (turn + 1))
            assert site.writes == [] or turn == 0
        assert "put right" not in caplog.text

    async def test_what_was_stored_before_is_left_as_it_is(self, caplog):
        """A definition is replaced by an older one; no watch tells what it prunes."""
        site = await _made()
        await site.at(40)
        assert site.item["status"]["specDigest"]
        site.storable = lambda status: status.model_copy(update={"spec_digest": None})
        await site.at(41)
        assert site.writes == [] and "put right" not in caplog.text

    async def test_all_is_written_once_it_can_be(self):
        site = Site()
        site.storable = lambda status: status.model_copy(update={"spec_digest": None})
        await site.at(0)
        site.written.created(REF, _seen(site), 1e9)
        site.storable = lambda status: status
        await site.at(1)
        assert site.item["status"]["specDigest"]


class TestDefaultImage:
    """A job that names no image, and an operator that is given another default."""

    OLD, NEW = {"cpu": "site/runtime:1"}, {"cpu": "site/runtime:2"}

    async def lead(self, existing):
        """An attempt that was begun with the old default, and then a leader with the new one."""
        site = Site(image=None, defaults=self.OLD)
        await site.at(0)
        site.written.created(REF, _seen(site), 1e9)
        site.pods = existing
        await site.at(5)
        cluster = _seen(site)
        site.start(self.NEW)
        site.written.created(REF, cluster, 1e9)
        site.events.clear()
        return site

    @pytest.mark.parametrize("existing", [(waiting_pod("head"),), pods((1, 1, 0))])
    async def test_an_attempt_that_is_there_is_not_disturbed(self, existing):
        site = await self.lead(existing)
        there = site.item["status"]
        await site.at(10)
        assert (site.writes, site.events) == ([], []) and site.item["status"] == there
        assert condition(site.jobs.get(REF).job.status, "Accepted").reason == "Accepted"
        assert _images(site.objects[CLUSTER]) == {"site/runtime:1"}

    async def test_the_next_attempt_has_it(self):
        site = await self.lead(pods((1, 1, 0)))
        await site.at(10)
        site.pods = (pod("head", phase="Failed"),)
        await site.at(20)
        site.start(self.NEW)
        site.pods = ()
        await site.at(60)
        assert _images(site.objects["RayCluster", "math-2"]) == {"site/runtime:2"}
        assert "SpecOutdated" not in {reason for reason, _ in site.events}

    async def test_a_digest_that_has_the_default_image_in_it_is_not_compared(self):
        """As in the status of attempts that were begun by a release which takes it so."""
        site = await self.lead((waiting_pod("head"),))
        digest = _digest_with_image(site.jobs.get(REF).job.spec, self.OLD)
        site._seen({"status": {**site.item["status"], "specDigest": digest}})
        await site.at(10)
        assert (site.writes, site.events) == ([], [])
        assert site.item["status"]["specDigest"] == digest

    async def test_an_image_that_somebody_names_is_a_change(self):
        site = await self.lead((waiting_pod("head"),))
        site.item["spec"]["image"] = "own:1"
        site.change(generation=2)
        await site.at(10)
        assert ("delete", "RayCluster", "math-1") in site.writes

    async def test_without_a_default_any_more_what_runs_goes_on(self):
        site = await self.lead(pods((1, 1, 0)))
        site.start({})
        site.written.created(REF, _seen(site), 1e9)
        await site.at(10)
        accepted = condition(site.jobs.get(REF).job.status, "Accepted")
        assert (accepted.reason, site.writes) == ("InvalidSpec", [("status",)])
        assert "by --runtime-image cpu=IMAGE" in accepted.message


def _digest_with_image(spec, images):
    dumped = with_runtime_image(spec, images).model_dump(mode="json", by_alias=True)
    fixed = {}
    for path in FIXED:
        value = dumped
        for part in path.split("."):
            value = value[part]
        fixed[path] = (
            {k: v for k, v in value.items() if k != "template"} if isinstance(value, dict) else value
        )
    both = (json.dumps(part, sort_keys=True).encode() for part in (object_schema(Spec), fixed))
    return ".".join(sha256(part).hexdigest()[:16] for part in both)


def _images(cluster):
    groups = [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]
    return {each["image"] for group in groups for each in group["template"]["spec"]["containers"]}


class TestHostileStatus:
    """Somebody else writes into the status, as the job's own token may."""

    async def test_nothing_is_made_or_deleted_for_it(self):
        site = await _made()
        assert site.objects[CLUSTER]["metadata"]["annotations"]["rljob.dev/failures"] == "0"
        for turn in range(100):
            status = {**site.item["status"], "attempt": turn, "clusterName": f"x-{turn}", "failures": 0}
            site._seen({"status": {**status, "suspendTime": "9999", "training": {"step": "x"}}})
            await site.at(1 + turn * 0.3)
            assert set(site.writes) <= {("status",)}
        site._seen({"status": {**site.item["status"], "attempt": 7}})
        await site.at(70)
        assert site.jobs.get(REF).job.status.cluster_name == "math-1"

    async def test_another_head_ends_no_attempt_where_somebody_else_leads_next(self):
        site = await _made()
        site.pods = pods((1, 1, 0))
        await site.at(5)
        assert site.writes == [("status",), ("patch", *CLUSTER)], "which head it has is noted once"
        site.written.created(REF, _seen(site), 1e9)
        await site.at(6)
        assert site.writes == []
        site.events.clear()
        for head in ("x", None):
            site._seen({"status": {**site.item["status"], "headPod": head}})
            site.start()
            site.written.created(REF, _seen(site), 1e9)
            await site.at(50)
            assert site.item["status"]["headPod"] == "uid-math-1-head-0"
            assert [write for write in site.writes if write != ("status",)] == [] and site.events == []

    async def test_a_head_is_not_noted_on_another_cluster_of_the_name(self):
        site = await _made()
        site.pods = pods((1, 1, 0))
        site.objects[CLUSTER]["metadata"]["uid"] = "another"
        site.seconds, site.writes = 5, []
        assert await site.reconciler.reconcile(REF) < 1, "it is looked at again"
        assert "rljob.dev/head" not in site.objects[CLUSTER]["metadata"]["annotations"]

    async def test_it_is_put_right_now_and_then(self):
        site = await _made()
        writes = 0
        for turn in range(120):
            site._seen({"status": {**site.item["status"], "failures": turn + 1}})
            await site.at(1 + turn * 0.5)
            writes += site.writes.count(("status",))
        assert 2 <= writes <= 4


async def _made():
    """A job whose RayCluster is there."""
    site = Site()
    await site.at(0)
    site.written.created(REF, _seen(site), 1e9)
    return site


class TestOldView:
    """The watch has not brought what the RLJob is by now."""

    def changed(self, site, spec=None, **status):
        """Somebody else has changed the job at the API server."""
        item = json.loads(json.dumps(site.item))
        item["metadata"]["resourceVersion"] = site.stale = "99"
        if spec is not None:
            item["spec"]["runPolicy"] = {**item["spec"].get("runPolicy", {}), **spec}
            item["metadata"]["generation"] += 1
        item["status"] |= status
        site.objects["RLJob", "math"] = site.item = item

    async def test_the_attempt_that_runs_by_now_is_not_deleted(self):
        site = await _made()
        await site.at(5)
        mine = seen_cluster(msgspec.convert(site.objects[CLUSTER], RayClusterItem)).cluster
        site.others = (replace(mine, name="math-2", uid="cluster-2", attempt=2),)
        self.changed(site, attempt=2, clusterName="math-2")
        site.writes = []
        await site.reconciler.reconcile(REF)
        assert site.writes == [("refused",)], "math-2 would have been deleted"

    async def test_a_job_whose_time_was_made_longer_is_not_deleted(self):
        site = Site()
        site.item["spec"]["runPolicy"] = {"ttlSecondsAfterFinished": 100, "startDeadlineSeconds": 60}
        site.change(generation=2)
        site.refused[CLUSTER] = Invalid("create", "unknown field", Refusal(400))
        await site.at(0)
        await site.at(61)
        assert condition(site.jobs.get(REF).job.status, "Failed").status == "True"
        self.changed(site, {"ttlSecondsAfterFinished": 1000})
        site.seconds, site.writes = 200, []
        assert await site.reconciler.reconcile(REF) < 1
        assert site.writes == [("delete", "RLJob", "math")] and ("RLJob", "math") in site.objects
        await site.at(201)
        assert ("delete", "RLJob", "math") not in site.writes
        await site.at(1100)
        assert ("RLJob", "math") not in site.objects

    async def test_one_that_kopf_tells_of_is_read(self):
        site = await _made()
        self.changed(site, {"ttlSecondsAfterFinished": 1000})
        assert site.jobs.heard(site.objects["RLJob", "math"])
        await site.at(5)
        assert site.jobs.get(REF).job.generation == 2 and ("refused",) not in site.writes
        site.reads = 0
        await site.at(6)
        assert site.reads == 0


class TestElsewhere:
    """The namespace has an operator of its own for a while."""

    async def test_nothing_is_done_meanwhile_and_their_status_is_gone_by_afterwards(self, caplog):
        site = await _made()
        site.others_for = 7.0
        assert await site.reconciler.reconcile(REF) == 7.0
        failed = {**site.item["status"], "attempt": 2, "clusterName": "math-2", "failures": 1, "restarts": 1}
        site._seen({"status": failed})
        created = replace(_seen(site).cluster, name="math-2", uid="cluster-2", attempt=2)
        site.others = (replace(created, record=Record(1, 1, failed["startTime"])),)
        for seconds in (10, 20):
            site.seconds, site.writes = seconds, []
            assert await site.reconciler.reconcile(REF) == 7.0
            assert (site.writes, site.reads) == ([], 0)
        site.others_for = None
        await site.at(30)
        status = site.jobs.get(REF).job.status
        assert (status.attempt, status.cluster_name, status.failures) == (2, "math-2", 1)
        assert "put right" not in caplog.text
        assert not [write for write in site.writes if write[0] == "delete"]


class TestConflict:
    async def test_a_job_whose_view_is_old_is_read_again(self):
        """The watch does not bring what was written: without a read every try would be refused."""
        site = Site()
        site.objects["RLJob", "math"] = {**site.item, "metadata": {**site.item["metadata"]}}
        site.objects["RLJob", "math"]["metadata"]["resourceVersion"] = "9"
        site.stale = "9"
        await site.at(0)
        assert site.writes.count(("refused",)) == 1 and CLUSTER in site.objects

    async def test_one_that_is_always_refused_is_tried_ever_more_rarely(self):
        site = Site()
        site.objects["RLJob", "math"], site.stale = site.item, "99999"
        refused = 0
        for turn in range(600):
            site.seconds, site.writes = turn * 0.1, []
            await site.reconciler.reconcile(REF)
            refused += site.writes.count(("refused",))
        assert 5 < refused <= 15

    async def test_once_all_is_done_it_is_not_read_any_more(self):
        site = await _made()
        site.objects["RLJob", "math"] = site.item
        del site.objects["RoleBinding", "math-driver"]
        site.refused["RoleBinding", "math-driver"] = Conflict("create", "no", Refusal(409, "Conflict"))
        site.pods = pods((1, 1, 0))
        await site.at(5)
        site.start()
        site.written.created(REF, _seen(site), 1e9)
        assert await site.reconciler.reconcile(REF) < 1
        site.refused.clear()
        await site.at(20)
        assert ("RoleBinding", "math-driver") in site.objects
        for seconds in (30, 40):
            await site.at(seconds)
            assert site.reads == 0


class TestStale:
    """The watch of RayClusters is dead: plans are made from what they were."""

    @pytest.fixture
    async def site(self):
        """A job that runs, with one more fast rollout worker asked for."""
        site = await _made()
        site.pods = pods((1, 1, 0))
        await site.at(5)
        site.listed = (_seen(site),)
        site.objects["RLJob", "math"] = site.item
        site.item["spec"]["pools"] = {"fastRollout": {"replicas": 2}}
        site.change(generation=2)
        return site

    async def tries(self, site, seconds):
        """How often the API server is asked, where the job is looked at all the time."""
        site.writes, site.reads = [], 0
        for _ in range(seconds * 10):
            site.seconds += 0.1
            await site.reconciler.reconcile(REF)
        return site.reads, len(site.writes)

    def replicas(self, site):
        groups = site.objects[CLUSTER]["spec"]["workerGroupSpecs"]
        return next(each["replicas"] for each in groups if each["groupName"] == "fast-rollout")

    async def test_one_that_is_gone_is_asked_for_ever_more_rarely(self, site):
        there = site.objects.pop(CLUSTER)
        reads, writes = await self.tries(site, 60)
        assert 5 < reads <= 30 and writes <= 2
        site.objects[CLUSTER] = there
        await self.tries(site, 10)
        assert self.replicas(site) == 2
        assert await self.tries(site, 10) == (0, 0), "all is done: it is not read any more"

    async def test_a_head_that_cannot_be_noted_is_tried_ever_more_rarely(self):
        site = await _made()
        site.pods = pods((1, 1, 0))
        site.objects["RLJob", "math"] = site.item
        there = site.objects[CLUSTER]["metadata"]
        there["uid"] = "another"
        site.seconds = 5
        reads, writes = await self.tries(site, 60)
        assert 5 < writes <= 15 and reads <= 15
        there["uid"] = "cluster-1"
        await self.tries(site, 10)
        assert "rljob.dev/head" in site.objects[CLUSTER]["metadata"]["annotations"]

    async def test_one_that_was_read_on_the_way_is_what_the_next_plan_goes_by(self, site):
        """Somebody else has made the group larger, and no watch tells of it."""
        there = json.loads(json.dumps(site.objects[CLUSTER]))
        for group in there["spec"]["workerGroupSpecs"]:
            group["replicas"] += group["groupName"] == "fast-rollout"
        there["metadata"]["resourceVersion"] = "77"
        site.objects[CLUSTER] = there
        await site.at(20)
        assert [write for write in site.writes if write[0] == "patch"] == []
        assert condition(site.jobs.get(REF).job.status, "Running").status == "True"
        assert site.reads <= 3


NO_TYPE = NoSuchResource("any", "404 page not found", Refusal(404))
CONFLICT = Conflict("delete", "no", Refusal(409, "Conflict"))


class TestDenied:
    """A server that has just begun, or something before it, denies for a moment what is there."""

    async def tries(self, site, seconds):
        for _ in range(seconds * 10):
            site.seconds += 0.1
            with suppress(NoSuchResource):
                await site.reconciler.reconcile(REF)

    async def test_the_type_of_a_job_is_not_the_job(self):
        site = Site()
        site.objects["RLJob", "math"], site.denials = site.item, [("apply", NO_TYPE), ("get", NO_TYPE)]
        await self.tries(site, 20)
        assert CLUSTER in site.objects and site.denials == []

    @pytest.mark.parametrize("denial", [NO_TYPE, CONFLICT], ids=["its type", "a conflict"])
    async def test_a_cluster_that_is_to_go_is_deleted_once_that_is_possible(self, denial):
        site = await _made()
        site.objects["RLJob", "math"] = site.item
        site.item["spec"]["suspend"] = True
        site.seconds = 5
        site.change(generation=2)
        site.denials = [("delete", denial)]
        await self.tries(site, 20)
        assert CLUSTER not in site.objects and site.writes.count(("delete", *CLUSTER)) == 2


class TestDefect:
    """The decision itself fails, by a defect of the operator that one spec brings about."""

    @pytest.fixture
    def defect(self, monkeypatch):
        """While it is `there`, nothing can be decided; counts how often that was tried."""
        made = SimpleNamespace(there=True, tries=0)
        works = reconcile_module.decide

        def decide(observed, now):
            made.tries += 1
            if made.there:
                raise KeyError(f"try {made.tries}")
            return works(observed, now)

        monkeypatch.setattr(reconcile_module, "decide", decide)
        return made

    async def looks(self, site, seconds):
        """What is written while the job is looked at ten times a second, as one whose pods change."""
        site.writes = []
        for _ in range(seconds * 10):
            site.seconds += 0.1
            with suppress(NotNow):
                await site.reconciler.reconcile(REF)
        return site.writes

    def accepted(self, site):
        found = condition(site.jobs.get(REF).job.status, "Accepted")
        return found.status, found.reason

    async def test_it_is_told_in_the_status_once_and_tried_ever_more_rarely(self, defect, caplog):
        site = Site()
        with pytest.raises(NotNow):
            await site.reconciler.reconcile(REF)
        assert self.accepted(site) == ("False", "OperatorDefect")
        [(reason, message)] = site.events
        assert reason == "OperatorDefect" and "KeyError" in message
        assert "KeyError" in caplog.text and "Traceback" in caplog.text
        assert await self.looks(site, 120) == [], "the same is not written twice"
        assert 5 <= defect.tries <= 12 and len(site.events) == 1

    async def test_once_it_is_gone_the_job_goes_on_within_a_minute(self, defect):
        site = Site()
        await self.looks(site, 120)
        defect.there = False
        await self.looks(site, 60)
        assert self.accepted(site) == ("True", "Accepted")
        assert CLUSTER in site.objects

    async def test_a_changed_spec_is_decided_on_at_once(self, defect):
        site = Site()
        await self.looks(site, 120)
        defect.there = False
        site.change(generation=2)
        await site.at(site.seconds)
        assert self.accepted(site) == ("True", "Accepted")

    async def test_a_status_that_cannot_be_written_is_written_with_the_next_try(self, defect):
        site = Site()
        site.objects["RLJob", "math"] = site.item
        site.stale = "7"
        assert await self.looks(site, 1) == [("refused",)] * defect.tries
        assert site.events == [], "who reads it finds a condition that says the same"
        # Somebody else has written to it, and no watch tells of that.
        site.item["metadata"] |= {"resourceVersion": "7"}
        assert await self.looks(site, 5) == [("status",)]
        assert self.accepted(site) == ("False", "OperatorDefect")
