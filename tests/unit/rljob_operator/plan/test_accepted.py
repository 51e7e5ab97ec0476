"""What is told of a job about which nothing can be decided, and when that is taken back."""

from dataclasses import replace

import pytest

from rljob_api.status import Status
from rljob_operator.plan.accepted import DEFECT, accepted, undecided
from rljob_operator.plan.conditions import Row, condition, put
from rljob_operator.plan.decide import decide
from rljob_operator.plan.observed import Observed
from tests.support.operator.observations import NOW, at, new_job, planned, running

SUSPEND = "Set spec.suspend to true to be able to change it, or delete the RLJob."
SPECS = {
    # what the job's spec is: what Accepted says
    "one that can be carried out": ({}, ("True", "Accepted", "The spec is valid.")),
    "one of another release": (
        {"left_out": ("spec.new", "spec.pools.head.new")},
        (
            "True",
            "Accepted",
            "The spec is valid. This operator's release has no spec.new, spec.pools.head.new: left out.",
        ),
    ),
    "one that cannot": (
        {"invalid": "spec.pools.head: no."},
        ("False", "InvalidSpec", f"spec.pools.head: no. {SUSPEND}"),
    ),
}


@pytest.mark.parametrize(("fields", "said"), SPECS.values(), ids=SPECS)
def test_what_is_said_of_a_spec(fields, said) -> None:
    row = accepted(new_job(**fields))
    assert (row.type, row.status, row.reason, row.message) == ("Accepted", *said)


DONE = put(Status(), (Row("Complete", "True", "Completed"), Row("Running", "False", "Complete")), 1, NOW)

JOBS = {
    "never looked at": (new_job(), "Pending"),
    "one that runs": (running().job, "Running"),
    "one that has ended": (new_job(status=DONE), "Complete"),
}


@pytest.mark.parametrize(("job", "phase"), JOBS.values(), ids=JOBS)
def test_a_failed_decision_is_told_and_changes_nothing_else(job, phase) -> None:
    plan = undecided(job, KeyError("trainer"), at(500))
    told = condition(plan.status, "Accepted")
    assert (told.status, told.reason, told.observed_generation) == ("False", DEFECT, job.generation)
    for words in ("defect of its own: KeyError", "What runs goes on", "goes on with other jobs", "log has"):
        assert words in told.message
    assert [(event.type, event.reason, event.message) for event in plan.events] == [
        ("Warning", DEFECT, told.message)
    ]
    assert plan.actions == () and plan.status.phase == phase
    others = [entry for entry in plan.status.conditions if entry.type != "Accepted"]
    assert others == [entry for entry in job.status.conditions if entry.type != "Accepted"]
    kept = plan.status.model_copy(update={"conditions": job.status.conditions, "phase": job.status.phase})
    assert kept == job.status


@pytest.mark.parametrize("error", [KeyError("trainer"), KeyError("head: 17 pods")], ids=repr)
def test_the_same_defect_is_written_and_told_once(error) -> None:
    first = undecided(new_job(), KeyError("trainer"), at(0))
    again = undecided(new_job(status=first.status), error, at(60))
    assert again.status == first.status and again.events == ()


def test_a_generation_that_the_operator_has_not_acted_on_is_not_said_to_be() -> None:
    job = replace(running().job, generation=7)
    assert undecided(job, KeyError(), at(500)).status.observed_generation == job.status.observed_generation


@pytest.mark.parametrize(("job", "phase"), JOBS.values(), ids=JOBS)
def test_the_next_decision_takes_it_back(job, phase) -> None:
    told = replace(job, status=undecided(job, KeyError(), at(500)).status)
    there = running() if job.status.cluster_name else Observed(job, (), ())
    plan = decide(replace(there, job=told), at(560))
    now = condition(plan.status, "Accepted")
    assert (now.status, now.reason) == ("True", "Accepted")


def test_an_ended_job_whose_spec_cannot_be_carried_out_says_so_again() -> None:
    told = undecided(new_job(status=DONE, invalid="pools.head: no."), KeyError(), at(500)).status
    plan = planned(Observed(new_job(status=told, invalid="pools.head: no."), (), ()), 560)
    assert condition(plan.status, "Accepted").reason == "InvalidSpec"
