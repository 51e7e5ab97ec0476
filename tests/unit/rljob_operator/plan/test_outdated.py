"""A spec that is changed within a suspension that nobody saw."""

from dataclasses import replace

import pytest

from rljob_operator.plan import outdated
from rljob_operator.plan.observed import Observed, Queue
from rljob_operator.plan.plan import CreateCluster, DeleteCluster
from rljob_operator.plan.times import stamp
from tests.support.operator.observations import (
    at,
    cluster,
    new_job,
    observe,
    planned,
    pod,
    pods,
    running,
    said,
    said_of,
    spec,
    told,
    waiting_pod,
    with_pods,
)

OTHER = spec({"image": "other:2"})


WAITING = tuple(waiting_pod(role) for role in ("head", "trainer", "fastRollout"))


def starting(existing=WAITING, job_queue=None, **fields):
    """A job whose first attempt has a RayCluster."""
    new = Observed(new_job(queue=job_queue), (), ())
    begun = observe(new, planned(new, 0), clusters=(cluster(**fields),), pods=existing)
    return observe(begun, planned(begun, 5))


def with_status(observed, **fields):
    status = observed.job.status.model_copy(update=fields)
    return replace(observed, job=replace(observed.job, status=status))


FIXED = {
    "image": "other:2",
    "training.schedule.totalSteps": 7,
    "accelerator": "nvidia",
    "storage.volume": {"emptyDir": {}},
    "pools.trainer.cpusPerWorker": 2,
    "pools.heavyRollout.sharedMemory": "1Gi",
    "pools.head.resources": {"limits": {"cpu": "2"}},
    "pools.head.sharedMemory": "1Gi",
}
FREE = {
    "suspend": True,
    "pools.trainer.replicas": 3,
    "pools.fastRollout": {"replicas": 3, "minReplicas": 1, "maxReplicas": 9},
    "runPolicy.drainGraceSeconds": 7,
    "pools.head.template": {"spec": {"nodeSelector": {"a": "b"}}},
    "pools.trainer.template": {"spec": {"nodeSelector": {"a": "b"}}},
}


@pytest.mark.parametrize("path", FIXED)
def test_what_is_fixed_while_a_job_runs_is_compared(path):
    assert outdated.outdated(running().job.status, spec({path: FIXED[path]}))


@pytest.mark.parametrize("path", FREE)
def test_what_may_change_while_a_job_runs_is_not_compared(path):
    assert not outdated.outdated(running().job.status, spec({path: FREE[path]}))


@pytest.mark.parametrize("digest", [None, "0123456789abcdef.0123456789abcdef", ""])
def test_what_another_release_wrote_is_not_compared(digest):
    observed = with_status(running(), spec_digest=digest)
    changed = observe(observed, planned(observed, 61), spec=OTHER)
    plan = planned(changed, 100)
    assert said_of(plan, "Accepted")[:2] == ("True", "Accepted")
    assert plan.status.spec_digest == digest and not plan.actions


def test_a_running_attempt_goes_on_and_it_is_told_once_that_the_change_waits():
    changed = observe(running(), planned(running(), 61), spec=OTHER)
    plan = planned(changed, 100)
    assert (plan.status.phase, plan.actions, told(plan)) == ("Running", (), ["SpecOutdated"])
    assert said_of(plan, "Accepted") == (
        "True",
        "SpecOutdated",
        "The spec is valid. Attempt 1 goes on with an earlier one: set spec.suspend to true until the phase "
        "is Suspended, for the change to take effect.",
    )
    again = observe(changed, plan)
    assert planned(again, 200).status == again.job.status and told(planned(again, 200)) == []
    back = planned(observe(again, planned(again, 200), spec=spec()), 300)
    assert said_of(back, "Accepted")[1] == "Accepted"


def test_the_next_attempt_has_the_change():
    changed = observe(running(), planned(running(), 61), spec=OTHER)
    told_so = observe(changed, planned(changed, 100))
    lost = with_pods(told_so, without=("math-1-head-0",))
    over = observe(lost, planned(lost, 400), clusters=(), pods=())
    plan = planned(over, 500)
    assert said_of(plan, "Accepted")[1] == "Accepted"
    assert not outdated.outdated(plan.status, OTHER) and plan.status.attempt == 2


