"""When a job is given up, or goes on without an answer: from status and spec alone."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from rljob_api.status import Status
from rljob_operator.plan import deadlines
from rljob_operator.plan.conditions import Row, put
from rljob_operator.plan.times import after, stamp
from rljob_operator.plan.ttl import expiry
from tests.support.operator.observations import NOW, at, pod, spec

BEGUN = Status(cluster_name="math-1", attempt_time=stamp(NOW), start_time=stamp(NOW))
RUNS = put(BEGUN, (Row("Running", "True", "Running"),), 1, NOW)
STARTS = put(BEGUN, (Row("Running", "False", "Starting"),), 1, NOW)
ASKED = BEGUN.model_copy(update={"suspend_time": stamp(at(50))})
FINISHED = Status(completion_time=stamp(at(70)))

LIMITS = {
    "runPolicy.activeDeadlineSeconds": 500,
    "runPolicy.startDeadlineSeconds": 600,
    "runPolicy.suspendGraceSeconds": 90,
    "runPolicy.ttlSecondsAfterFinished": 40,
}
SUSPENDED = {**LIMITS, "suspend": True}


@pytest.mark.parametrize(
    ("deadline", "status", "changes", "seconds"),
    [
        (deadlines.active, BEGUN, LIMITS, 500),
        (deadlines.active, RUNS, LIMITS, 500),
        (deadlines.active, BEGUN, {}, None),
        (deadlines.active, BEGUN, SUSPENDED, None),
        (deadlines.active, BEGUN.model_copy(update={"start_time": None}), LIMITS, None),
        (deadlines.start, BEGUN, LIMITS, 600),
        (deadlines.start, BEGUN, {}, 1800),
        (deadlines.start, STARTS, LIMITS, 600),
        (deadlines.start, RUNS, LIMITS, None),
        (deadlines.start, BEGUN, SUSPENDED, None),
        (deadlines.start, BEGUN.model_copy(update={"cluster_name": None}), LIMITS, None),
        (deadlines.start, BEGUN.model_copy(update={"attempt_time": None}), LIMITS, None),
        (deadlines.suspend, ASKED, SUSPENDED, 140),
        (deadlines.suspend, BEGUN, SUSPENDED, None),
        (expiry, FINISHED, LIMITS, 110),
        (expiry, FINISHED, {}, None),
        (expiry, BEGUN, LIMITS, None),
    ],
)
def test_a_deadline(deadline, status, changes, seconds):
    assert deadline(status, spec(changes)) == (None if seconds is None else at(seconds))


def test_the_start_deadline_for_people():
    assert deadlines.start_text(BEGUN, spec(LIMITS)) == "14:12 UTC"
    assert deadlines.start_text(BEGUN, spec({"runPolicy.startDeadlineSeconds": 86_400})) == (
        "2026-11-22 14:02 UTC"
    )
    assert deadlines.start_text(RUNS, spec(LIMITS)) is None


DELETED = replace(pod("head"), deleting=at(100), deletion_grace=30)


@pytest.mark.parametrize(
    ("status", "head", "seconds"),
    [
        (BEGUN, None, 120),
        (BEGUN, pod("head"), 120),
        (Status(), None, None),
        (Status(), pod("head"), None),
        (BEGUN, DELETED, 190),
        (Status(), DELETED, 190),
    ],
    ids=[
        "a RayCluster", "a head", "a RayCluster of an attempt that ended nobody knows when",
        "a head of such an attempt", "120 s after its deletion was asked for", "the same of such an attempt",
    ],
)  # fmt: skip
def test_how_long_the_next_attempt_waits_for_what_is_left(status, head, seconds):
    assert deadlines.removal(status, head) == (None if seconds is None else at(seconds))


def test_a_time_beyond_all_times_is_the_last_there_is():
    assert after(stamp(NOW), 1e12) == datetime.max.replace(tzinfo=UTC)
    assert after(stamp(NOW), 90) == at(90)
