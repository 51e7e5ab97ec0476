"""What one look at a job after the other does where the API server refuses things or has lost them."""

from contextlib import suppress

import pytest

from rljob_client.errors import Conflict, Forbidden, Invalid, NoSuchResource, Refusal
from rljob_operator.plan.conditions import condition
from tests.support.operator.observations import pods
from tests.support.operator.reconciler_site import CLUSTER, REF, ReconcilerSite, made_site

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
        site = ReconcilerSite()
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
        site = ReconcilerSite()
        site.refused[CLUSTER] = Invalid("create", "unknown field", Refusal(400))
        await site.at(0)
        site.refused.clear()
        site.change(generation=2)
        await site.at(5)
        assert CLUSTER in site.objects and site.ready()[0] == "CreatingRayCluster"

    async def test_the_job_fails_in_these_words(self):
        site = ReconcilerSite()
        site.refused[CLUSTER] = Invalid("create", "unknown field spec.x", Refusal(400))
        await site.at(0)
        await site.at(1801)
        failed = condition(site.jobs.get(REF).job.status, "Failed")
        assert failed.reason == "StartDeadlineExceeded" and "unknown field spec.x" in failed.message

    async def test_a_namespace_that_goes_is_no_refusal(self):
        site = ReconcilerSite()
        causes = (("NamespaceTerminating", ""),)
        site.refused[CLUSTER] = Forbidden("create", "no", Refusal(403, "Forbidden", "", causes))
        assert await site.at(0) > 400
        assert site.ready()[0] == "CreatingRayCluster" and site.events == []


class TestUnrenderable:
    async def test_it_is_told_once_with_a_trace_and_tried_every_half_minute(self, monkeypatch, caplog):
        def broken(*_):
            raise ZeroDivisionError("somewhere")

        site = ReconcilerSite()
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
        site = ReconcilerSite()
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
        site = ReconcilerSite()
        await site.at(0)
        site.start()
        await site.at(1)
        assert CLUSTER in site.writes
        assert site.ready()[0] == "CreatingRayCluster" and site.events == []


class TestRefusedChange:
    """The API server, or a webhook or policy, does not let the operator change a RayCluster that is there."""

    PATCH = ("patch", *CLUSTER)
    WORDS = "The API server refuses RayCluster math-1: denied by a policy; tried again every half minute."

    @pytest.mark.parametrize(
        ("pods", "kind"),
        [(pods((1, 1, 0)), "Running"), (pods((1, 0, 0)), "PodsReady")],
        ids=["it runs", "it starts"],
    )
    async def test_it_is_told_and_tried_every_half_minute(self, pods, kind):
        site = await made_site()
        site.pods, site.refused[self.PATCH] = pods, Forbidden("patch", "denied by a policy", Refusal(403))

        def told():
            return condition(site.jobs.get(REF).job.status, kind).message.endswith(self.WORDS)

        assert 25 < await site.at(15) <= 30
        assert told() and site.writes.count(self.PATCH) == 1
        assert await site.at(20) > 15 and site.writes == [], "in the same words"
        assert 25 < await site.at(46) <= 30
        assert told() and site.writes == [self.PATCH]
        site.refused.clear()
        await site.at(77)
        await site.at(78)
        assert not told()


class TestRestored:
    @pytest.fixture
    async def site(self):
        """A job that runs."""
        site = ReconcilerSite()
        await site.at(0)
        site.pods = pods((1, 1, 0))
        await site.at(5)
        assert condition(site.jobs.get(REF).job.status, "Running").status == "True"
        site.seconds = 9
        return site

    async def test_a_look_costs_few_reads_and_no_write(self, site):
        site.start()
        site.written.created(REF, site.seen_cluster(), 1e9)
        for seconds, reads in ((10, 4), (11, 0), (300, 0), (460, 4), (470, 0)):
            await site.at(seconds)
            assert (site.reads, site.writes) == (reads, []), seconds

    @pytest.mark.parametrize("kind", ["ServiceAccount", "Role", "RoleBinding"])
    async def test_what_was_deleted_comes_back(self, site, kind):
        site.start()
        site.written.created(REF, site.seen_cluster(), 1e9)
        del site.objects[kind, "math-driver"]
        await site.at(10)
        assert site.writes == [(kind, "math-driver")] and (kind, "math-driver") in site.objects

    async def test_it_is_tried_again_where_it_is_refused(self, site):
        site.start()
        site.written.created(REF, site.seen_cluster(), 1e9)
        del site.objects["RoleBinding", "math-driver"]
        site.refused["RoleBinding", "math-driver"] = Forbidden("create", "no", Refusal(403, "Forbidden"))
        assert 25 < await site.at(10) <= 30
        found = condition(site.jobs.get(REF).job.status, "Running")
        words = "The API server refuses RoleBinding math-driver: no; tried again every half minute."
        assert (found.status, found.message) == ("True", f"Attempt 1 runs. {words}")
        assert await site.at(20) > 15 and site.writes == []
        site.refused.clear()
        await site.at(41)
        assert ("RoleBinding", "math-driver") in site.objects
        await site.at(42)
        assert condition(site.jobs.get(REF).job.status, "Running").message == "Attempt 1 runs."

    async def test_what_cannot_be_rendered_is_told_once_with_a_trace(self, site, monkeypatch, caplog):
        def broken(*_):
            raise ZeroDivisionError("somewhere")

        site.start()
        site.written.created(REF, site.seen_cluster(), 1e9)
        monkeypatch.setattr("rljob_operator.controller.act.access_objects", broken)
        for seconds in (10, 41, 72):
            assert 25 < await site.at(seconds) <= 30
        found = condition(site.jobs.get(REF).job.status, "Running")
        assert "by a defect of the operator: ZeroDivisionError" in found.message
        assert caplog.text.count("ZeroDivisionError: somewhere") == 1


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
        site = ReconcilerSite()
        site.objects["RLJob", "math"], site.denials = site.item, [("apply", NO_TYPE), ("get", NO_TYPE)]
        await self.tries(site, 20)
        assert CLUSTER in site.objects and site.denials == []

    @pytest.mark.parametrize("denial", [NO_TYPE, CONFLICT], ids=["its type", "a conflict"])
    async def test_a_cluster_that_is_to_go_is_deleted_once_that_is_possible(self, denial):
        site = await made_site()
        site.objects["RLJob", "math"] = site.item
        site.item["spec"]["suspend"] = True
        site.seconds = 5
        site.change(generation=2)
        site.denials = [("delete", denial)]
        await self.tries(site, 20)
        assert CLUSTER not in site.objects and site.writes.count(("delete", *CLUSTER)) == 2
