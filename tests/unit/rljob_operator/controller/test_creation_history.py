"""When the access objects of a job are due to be looked at."""

from datetime import UTC, datetime, timedelta

from rljob_operator.controller.creation_history import CreationHistory
from rljob_operator.plan.plan import RestoreAccess
from tests.support.operator.observations import running

BEGIN = datetime(2026, 11, 21, 14, 2, tzinfo=UTC)


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
