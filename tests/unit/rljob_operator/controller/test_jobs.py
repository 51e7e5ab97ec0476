"""RLJobs as an API server returns them: under a definition of this release, a newer one and an older one."""

from rljob_operator.controller.jobs import JobStore, parse
from rljob_operator.plan.conditions import condition
from rljob_operator.plan.observed import Observed
from rljob_operator.plan.outdated import mark
from tests.support.jobs import job
from tests.support.operator.observations import planned

NEWER = {"runPolicy.retryPolicy": {"mode": "fast"}, "training.optimizer.epsilonRoot": 0.0}


def item(changes=None, generation=1, version="1", **more):
    made = job({"image": "i", "/metadata.name": "math", "/metadata.namespace": "default", **(changes or {})})
    made["metadata"] |= {
        "uid": "u",
        "creationTimestamp": "2026-11-21T14:02:00Z",
        "generation": generation,
        "resourceVersion": version,
    }
    return made | more


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


class TestStore:
    def store(self, *items):
        store = JobStore(lambda ref: None, {})
        for each in items:
            store.seen(each)
        return store.get(("default", "math")).job

    def test_a_spec_that_is_known_is_not_parsed_again(self):
        first = item()
        store = JobStore(lambda ref: None, {})
        store.seen(first)
        before = store.get(("default", "math")).job.spec
        store.seen(item(version="2", status={"attempt": 1}))
        assert store.get(("default", "math")).job.spec is before

    def test_the_same_generation_reads_otherwise_once_the_definition_is_replaced(self):
        unknown = item({"training.rollout.engine": {"mlx": {}}})
        torch = item({"training.rollout.engine": {"torch": {}}}, version="2")
        assert self.store(unknown, torch).spec is not None
        assert self.store(item(NEWER), item(version="2")).left_out == ()
