"""What of a running attempt is made again, when, and what is told meanwhile."""

from dataclasses import replace

import pytest

from rljob_operator.plan.observed import CreationFailure, Observed
from rljob_operator.plan.plan import CreateCluster, EnsureAccess, NoteHead, RestoreAccess, ScaleGroup
from tests.support.operator.observations import (
    at,
    cluster,
    new_job,
    observe,
    planned,
    pod,
    running,
    said_of,
    spec,
    told,
    waiting_pod,
)

NEW = Observed(new_job(spec()), (), ())
CREATE = (EnsureAccess(), CreateCluster("math-1", 1))
BEGUN = observe(NEW, planned(NEW, 0))


def creation_failure(
    reason="RayClusterRefused", message="The API server refuses it: no.", seconds=30, name="math-1"
):
    return CreationFailure(name, reason, message, at(seconds))


class TestFailedToCreate:
    @pytest.mark.parametrize("reason", ["RayClusterRefused", "NameTaken"])
    def test_it_is_told_once_and_tried_again_after_its_time(self, reason):
        failed = replace(BEGUN, creation_failure=creation_failure(reason))
        plan = planned(failed, 1)
        assert plan.actions == () and plan.requeue_after == 29
        words = "The API server refuses it: no; start deadline 14:32 UTC."
        assert said_of(plan, "PodsReady") == ("False", reason, words)
        assert [(each.type, each.reason, each.message) for each in plan.events] == [
            ("Warning", reason, words)
        ]
        due = planned(observe(failed, plan), 30)
        assert due.actions == CREATE and not due.events and due.requeue_after == 10
        assert said_of(due, "PodsReady") == said_of(plan, "PodsReady"), "it flips with each try"
        still = replace(observe(failed, due), creation_failure=creation_failure(reason, seconds=60))
        assert planned(still, 30).status == still.job.status and not told(planned(still, 30))

    def test_once_it_is_made_the_reason_goes(self):
        failed = replace(BEGUN, creation_failure=creation_failure())
        told_of = observe(failed, planned(failed, 1), creation_failure=None, clusters=(cluster(),))
        made = planned(told_of, 31)
        assert said_of(made, "PodsReady")[1] == "WaitingForPods" and told(made) == ["CreatedRayCluster"]

    def test_another_spec_is_tried_at_once(self):
        failed = replace(BEGUN, creation_failure=creation_failure())
        changed = observe(failed, planned(failed, 1), creation_failure=None)
        plan = planned(changed, 2)
        assert plan.actions == CREATE and said_of(plan, "PodsReady")[1] == "CreatingRayCluster"

    def test_one_of_an_earlier_attempt_hinders_nothing(self):
        assert planned(replace(BEGUN, creation_failure=creation_failure(name="math-0")), 1).actions == CREATE

    def test_it_ends_the_job_at_the_start_deadline_in_its_own_words(self):
        failed = replace(BEGUN, creation_failure=creation_failure(seconds=1810))
        plan = planned(failed, 1800)
        assert said_of(plan, "Failed")[1] == "StartDeadlineExceeded"
        assert said_of(plan, "Failed")[2].endswith("The API server refuses it: no.")

    def test_long_words_leave_room_for_the_deadline(self):
        failed = replace(
            BEGUN, creation_failure=creation_failure(message="The API server refuses it: " + "no " * 1000)
        )
        assert said_of(planned(failed, 1), "PodsReady")[2].endswith("; start deadline 14:32 UTC.")

    def test_what_is_missing_in_the_cluster_is_told_first(self):
        failed = replace(BEGUN, creation_failure=creation_failure(), kuberay="missing")
        assert said_of(planned(failed, 31), "PodsReady")[1] == "KubeRayMissing"
        assert planned(failed, 31).actions == ()


STARTING = observe(
    BEGUN,
    planned(BEGUN, 1),
    clusters=(cluster(),),
    pods=(pod("head"), waiting_pod("trainer"), waiting_pod("fastRollout")),
)
SUSPENDED = observe(NEW, planned(NEW, 0), spec=spec({"suspend": True}))
RUNNING = running()

