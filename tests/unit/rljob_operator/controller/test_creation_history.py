"""When the access objects of a job are due to be looked at."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from rljob_operator.controller.access import NotRestored, Refused, Taken
from rljob_operator.controller.creation_history import CreationHistory
from rljob_operator.plan.plan import NoteHead, RestoreAccess
from tests.support.operator.observations import running

BEGIN = datetime(2026, 11, 21, 14, 2, tzinfo=UTC)
SCALED = NoteHead("math-1", "cluster-1", "head")


def test_first_looks_are_spread_and_come_again_in_time():
    creations, observed = CreationHistory(), running()

    def due(name: str, seconds: float) -> bool:
        return creations.known(("default", name), observed, BEGIN + timedelta(seconds=seconds)).access_due

    assert due("a", 0) and due("a", 1)  # until it was done
    creations.done(("default", "a"), observed.job, (RestoreAccess(),), BEGIN + timedelta(seconds=1))
    assert not due("a", 2)
    assert due("b", 3) and not due("c", 3) and not due("c", 10)
    assert due("a", 600) and due("c", 600)
    creations.forget(("default", "c"))
    assert due("c", 700)


def test_a_clock_that_is_set_back_makes_no_wait_longer():
    creations, observed, ref = CreationHistory(), running(), ("default", "a")
    creations.failed(ref, observed.job, Taken("no", again_seconds=30.0), BEGIN)
    creations.done(ref, observed.job, (RestoreAccess(),), BEGIN)
    creations.failed(ref, observed.job, Taken("no", again_seconds=30.0), BEGIN)
    back = BEGIN - timedelta(hours=5)
    known = creations.known(ref, observed, back)
    assert known.access_due
    assert known.creation_failure is not None
    assert known.creation_failure.again == back + timedelta(seconds=30)
    assert (
        creations.known(ref, observed, back + timedelta(seconds=10)).creation_failure
        == known.creation_failure
    )


def test_what_cannot_be_restored_is_kept_apart_from_what_cannot_be_made():
    creations, observed, ref = CreationHistory(), running(), ("default", "a")
    assert creations.failed(ref, observed.job, NotRestored(Refused("no policy", again_seconds=30.0)), BEGIN)
    assert creations.failed(ref, observed.job, Refused("no quota", again_seconds=10.0), BEGIN)
    assert not creations.failed(ref, observed.job, NotRestored(Refused("no policy")), BEGIN)
    known = creations.known(ref, observed, BEGIN)
    assert known.creation_failure is not None and known.access_failure is not None
    assert (known.creation_failure.message, known.creation_failure.again) == (
        "no quota",
        BEGIN + timedelta(seconds=10),
    )
    assert (known.access_failure.message, known.access_failure.again) == (
        "no policy",
        BEGIN + timedelta(seconds=30),
    )
    creations.done(ref, observed.job, (SCALED,), BEGIN)
    known = creations.known(ref, observed, BEGIN)
    assert known.creation_failure is None and known.access_failure is not None
    creations.done(ref, observed.job, (RestoreAccess(),), BEGIN)
    assert creations.known(ref, observed, BEGIN).access_failure is None
    creations.failed(ref, observed.job, NotRestored(Refused("no policy")), BEGIN)
    changed = replace(observed, job=replace(observed.job, generation=2))
    assert creations.known(ref, changed, BEGIN).access_failure is None


def test_a_refusal_in_which_others_numbers_alone_differ_is_no_news():
    creations, job, ref = CreationHistory(), running().job, ("default", "a")
    said = "exceeded quota: one, requested: secrets=1, used: secrets={}, limited: secrets=9"
    assert creations.failed(ref, job, Refused(said.format(9)), BEGIN)
    assert not creations.failed(ref, job, Refused(said.format(11)), BEGIN)
    assert creations.failed(ref, job, Refused("a webhook says no"), BEGIN)
