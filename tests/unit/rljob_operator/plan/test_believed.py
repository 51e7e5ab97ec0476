"""What of a status the operator goes by."""

from dataclasses import replace

import pytest

from rljob_api.status import ScaleDown, Status
from rljob_operator.plan.believed import MOST_ATTEMPTS, plausible, readable
from rljob_operator.plan.conditions import Row, put
from rljob_operator.plan.observed import Observed, Record
from rljob_operator.plan.times import stamp
from rljob_operator.render.names import MAX_CLUSTER_NAME
from tests.support.operator.observations import NOW, at, cluster, new_job, running, said

RUNS = {"attempt": 1, "cluster_name": "math-1", "head_pod": "uid-math-1-head-0"}
FAR = "9999-12-31T23:59:59Z"
CENTURY = "2000-01-01T00:00:00Z"
FIRST = (cluster(1),)
NOON = stamp(at(100))
"""The time at which it is read."""


def seen(clusters=FIRST, **status):
    return Observed(new_job(status=Status.model_construct(**{**Status().__dict__, **status})), clusters, ())


READ = {
    # what: (written, read)
    "no date": ({"start_time": "yesterday"}, {"start_time": None}),
    "an empty date": ({"attempt_time": ""}, {"attempt_time": None}),
    "the end of time": ({"suspend_time": FAR}, {"suspend_time": NOON}),
    "beyond the end of time": ({"suspend_time": "9999-12-31T23:59:59-14:00"}, {"suspend_time": None}),
    "the beginning of time": ({"start_time": "0001-01-01T00:00:00Z"}, {"start_time": None}),
    "before there were RLJobs": ({"start_time": "1999-12-31T23:59:59Z"}, {"start_time": None}),
    "as early as may be": ({"start_time": CENTURY}, {"start_time": CENTURY}),
    "a clock that is a minute ahead": ({"start_time": stamp(at(160))}, {"start_time": stamp(at(160))}),
    "one that is further ahead": ({"start_time": stamp(at(161))}, {"start_time": NOON}),
    "an attempt of the future": ({**RUNS, "attempt_time": stamp(at(161))}, {"attempt_time": NOON}),
    "the next attempt's begin": ({"attempt_time": stamp(at(460))}, {"attempt_time": stamp(at(460))}),
    "later than any next attempt": ({"attempt_time": stamp(at(461))}, {"attempt_time": NOON}),
    "the next attempt never": ({"attempt_time": FAR}, {"attempt_time": NOON}),
    "an end without a date": ({"completion_time": "x"}, {"completion_time": NOON}),
    "an end that is to come": ({"completion_time": FAR}, {"completion_time": NOON}),
    "negative numbers": ({"failures": -3, "restarts": -1}, {"failures": 0, "restarts": 0}),
    "a number that makes no name": ({"attempt": 10**18}, {"attempt": MOST_ATTEMPTS}),
    "numbers that nobody counts to": (
        {"failures": 10**18, "restarts": 10**18},
        {"failures": MOST_ATTEMPTS, "restarts": MOST_ATTEMPTS},
    ),
    "another name": ({"attempt": 1, "cluster_name": "math-7"}, {"cluster_name": "math-1"}),
    "another job's": ({"attempt": 3, "cluster_name": "other-3"}, {"cluster_name": None}),
    "a UID that is none": ({"head_pod": "x,reason=y"}, {"head_pod": None}),
    "a resize that was never asked for": (
        {"scale_downs": [ScaleDown(pool="trainer", replicas=1, asked_time=FAR)]},
        {"scale_downs": [ScaleDown(pool="trainer", replicas=1, asked_time=NOON)]},
    ),
    "a resize without a date": (
        {"scale_downs": [ScaleDown(pool="trainer", replicas=1, asked_time="x")]},
        {"scale_downs": [ScaleDown(pool="trainer", replicas=1, asked_time=NOON)]},
    ),
    "a report that is a minute ahead": (
        {"training": said(time=stamp(at(160)))},
        {"training": said(time=stamp(at(160)))},
    ),
    "a report of the future": ({"training": said(time=stamp(at(161)))}, {"training": said(time=None)}),
    "a report without a date": ({"training": said(time="x")}, {"training": said(time=None)}),
}


