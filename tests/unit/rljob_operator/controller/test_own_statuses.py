"""What is remembered of the jobs' statuses."""

from dataclasses import replace

from rljob_api.status import Status
from rljob_operator.controller.own_statuses import REPAIR_SECONDS, OwnStatuses, changed_fields
from rljob_operator.plan.observed import Observed
from tests.support.operator.observations import at, new_job, said

REF = ("default", "math")
JOB = new_job(status=Status(attempt=1, cluster_name="math-1"))


def seen(own, job, seconds=0):
    return own.known(REF, Observed(job, (), ()), at(seconds)).job.status


def with_status(**changes):
    return replace(JOB, status=JOB.status.model_copy(update=changes))


def test_the_first_look_is_kept_but_for_the_runtimes_part():
    own = OwnStatuses()
    assert seen(own, JOB) is JOB.status
    told = with_status(attempt=7, failures=3, training=said())
    assert seen(own, told) == JOB.status.model_copy(update={"training": said()})


def test_what_was_written_is_kept():
    own = OwnStatuses()
    seen(own, JOB)
    own.wrote(REF, JOB, Status(attempt=2))
    assert seen(own, JOB) == Status(attempt=2)


def test_another_job_of_the_name_is_looked_at_anew():
    own = OwnStatuses()
    seen(own, JOB)
    later = replace(JOB, uid="later", status=Status())
    assert seen(own, later) == Status()


def test_a_job_that_is_gone_is_forgotten():
    own = OwnStatuses()
    seen(own, JOB)
    own.forget(REF)
    assert seen(own, with_status(attempt=7)).attempt == 7


def test_another_controllers_job_is_left_as_it_is():
    own = OwnStatuses()
    for attempt in (1, 5, 9):
        job = replace(with_status(attempt=attempt), managed_by="example.org/other")
        assert seen(own, job).attempt == attempt


def test_it_is_put_right_now_and_then():
    own = OwnStatuses()
    seen(own, JOB)
    assert [own.repair(REF, at(seconds)) for seconds in (0, 10, 29, 30)] == [0, REPAIR_SECONDS - 10, 1, 0]
    own.wrote(REF, JOB, JOB.status)
    assert own.repair(REF, at(31)) == REPAIR_SECONDS - 1


def test_the_changed_fields_have_their_names_in_the_api():
    other = with_status(cluster_name="x", failures=2, training=said())
    assert changed_fields(JOB.status, other.status) == ["failures", "clusterName"]
