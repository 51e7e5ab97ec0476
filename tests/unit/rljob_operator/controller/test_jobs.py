"""RLJobs as an API server returns them: under a definition of this release, a newer one and an older one."""

import msgspec
import pytest

from rljob_operator.controller.items import RLJobItem
from rljob_operator.controller.jobs import JobStore, parse
from rljob_operator.plan.conditions import condition
from rljob_operator.plan.observed import Observed
from rljob_operator.plan.outdated import mark
from tests.support.jobs import job
from tests.support.operator.observations import planned

REF = ("default", "math")
NEWER = {"runPolicy.retryPolicy": {"mode": "fast"}, "training.optimizer.epsilonRoot": 0.0}


def item(changes=None, generation=1, version="1", **more):
    made = job({"image": "i", "/metadata.name": "math", "/metadata.namespace": "default", **(changes or {})})
    made["metadata"] |= {
        "uid": "u",
        "creationTimestamp": "2026-11-21T14:02:00Z",
        "generation": generation,
        "resourceVersion": version,
    }
    return msgspec.convert(made | more, RLJobItem)


def test_the_defaults_of_a_newer_definition_change_nothing_but_a_message():
    newer, now = parse(item(NEWER), None, {}), parse(item(), None, {})
    assert newer.spec == now.spec and newer.invalid is None
    assert mark(newer.spec) == mark(now.spec)
    plan, same = (planned(Observed(each, (), ()), 0) for each in (newer, now))
    assert plan.actions == same.actions and plan.events == same.events
    told = condition(plan.status, "Accepted")
    assert (told.status, told.reason) == ("True", "Accepted")
    left_out = "spec.runPolicy.retryPolicy, spec.training.optimizer.epsilonRoot"
    assert told.message == f"The spec is valid. This operator's release has no {left_out}: left out."


def test_what_a_newer_definition_lets_choose_is_refused_by_name_and_what_runs_goes_on():
    read = parse(item({"training.rollout.engine": {"mlx": {"threads": 4}}}), None, {})
    assert read.spec is None
    plan = planned(Observed(read, (), ()), 0)
    assert plan.actions == ()
    told = condition(plan.status, "Accepted")
    assert (told.status, told.reason) == ("False", "InvalidSpec")
    assert told.message == (
        "The spec cannot be read: spec.training.rollout.engine.mlx: unknown here (known: vllm, torch). (The "
        "cluster's definition of RLJobs accepted it: it and this operator are of different releases. Bring "
        "both to the same one.) What runs goes on; nothing new is started."
    )


def nested(levels):
    inner = 1
    for _ in range(levels):
        inner = {"a": inner}
    return inner


class TestUnreadable:
    """Specs that a definition of this release accepts, and of which nothing can be made."""

    @pytest.mark.parametrize("levels", [61, 900])
    def test_a_template_that_is_nested_too_deep(self, levels):
        deep = item()
        deep.spec["pools"] = {"head": {"template": nested(levels)}}
        read = parse(deep, None, {})
        told = condition(planned(Observed(read, (), ()), 0).status, "Accepted")
        assert (read.spec, told.status, told.reason) == (None, "False", "InvalidSpec")
        assert told.message == (
            "The spec cannot be read: spec.pools.head.template: must not be nested deeper than 60 levels: "
            "write what Kubernetes knows of this field, which has fewer than 20. What runs goes on; nothing "
            "new is started."
        )

    @pytest.mark.parametrize("sides", [("limits",), ("requests", "limits")])
    def test_an_amount_of_very_many_digits(self, sides):
        """As a definition of an earlier release lets through."""
        amounts = {side: {"memory": "9" * 5000} for side in sides}
        read = parse(item({"pools.head.resources": amounts, "pools.head.sharedMemory": "1Gi"}), None, {})
        assert read.spec is None
        assert "spec.pools.head.resources.limits.memory: must be a quantity" in read.invalid
        assert len(read.invalid) < 1000

    def test_an_answer_of_the_api_server_is_read_as_the_watch_is(self):
        site = Site()
        site.watch(1, 1)
        answer = {"metadata": {"name": "math", "namespace": "default", "uid": "u", "resourceVersion": "2"}}
        answer["metadata"]["creationTimestamp"] = "2026-11-21T14:02:00Z"
        site.store.answered({**answer, "spec": {**item().spec, "storage": {"volume": nested(900)}}})
        assert "spec.storage.volume: must not be nested" in site.store.get(REF).job.invalid

    def test_any_defect_in_reading_one_costs_that_job_alone_and_is_logged_once(self, monkeypatch, caplog):
        def broken(spec):
            if spec.image == "broken":
                raise ZeroDivisionError("somewhere")
            return []

        monkeypatch.setattr("rljob_operator.controller.jobs.refusals", broken)
        store = JobStore(lambda ref: None, {})
        for version in ("1", "2"):
            store.seen(REF, store.read(item({"image": "broken"}, version=version)))
        found = store.get(REF).job
        assert found.spec is None
        assert found.invalid == "The spec cannot be read, by a defect of the operator: ZeroDivisionError."
        assert caplog.text.count("default/math: the spec cannot be read") == 1
        assert parse(item(), None, {}).invalid is None