DUE = {
    # what: (the job, what is done when its access objects are due to be looked at)
    "runs": (RUNNING, (RestoreAccess(),)),
    "starts, and has a head": (STARTING, (RestoreAccess(),)),
    "was just created": (replace(STARTING, pods=()), ()),
    "waits in a queue": (
        replace(STARTING, pods=(), clusters=(cluster(queue="team", suspended=True),)),
        (),
    ),
    "has no RayCluster yet": (BEGUN, CREATE),
    "cannot be rendered any more": (replace(RUNNING, job=replace(RUNNING.job, invalid="spec.x: no.")), ()),
    "is suspended": (SUSPENDED, ()),
    "is being deleted": (replace(RUNNING, job=replace(RUNNING.job, deleting=True)), ()),
}


@pytest.mark.parametrize(("observed", "actions"), DUE.values(), ids=DUE)
def test_access_objects_are_looked_at_while_there_is_a_driver(observed, actions):
    plan = planned(replace(observed, access_due=True), 5)
    assert plan.actions == actions
    assert RestoreAccess() not in planned(observed, 5).actions


def test_a_look_at_the_access_objects_changes_nothing_else():
    plan = planned(replace(RUNNING, access_due=True), 1000)
    assert (plan.status, plan.events, plan.requeue_after) == (RUNNING.job.status, (), None)


def test_access_objects_that_are_refused_are_tried_again_after_their_time():
    refused = replace(RUNNING, access_due=True, access_failure=creation_failure(seconds=1030))
    plan = planned(refused, 1000)
    assert (plan.actions, plan.requeue_after, plan.events) == ((), 30, ())
    text = "Attempt 1 runs. The API server refuses it: no; tried again every half minute."
    assert said_of(plan, "Running") == ("True", "Running", text)
    assert planned(refused, 1030).actions == (RestoreAccess(),)
    mended = planned(observe(refused, plan, access_due=False, access_failure=None), 1031)
    assert said_of(mended, "Running")[2] == "Attempt 1 runs."


def test_refused_access_objects_hold_up_no_resize_and_are_told_beside_a_refused_one():
    refused = replace(RUNNING, access_due=True, access_failure=creation_failure(seconds=1030))
    larger = replace(refused, job=replace(refused.job, spec=spec(pools=(1, 3, 0)), generation=2))
    assert [type(each) for each in planned(larger, 1000).actions] == [ScaleGroup]
    both = replace(larger, creation_failure=creation_failure(message="No quota.", seconds=1010))
    plan = planned(both, 1000)
    assert (plan.actions, plan.requeue_after) == ((), 10)
    assert said_of(plan, "Running")[2] == (
        "Attempt 1 runs. No quota; tried again every half minute. "
        "The API server refuses it: no; tried again every half minute."
    )


def test_a_refused_resize_holds_up_no_look_at_the_access_objects():
    refused = replace(RUNNING, access_due=True, creation_failure=creation_failure(seconds=1030))
    assert planned(refused, 1000).actions == (RestoreAccess(),)


def test_a_cluster_is_not_asked_for_while_its_name_is_anothers():
    taken = replace(BEGUN, clusters=(cluster(owner="another"),))
    assert planned(taken, 5).actions == ()
    assert planned(replace(BEGUN, clusters=(cluster(2, owner="another"),)), 5).actions == CREATE


class TestNotedHead:
    """Which head an attempt has is noted where the job's own token cannot write."""

    def noted(self, **fields):
        seen = replace(running(), clusters=(cluster(**fields),))
        return [each for each in planned(seen, 70).actions if isinstance(each, NoteHead)]

    def test_it_is_noted_once(self):
        assert self.noted(head=None) == [NoteHead("math-1", "cluster-1", "uid-math-1-head-0")]
        assert self.noted(head="uid-math-1-head-0") == []

    def test_another_that_is_noted_stays(self):
        assert self.noted(head="uid-of-the-first") == []

    def test_nothing_is_noted_on_what_goes(self):
        assert self.noted(head=None, deleting=True) == []

    def test_nothing_is_noted_before_there_is_a_head(self):
        begun = observe(NEW, planned(NEW, 0), clusters=(cluster(head=None),))
        assert planned(begun, 1).actions == ()
