"""What a changed job takes over of the run that it goes on with, and what is refused."""

import msgspec
import numpy as np
import pytest

from rljob_api import RLJob
from rljob_api.schedule import Schedule
from rljob_runtime.data.forced_lengths import ForcedLengths
from rljob_runtime.driver.job_settings import Origin, job_settings
from rljob_runtime.driver.resume import beyond, with_fitting_groups
from rljob_runtime.groups.ledger import Ledger
from rljob_runtime.groups.state import JobState
from rljob_runtime.samples import decode_group
from tests.support.runtime.resumes import asked, frame, plan_from, saved

ROWS = 40
LEDGER = Ledger(40)
WAITING = [frame(40 + place, 7 + place // 4) for place in range(16)]
"""Of a run with maxStaleness 4 and steps of 4 prompts after step 10: dispatched at versions 7, 8, 9, 10."""
ALL = list(range(40, 56))

KEPT = {
    "nothing": ({}, {}, ALL),
    "a larger bound": ({}, {"maxStaleness": 8}, ALL),
    "more steps": ({"totalSteps": 200}, {}, ALL),
    "steps of twice the size": ({"promptsPerBatch": 8}, {}, ALL),
    "steps of half the size": ({"promptsPerBatch": 2}, {}, [40, 41, 42, 43, 44, 45, 48, 49, 52, 53]),
    "a bound of 1: those whose time is over go": ({}, {"maxStaleness": 1}, [48, 49, 50, 51, 52, 53, 54, 55]),
    "a bound of 0": ({}, {"maxStaleness": 0}, [52, 53, 54, 55]),
    "half a version ahead": ({}, {"maxStaleness": 0.5}, [48, 49, 50, 51, 52, 53]),
    "masks: as many as admission has room for, whatever their age": (
        {},
        {"maxStaleness": 4, "staleTokens": "mask"},
        ALL,
    ),
    "masks and a bound of 1: those without a fresh token go": (
        {},
        {"maxStaleness": 1, "staleTokens": "mask"},
        ALL[8:],
    ),
    "a smaller queue": ({}, {"queueCapacity": 16}, ALL[:8]),
    "fewer steps than groups wait for": ({"totalSteps": 12}, {}, ALL[:8]),
    "no step": ({"totalSteps": 10}, {}, []),
    "other versions": ({}, {"stepsPerVersion": 2}, []),
    "more samples to a group": ({}, {"samples": 3}, []),
    "fewer": ({}, {"samples": 1}, []),
}


@pytest.mark.parametrize("change", KEPT)
def test_waiting_groups_are_kept_where_they_can_be_trained_in_time(change: str) -> None:
    schedule, other, kept = KEPT[change]
    state = saved(10, LEDGER, WAITING)
    wanted = asked({"totalSteps": 100, "promptsPerBatch": 4, **schedule}, **{"maxStaleness": 4, **other})
    found = with_fitting_groups(state, plan_from(state, wanted, ROWS))
    assert [decode_group(each).uid for each in found.waiting] == kept
    assert msgspec.structs.replace(found, waiting=state.waiting) == state


@pytest.mark.parametrize(
    ("uid", "version", "tokens", "steps_per_version", "fits"),
    [
        (45, 10, 8, 1, True),
        (45, 10, 8, None, True),
        (45, 10, 9, 1, False),
        (45, 11, 8, None, False),
        (80, 10, 8, 1, False),
        (45, 10, 8, 3, False),
    ],
    ids=["right", "of an old checkpoint", "too long", "of later weights", "of no epoch", "of other versions"],
)
def test_a_waiting_group_that_the_job_could_not_have_made_is_left_out(
    uid: int, version: int, tokens: int, steps_per_version: int | None, fits: bool
) -> None:
    state = saved(10, LEDGER, [frame(uid, version, tokens=tokens)], steps_per_version)
    plan = plan_from(state, asked({"epochs": 2, "promptsPerBatch": 4}), ROWS)
    assert len(with_fitting_groups(state, plan).waiting) == fits


@pytest.mark.parametrize(("tokens", "fits"), [(3, True), (2, False), (4, False)])
def test_where_lengths_are_forced_a_waiting_group_must_have_them(tokens: int, fits: bool) -> None:
    state = saved(10, LEDGER, [frame(45, 10, tokens=tokens)])
    forced, wanted = ForcedLengths(np.full((50, 2), 3)), asked({"epochs": 2, "promptsPerBatch": 4})
    plan = job_settings(wanted, ROWS, Origin(10, 40, 10), forced)
    assert len(with_fitting_groups(state, plan).waiting) == fits


@pytest.mark.parametrize(
    ("before", "now", "kept"),
    [(None, None, ALL), ("a", "a", ALL), ("a", "b", []), (None, "b", []), ("a", None, ALL)],
)
def test_waiting_groups_have_what_this_job_s_teacher_said(
    before: str | None, now: str | None, kept: list[int]
) -> None:
    state = msgspec.structs.replace(saved(10, LEDGER, WAITING), teacher=before)
    wanted = asked({"totalSteps": 100, "promptsPerBatch": 4}, maxStaleness=4)
    if now is not None:
        server = {"url": "http://teacher:8000", "model": now}
        document = wanted.model_dump(by_alias=True, exclude_none=True)
        document["spec"]["training"]["algorithm"]["distillation"] = {"teacher": {"server": server}}
        wanted = RLJob.model_validate(document)
    found = with_fitting_groups(state, plan_from(state, wanted, ROWS))
    assert [decode_group(each).uid for each in found.waiting] == kept


@pytest.mark.parametrize(
    ("schedule", "step", "ledger", "words"),
    [
        (Schedule(total_steps=8), 8, Ledger(32), None),
        (Schedule(total_steps=9), 8, Ledger(32), None),
        (Schedule(epochs=1), 10, Ledger(40), None),
        (Schedule(epochs=1), 100, Ledger(10, {39}), None),
        (
            Schedule(total_steps=5),
            8,
            Ledger(32),
            "has 8 steps, and training.schedule.totalSteps is 5: set it to 8 or more to go on with --resume, "
            "or begin anew with --restart",
        ),
        (
            Schedule(epochs=1),
            9,
            Ledger(35, {40}),
            "has trained prompts of epoch 2, and training.schedule.epochs is 1: set it to 2 or more to go on "
            "with --resume, or begin anew with --restart",
        ),
    ],
)
def test_a_checkpoint_beyond_the_end_is_refused(
    schedule: Schedule, step: int, ledger: Ledger, words: str | None
) -> None:
    assert beyond(saved(step, ledger, []), schedule, ROWS) == words


def test_a_checkpoint_that_does_not_say_what_a_version_is_can_be_read() -> None:
    fields = msgspec.to_builtins(saved(10, LEDGER, []))
    del fields["steps_per_version"]
    state = msgspec.msgpack.decode(msgspec.msgpack.encode(fields), type=JobState)
    assert state.steps_per_version is None and state.step == 10