class TestStore:
    def store(self, *items):
        store = JobStore(lambda ref: None, {})
        for each in items:
            store.seen(REF, store.read(each))
        return store.get(REF).job

    def test_a_spec_that_is_known_is_not_parsed_again(self):
        first = item()
        store = JobStore(lambda ref: None, {})
        store.seen(REF, store.read(first))
        before = store.get(REF).job.spec
        store.seen(REF, store.read(item(version="2", status={"attempt": 1})))
        assert store.get(REF).job.spec is before

    def test_the_same_generation_reads_otherwise_once_the_definition_is_replaced(self):
        unknown = item({"training.rollout.engine": {"mlx": {}}})
        torch = item({"training.rollout.engine": {"torch": {}}}, version="2")
        assert self.store(unknown, torch).spec is not None
        assert self.store(item(NEWER), item(version="2")).left_out == ()


class Site:
    """A store, and whom it has woken."""

    def __init__(self):
        self.woken = 0
        self.store = JobStore(self.wake, {})

    def wake(self, ref):
        self.woken += 1

    def watch(self, attempt, version, uid="u"):
        """The informer brings a version; None for `attempt`: it finds the job gone."""
        self.store.seen(REF, None if attempt is None else self.store.read(self._item(attempt, version, uid)))

    def answer(self, attempt, version, uid="u"):
        """A request of the operator's own brings one."""
        self.store.answered(msgspec.to_builtins(self._item(attempt, version, uid)))

    def hear(self, version):
        """kopf tells of one; whether it is new."""
        return self.store.heard(
            {"metadata": {"namespace": "default", "name": "math", "resourceVersion": str(version)}}
        )

    def _item(self, attempt, version, uid):
        made = item(version=str(version), status={"attempt": attempt})
        made.metadata.uid = uid
        return made

    @property
    def known(self):
        """Attempt and version; None where there is no job."""
        entry = self.store.get(REF)
        return None if entry is None else (entry.job.status.attempt, int(entry.version))

    @property
    def count(self):
        """The jobs that have not begun."""
        return self.store.count("Pending", lambda namespace: False)


class TestViews:
    """What the informer brings, and what the operator's own requests are answered."""

    @pytest.mark.parametrize(
        ("steps", "known", "woken"),
        [
            ([("watch", 1, 5)], (1, 5), 1),
            ([("watch", 1, 5), ("watch", 1, 6)], (1, 6), 1),
            ([("watch", 1, 5), ("watch", 2, 6)], (2, 6), 2),
            # Its own write is known at once, and what is older comes after it.
            ([("watch", 1, 5), ("answer", 2, 8), ("watch", 1, 6)], (2, 8), 2),
            ([("watch", 1, 5), ("answer", 2, 8), ("watch", 2, 8)], (2, 8), 2),
            ([("watch", 1, 5), ("answer", 2, 8), ("watch", 3, 9)], (3, 9), 3),
            # An answer that comes late.
            ([("watch", 2, 8), ("answer", 1, 7)], (2, 8), 1),
            # It went, and nothing that was under way brings it back.
            ([("watch", 1, 5), ("watch", None, 6), ("answer", 1, 5)], None, 2),
            ([("watch", 1, 5), ("answer", 2, 8), ("watch", None, 9)], None, 3),
            # A successor of the same name.
            ([("watch", 1, 5), ("watch", 0, 9, "v")], (0, 9), 2),
            ([("watch", 1, 5), ("answer", 0, 9, "v"), ("watch", 1, 6)], (0, 9), 2),
            # The API server was restored from a backup: versions begin at a lower number.
            ([("watch", 2, 80), ("watch", 1, 40)], (1, 40), 2),
        ],
    )
    def test_the_newest_counts(self, steps, known, woken):
        site = Site()
        for name, *arguments in steps:
            getattr(site, name)(*arguments)
        assert (site.known, site.woken) == (known, woken)

    def test_one_that_was_found_gone_does_not_come_back(self):
        """A read tells it before the watch does."""
        site = Site()
        site.watch(1, 5)
        site.store.drop(REF, "another")
        assert site.known == (1, 5)
        site.store.drop(REF, "u")
        site.watch(1, 6)
        assert site.known is None and site.woken == 2 and site.count == 0
        site.watch(None, 7)
        site.watch(0, 9, "v")
        assert site.known == (0, 9) and site.woken == 3 and site.count == 1

    def test_word_of_a_newer_version_makes_it_read_unless_the_watch_brings_it(self):
        site = Site()
        assert not site.hear(3) and not site.store.behind(REF), "one that is not known is yet to be listed"
        site.watch(1, 5)
        assert not site.hear(4) and not site.hear(5) and not site.store.behind(REF)
        assert site.hear(7) and site.store.behind(REF)
        site.watch(1, 6)
        assert site.store.behind(REF)
        site.watch(1, 7)
        assert not site.store.behind(REF)
        assert site.hear(9)
        site.answer(2, 9)
        assert not site.store.behind(REF) and site.known == (2, 9)


def test_jobs_of_a_namespace_with_an_operator_of_its_own_are_counted_by_that_one_alone():
    store = JobStore(lambda ref: None, {})
    for namespace in ("default", "theirs"):
        made = item({"/metadata.namespace": namespace})
        store.seen((namespace, "math"), store.read(made))
    theirs = {"theirs"}
    assert store.count("Pending", theirs.__contains__) == 1
    theirs.clear()
    assert store.count("Pending", theirs.__contains__) == 2
