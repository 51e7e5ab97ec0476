"""What is done for a job whose status or view is not the truth: another wrote it, or it is old."""

import json
from dataclasses import replace

import msgspec
import pytest

from rljob_client.errors import Conflict, Invalid, Refusal, Unreachable
from rljob_operator.controller.items import RayClusterItem
from rljob_operator.controller.mutation_cache import seen_cluster
from rljob_operator.plan.conditions import condition
from rljob_operator.plan.observed import Record
from tests.support.operator.observations import at, pods
from tests.support.operator.reconciler_site import CLUSTER, REF, ReconcilerSite, made_site


class TestHostileStatus:
    """Somebody else writes into the status, as the job's own token may."""

    async def test_nothing_is_made_or_deleted_for_it(self):
        site = await made_site()
        assert site.objects[CLUSTER]["metadata"]["annotations"]["rljob.dev/failures"] == "0"
        for turn in range(100):
            status = {**site.item["status"], "attempt": turn, "clusterName": f"x-{turn}", "failures": 0}
            site.seen({"status": {**status, "suspendTime": "9999", "training": {"step": "x"}}})
            await site.at(1 + turn * 0.3)
            assert set(site.writes) <= {("status",)}
        site.seen({"status": {**site.item["status"], "attempt": 7}})
        await site.at(70)
        assert site.jobs.get(REF).job.status.cluster_name == "math-1"

    async def test_another_head_ends_no_attempt_where_somebody_else_leads_next(self):
        site = await made_site()
        site.pods = pods((1, 1, 0))
        await site.at(5)
        assert site.writes == [("status",), ("patch", *CLUSTER)], "which head it has is noted once"
        site.written.created(REF, site.seen_cluster(), 1e9)
        await site.at(6)
        assert site.writes == []
        site.events.clear()
        for head in ("x", None):
            site.seen({"status": {**site.item["status"], "headPod": head}})
            site.start()
            site.written.created(REF, site.seen_cluster(), 1e9)
            await site.at(50)
            assert site.item["status"]["headPod"] == "uid-math-1-head-0"
            assert [write for write in site.writes if write != ("status",)] == [] and site.events == []

    async def test_a_head_is_not_noted_on_another_cluster_of_the_name(self):
        site = await made_site()
        site.pods = pods((1, 1, 0))
        site.objects[CLUSTER]["metadata"]["uid"] = "another"
        site.seconds, site.writes = 5, []
        assert await site.reconciler.reconcile(REF) < 1, "it is looked at again"
        assert "rljob.dev/head" not in site.objects[CLUSTER]["metadata"]["annotations"]

    async def test_it_is_put_right_now_and_then(self):
        site = await made_site()
        writes = 0
        for turn in range(120):
            site.seen({"status": {**site.item["status"], "failures": turn + 1}})
            await site.at(1 + turn * 0.5)
            writes += site.writes.count(("status",))
        assert 2 <= writes <= 4


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
        site = await made_site()
        await site.at(5)
        mine = seen_cluster(msgspec.convert(site.objects[CLUSTER], RayClusterItem)).cluster
        site.others = (replace(mine, name="math-2", uid="cluster-2", attempt=2),)
        self.changed(site, attempt=2, clusterName="math-2")
        site.writes = []
        await site.reconciler.reconcile(REF)
        assert site.writes == [("refused",)], "math-2 would have been deleted"

    async def test_a_job_whose_time_was_made_longer_is_not_deleted(self):
        site = ReconcilerSite()
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
        site = await made_site()
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
        site = await made_site()
        site.others_for = 7.0
        assert await site.reconciler.reconcile(REF) == 7.0
        failed = {**site.item["status"], "attempt": 2, "clusterName": "math-2", "failures": 1, "restarts": 1}
        site.seen({"status": failed})
        created = replace(site.seen_cluster().cluster, name="math-2", uid="cluster-2", attempt=2)
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
        site = ReconcilerSite()
        site.objects["RLJob", "math"] = {**site.item, "metadata": {**site.item["metadata"]}}
        site.objects["RLJob", "math"]["metadata"]["resourceVersion"] = "9"
        site.stale = "9"
        await site.at(0)
        assert site.writes.count(("refused",)) == 1 and CLUSTER in site.objects

    async def test_one_that_is_always_refused_is_tried_ever_more_rarely(self):
        site = ReconcilerSite()
        site.objects["RLJob", "math"], site.stale = site.item, "99999"
        refused = 0
        for turn in range(600):
            site.seconds, site.writes = turn * 0.1, []
            await site.reconciler.reconcile(REF)
            refused += site.writes.count(("refused",))
        assert 5 < refused <= 15

    async def test_once_all_is_done_it_is_not_read_any_more(self):
        site = await made_site()
        site.objects["RLJob", "math"] = site.item
        del site.objects["RoleBinding", "math-driver"]
        site.refused["RoleBinding", "math-driver"] = Conflict("create", "no", Refusal(409, "Conflict"))
        site.pods = pods((1, 1, 0))
        await site.at(5)
        site.start()
        site.written.created(REF, site.seen_cluster(), 1e9)
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
        site = await made_site()
        site.pods = pods((1, 1, 0))
        await site.at(5)
        site.listed = (site.seen_cluster(),)
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
        site = await made_site()
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


