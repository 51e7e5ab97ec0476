"""Which image an attempt keeps and the next one gets, where the operator's default changes."""

import json
from hashlib import sha256

import pytest

from rljob_api.crd import object_schema
from rljob_api.job import Spec
from rljob_operator.plan.conditions import condition
from rljob_operator.plan.outdated import FIXED
from rljob_operator.render.images import with_runtime_image
from tests.support.operator.observations import pod, pods, waiting_pod
from tests.support.operator.reconciler_site import CLUSTER, REF, ReconcilerSite


class TestDefaultImage:
    """A job that names no image, and an operator that is given another default."""

    OLD, NEW = {"cpu": "site/runtime:1"}, {"cpu": "site/runtime:2"}

    async def lead(self, existing):
        """An attempt that was begun with the old default, and then a leader with the new one."""
        site = ReconcilerSite(image=None, defaults=self.OLD)
        await site.at(0)
        site.written.created(REF, site.seen_cluster(), 1e9)
        site.pods = existing
        await site.at(5)
        cluster = site.seen_cluster()
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
        site.seen({"status": {**site.item["status"], "specDigest": digest}})
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
        site.written.created(REF, site.seen_cluster(), 1e9)
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