@pytest.mark.parametrize(("written", "expected"), READ.values(), ids=READ)
def test_what_cannot_be_is_left_out(written, expected):
    found = readable(seen(**written), at(100))
    assert {name: getattr(found, name) for name in expected} == expected


def test_the_operators_own_status_is_read_as_it_is():
    observed = running()
    assert readable(observed, at(100)) is observed.job.status
    assert plausible(observed, at(100)) is observed.job.status


def test_the_longest_name_is_one_that_kuberay_takes():
    assert len(f"{'x' * 40}-{MOST_ATTEMPTS}") <= MAX_CLUSTER_NAME


NOTED = cluster(2, record=Record(failures=1, restarts=1, start_time=stamp(NOW)))
RUNS_2 = {"attempt": 2, "cluster_name": "math-2"}
FOUND = {
    # what: (RayClusters, written, read)
    "an attempt that is over": ((NOTED,), {"attempt": 1, "cluster_name": "math-1"}, RUNS_2),
    "an attempt that is to come": ((NOTED,), {"attempt": 39, "cluster_name": "math-39"}, RUNS_2),
    "none": ((NOTED,), {"attempt": 0}, RUNS_2),
    "the next one, which is to be made": (
        (NOTED,),
        {"attempt": 3, "cluster_name": "math-3", "failures": 2},
        {"attempt": 3, "cluster_name": "math-3", "failures": 2},
    ),
    "between two": ((), {"attempt": 2, "failures": 2}, {"attempt": 2, "failures": 2}),
    "one whose RayCluster goes": (
        (replace(NOTED, deleting=True),),
        {"attempt": 5, "failures": 0},
        {"attempt": 5, "failures": 0},
    ),
    "no failures": ((NOTED,), {**RUNS_2, "failures": 0}, {"failures": 1}),
    "more failures": ((NOTED,), {**RUNS_2, "failures": 9}, {"failures": 1}),
    "a failure just now": ((NOTED,), {"attempt": 2, "failures": 2}, {"failures": 2}),
    "no restarts": ((NOTED,), {**RUNS_2, "restarts": 0}, {"restarts": 1}),
    "a later admission to a queue": (
        (replace(NOTED, queue="team-a"),),
        {**RUNS_2, "start_time": NOON},
        {"start_time": NOON},
    ),
    "a later start": ((NOTED,), {**RUNS_2, "start_time": NOON}, {"start_time": stamp(NOW)}),
    "an admission": (
        (replace(NOTED, record=Record(1, 1, None)),),
        {**RUNS_2, "start_time": NOON},
        {"start_time": NOON},
    ),
    "a RayCluster without a note": ((cluster(2),), {**RUNS_2, "failures": 4}, {"failures": 4}),
    "another head": (
        (replace(NOTED, head="uid-2"),),
        {**RUNS_2, "head_pod": "uid-9", "failures": 1},
        {"head_pod": "uid-2"},
    ),
    "no head": ((replace(NOTED, head="uid-2"),), {**RUNS_2, "head_pod": None}, {"head_pod": "uid-2"}),
    "a head that is not noted yet": (
        (replace(NOTED, head=None),),
        {**RUNS_2, "head_pod": "uid-9"},
        {"head_pod": "uid-9"},
    ),
    "the head of the attempt before": (
        (replace(NOTED, head="uid-2"),),
        {"attempt": 3, "cluster_name": "math-3", "failures": 1},
        {"head_pod": None},
    ),
    "another owner's": ((replace(NOTED, owner="other"),), {"attempt": 7}, {"attempt": 7}),
}


@pytest.mark.parametrize(("clusters", "written", "expected"), FOUND.values(), ids=FOUND)
def test_a_new_leader_believes_what_it_finds_made(clusters, written, expected):
    found = plausible(seen(clusters, **written), at(100))
    assert {name: getattr(found, name) for name in expected} == expected


def test_the_end_of_a_job_is_believed():
    status = put(Status(attempt=9), (Row("Complete", "True", "Completed"),), 1, NOW)
    assert plausible(Observed(new_job(status=status), (NOTED,), ()), at(100)) is status