class TestTimeToRunning:
    """What `rljob_time_to_running_seconds` has of a job."""

    def suspend(self, site, asked, generation):
        site.item["spec"]["suspend"] = asked
        site.change(generation)

    async def test_a_job_counts_once_also_where_a_suspension_is_taken_back(self):
        site = await made_site()
        site.pods = pods((1, 1, 0))
        await site.at(5)
        assert site.time_to_running() == (1, 5)
        site.written.created(REF, site.seen_cluster(), 1e9)
        self.suspend(site, True, 2)
        await site.at(3600)
        assert site.item["status"]["phase"] == "Suspending"
        self.suspend(site, False, 3)
        await site.at(3610)
        assert site.item["status"]["phase"] == "Running"
        assert site.time_to_running() == (1, 5)


class TestOldViewOfPods:
    """The watch of pods is dead, and nobody has noticed yet."""

    async def site(self):
        """A job that runs, whose head the watch told of once."""
        site = await made_site()
        site.pods = pods((1, 1, 0))
        await site.at(5)
        site.written.created(REF, site.seen_cluster(), 1e9)
        await site.at(6)
        assert site.item["status"]["phase"] == "Running"
        site.pods, site.events, site.lists = (), [], 0
        return site

    async def test_an_attempt_that_the_api_server_has_is_not_ended(self):
        site = await self.site()
        site.there = pods((1, 1, 0))
        for turn in range(3):
            await site.at(10 + turn)
        assert site.writes == [] and site.events == [] and site.lists == 3
        assert site.item["status"]["clusterName"] == "math-1"

    async def test_one_that_it_does_not_have_is_ended(self):
        site = await self.site()
        site.there = ()
        await site.at(10)
        assert site.lists == 1 and site.writes[:2] == [("status",), ("delete", *CLUSTER)]
        assert [reason for reason, _ in site.events][:1] == ["HeadLost"]

    async def test_no_other_begins_beside_a_head_that_it_has(self):
        site = await self.site()
        [head, *_] = pods((1, 1, 0))
        site.there = ()
        await site.at(10)
        # Its RayCluster is gone, and the head writes a checkpoint.
        assert CLUSTER not in site.objects
        site.written.forget(REF)
        site.there = (replace(head, deleting=at(60), deletion_grace=30),)
        await site.at(40)
        assert site.ready()[0] == "WaitingForRemoval" and ("RayCluster", "math-2") not in site.objects
        site.there = ()
        await site.at(200)
        assert ("RayCluster", "math-2") in site.objects

    async def test_nothing_is_ended_while_it_does_not_answer(self):
        site = await self.site()
        site.there = ()
        site.denials = [("list", Unreachable("list pods", "no answer"))]
        with pytest.raises(Unreachable):
            await site.at(10)
        assert site.writes == [] and site.item["status"]["clusterName"] == "math-1"

    async def test_pods_that_have_become_ready_unheard_of_fail_no_job(self):
        site = await made_site()
        site.pods = pods((1, 1, 0), ready=False)
        await site.at(5)
        site.written.created(REF, site.seen_cluster(), 1e9)
        site.there = pods((1, 1, 0))
        await site.at(2000)
        assert site.item["status"]["phase"] == "Running"