def test_a_suspension_that_is_seen_needs_no_telling():
    wish = observe(running(), planned(running(), 61), spec=spec({"suspend": True, "image": "other:2"}))
    assert told(planned(wish, 100)) == []
    assert said_of(planned(wish, 100), "Accepted")[1] == "Accepted"


NOT_STARTED = {
    "pods wait for their image": starting(),
    "there are no pods": starting(()),
    "Kueue has not admitted it": starting((), Queue("team-a"), queue="team-a", suspended=True),
}


@pytest.mark.parametrize("observed", NOT_STARTED.values(), ids=NOT_STARTED)
def test_an_attempt_whose_driver_has_not_started_ends_for_one_with_the_change(observed):
    changed = observe(observed, planned(observed, 6), spec=OTHER)
    over = planned(changed, 20)
    assert over.actions == (DeleteCluster("math-1", "cluster-1"),)
    assert (over.status.phase, over.status.failures) == ("Restarting", 0)
    assert told(over) == ["Restarting"] and said_of(over, "Running")[1] == "SpecOutdated"
    gone = observe(changed, over, clusters=(), pods=())
    assert CreateCluster("math-2", 2) in planned(gone, 40).actions


def test_an_attempt_that_starts_goes_on_once_its_driver_runs():
    observed = with_pods(starting(), pod("head"))
    plan = planned(observe(observed, planned(observed, 6), spec=OTHER), 20)
    assert plan.status.phase == "Starting" and plan.actions == ()
    assert said_of(plan, "Accepted")[1] == "SpecOutdated"


@pytest.mark.parametrize("existing", [WAITING, ()], ids=["its start is not seen", "its head is not seen"])
def test_an_attempt_whose_driver_reports_goes_on_though_its_pod_is_not_seen_to_run(existing):
    observed = with_status(starting(existing), training=said(time=stamp(at(10))))
    changed = observe(observed, planned(observed, 11), spec=OTHER)
    plan = planned(changed, 20)
    assert (plan.status.phase, plan.actions, plan.requeue_after) == ("Starting", (), 50)
    assert planned(observe(changed, plan), 70).status.phase == "Restarting"


def test_an_attempt_goes_on_while_the_changed_spec_cannot_be_carried_out():
    changed = observe(starting(), planned(starting(), 6), spec=OTHER)
    changed = replace(changed, job=replace(changed.job, invalid="image: no such."))
    plan = planned(changed, 20)
    assert plan.status.phase == "Starting" and plan.actions == ()
    assert said_of(plan, "Accepted")[1] == "InvalidSpec"


def test_a_ray_cluster_that_is_made_late_is_made_from_the_spec_as_it_is():
    """Such as one that the API server refused at first."""
    new = Observed(new_job(), (), ())
    changed = observe(new, planned(new, 0), spec=OTHER)
    made = planned(changed, 10)
    assert CreateCluster("math-1", 1) in made.actions
    begun = planned(observe(changed, made, clusters=(cluster(),), pods=pods()), 20)
    assert begun.status.phase == "Running" and said_of(begun, "Accepted")[1] == "Accepted"


def test_a_job_that_was_done_under_another_spec_is_trained_by_the_one_it_has():
    """Its driver was done when the suspension's grace was over, and the user wants more, before anybody
    looked."""
    wish = observe(running(), planned(running(), 99), spec=spec({"suspend": True}))
    asked = observe(wish, planned(wish, 100))
    done = said(step=10, completed=True)
    released = observe(asked, planned(asked, 400), clusters=(), pods=(), training=done)
    assert planned(released, 420).status.phase == "Complete"
    more = {"training.schedule.totalSteps": 20}
    waiting = replace(released, job=replace(released.job, spec=spec({"suspend": True, **more})))
    assert planned(waiting, 420).status.phase == "Suspended"
    resumed = replace(waiting, job=replace(waiting.job, spec=spec(more)))
    plan = planned(resumed, 420)
    assert plan.status.attempt == 2 and CreateCluster("math-2", 2) in plan.actions
    begun = observe(resumed, plan, clusters=(cluster(2),), pods=pods(attempt=2))
    assert planned(begun, 440).status.phase == "Running"
