"""Which workers of a running attempt are lost, and which only leave."""

from dataclasses import replace

import pytest

from rljob_api.status import ScaleDown
from rljob_operator.plan.losses import ended, leaving, seen, unreplaced
from rljob_operator.plan.pools import count
from tests.support.operator.observations import at, end, pod, running, spec, with_group, with_pods

FAST, HEAVY = "fastRollout", "heavyRollout"
DEAD = pod(FAST, 1, phase="Failed", ready=False, main=end(1))
GOES = pod(FAST, 2, deleting=at(130))
JOB = running((1, 4, 1))


def new_status(observed, size=4, victims=()):
    """The status that is about to be written, for a pool of that size."""
    entries = [ScaleDown(pool=FAST, replicas=size, victims=list(victims))] if victims else []
    return count(observed, spec(pools=(1, size, 1))).model_copy(update={"scale_downs": entries})


def named(found):
    return [entry.name for entry in found]


def name(number):
    return pod(FAST, number).name


MISSING = {
    # what is observed, the wished size, who is on record as leaving: how many are lost, how many leave
    "all are there": (JOB, 4, (), 0, 0),
    "one is gone": (with_pods(JOB, without=(name(1),)), 4, (), 1, 0),
    "one is dead": (with_pods(JOB, DEAD), 4, (), 1, 0),
    "one is being deleted": (with_pods(JOB, GOES), 4, (), 1, 0),
    "a victim is gone": (with_pods(JOB, without=(name(2),)), 4, (name(2),), 0, 1),
    "a victim is being deleted": (with_pods(JOB, GOES), 4, (name(2),), 0, 1),
    "a victim is still there": (JOB, 4, (name(2),), 0, 0),
    "a victim and another are gone": (with_pods(JOB, without=(name(1), name(2))), 4, (name(2),), 1, 1),
    "one is gone that is not wanted any more": (with_pods(JOB, without=(name(1),)), 3, (), 0, 0),
    "more are wanted than there were": (JOB, 6, (), 0, 0),
}  # fmt: skip


@pytest.mark.parametrize(("observed", "size", "victims", "lost", "leave"), MISSING.values(), ids=MISSING)
def test_how_many_workers_nobody_has_replaced(observed, size, victims, lost, leave):
    new = new_status(observed, size, victims)
    assert leaving(observed, new, FAST) == leave
    assert max(unreplaced(observed, new, FAST), 0) == lost
    assert unreplaced(observed, new, HEAVY) == leaving(observed, new, HEAVY) == 0, "another pool"


def test_a_victim_is_one_that_was_on_record_is_on_record_or_is_on_the_list():
    observed = with_pods(JOB, without=(name(1), name(2), name(3)))
    old = ScaleDown(pool=FAST, replicas=3, victims=[name(1)])
    status = observed.job.status.model_copy(update={"scale_downs": [old]})
    observed = with_group(replace(observed, job=replace(observed.job, status=status)), FAST, 3, (name(2),))
    new = new_status(observed, 4, (name(3),))
    assert leaving(observed, new, FAST) == 3 and unreplaced(observed, new, FAST) == 0
    assert leaving(observed, new, HEAVY) == 0


WITNESSED = {
    "of this attempt": (DEAD, True),
    "of another pool": (pod(HEAVY, 1, phase="Failed"), False),
    "of another attempt": (pod(FAST, 1, 2), False),
    "of an attempt of another number": (replace(DEAD, attempt=2), False),
    "of a RayCluster that was made anew": (replace(DEAD, cluster_uid="old"), False),
}


@pytest.mark.parametrize(("lost", "counts"), WITNESSED.values(), ids=WITNESSED)
def test_losses_that_were_seen(lost, counts):
    observed = replace(JOB, lost_workers=(lost,))
    assert named(seen(observed, new_status(observed), FAST)) == ([lost.name] if counts else [])


def test_losses_that_were_seen_are_told_by_name_without_the_victims():
    observed = replace(JOB, lost_workers=(pod(FAST, 3), pod(FAST, 0), pod(FAST, 2)))
    assert named(seen(observed, new_status(observed, victims=(name(2),)), FAST)) == [name(0), name(3)]
    unseen = replace(observed, clusters=())
    assert named(seen(unseen, new_status(unseen), FAST)) == [name(0), name(2), name(3)]


def test_workers_that_have_ended_and_still_exist():
    observed = with_pods(JOB, GOES, DEAD)
    assert named(ended(observed, new_status(observed), FAST)) == [name(1), name(2)]
    assert named(ended(observed, new_status(observed, victims=(name(2),)), FAST)) == [name(1)]
    assert ended(observed, new_status(observed), HEAVY) == []


def test_without_an_attempt_nobody_is_lost():
    status = JOB.job.status.model_copy(update={"cluster_name": None})
    between = replace(JOB, job=replace(JOB.job, status=status), lost_workers=(DEAD,))
    new = new_status(between)
    assert seen(between, new, FAST) == ended(between, new, FAST) == [] and leaving(between, new, FAST) == 0
