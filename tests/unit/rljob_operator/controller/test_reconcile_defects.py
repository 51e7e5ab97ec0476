"""What is told, and tried again, where the operator fails or the definition is an older one."""

from contextlib import suppress
from types import SimpleNamespace

import pytest

from rljob_operator.controller import reconcile as reconcile_module
from rljob_operator.kube.work_queue import NotNow
from rljob_operator.plan.conditions import condition
from tests.support.operator.reconciler_site import CLUSTER, REF, ReconcilerSite, made_site


class TestOlderDefinition:
    """A definition that lacks a field of the status."""

    async def test_the_job_goes_on_and_nothing_is_written_twice(self, caplog):
        site = ReconcilerSite()
        site.storable = lambda status: status.model_copy(update={"spec_digest": None})
        await site.at(0)
        site.written.created(REF, site.seen_cluster(), 1e9)
        assert "specDigest" not in site.item["status"] and site.item["status"]["attempt"] == 1
        for turn in range(50):
            site.seen({})
            await site.at(31 * (turn + 1))
            assert site.writes == [] or turn == 0
        assert "put right" not in caplog.text

    async def test_what_was_stored_before_is_left_as_it_is(self, caplog):
        """A definition is replaced by an older one; no watch tells what it prunes."""
        site = await made_site()
        await site.at(40)
        assert site.item["status"]["specDigest"]
        site.storable = lambda status: status.model_copy(update={"spec_digest": None})
        await site.at(41)
        assert site.writes == [] and "put right" not in caplog.text

    async def test_all_is_written_once_it_can_be(self):
        site = ReconcilerSite()
        site.storable = lambda status: status.model_copy(update={"spec_digest": None})
        await site.at(0)
        site.written.created(REF, site.seen_cluster(), 1e9)
        site.storable = lambda status: status
        await site.at(1)
        assert site.item["status"]["specDigest"]


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
        site = ReconcilerSite()
        with pytest.raises(NotNow):
            await site.reconciler.reconcile(REF)
        assert self.accepted(site) == ("False", "OperatorDefect")
        [(reason, message)] = site.events
        assert reason == "OperatorDefect" and "KeyError" in message
        assert "KeyError" in caplog.text and "Traceback" in caplog.text
        assert await self.looks(site, 120) == [], "the same is not written twice"
        assert 5 <= defect.tries <= 12 and len(site.events) == 1

    async def test_once_it_is_gone_the_job_goes_on_within_a_minute(self, defect):
        site = ReconcilerSite()
        await self.looks(site, 120)
        defect.there = False
        await self.looks(site, 60)
        assert self.accepted(site) == ("True", "Accepted")
        assert CLUSTER in site.objects

    async def test_a_changed_spec_is_decided_on_at_once(self, defect):
        site = ReconcilerSite()
        await self.looks(site, 120)
        defect.there = False
        site.change(generation=2)
        await site.at(site.seconds)
        assert self.accepted(site) == ("True", "Accepted")

    async def test_a_status_that_cannot_be_written_is_written_with_the_next_try(self, defect):
        site = ReconcilerSite()
        site.objects["RLJob", "math"] = site.item
        site.stale = "7"
        assert await self.looks(site, 1) == [("refused",)] * defect.tries
        assert site.events == [], "who reads it finds a condition that says the same"
        # Somebody else has written to it, and no watch tells of that.
        site.item["metadata"] |= {"resourceVersion": "7"}
        assert await self.looks(site, 5) == [("status",)]
        assert self.accepted(site) == ("False", "OperatorDefect")
