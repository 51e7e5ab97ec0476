"""What `kubectl rljob` prints."""

from datetime import UTC, datetime

import pytest

from rljob_api.status import Status
from rljob_operator.kubectl import text

NOW = datetime(2026, 3, 4, 12, 0, tzinfo=UTC)


def status(**fields: object) -> Status:
    return Status.model_validate(fields)


def test_a_job_without_a_status_is_pending():
    assert text.whole("ml", "math", Status(), NOW) == [
        "ml/math   Pending",
        "No operator has taken notice of it yet: does one run that watches namespace ml?",
        "",
    ]


def test_a_running_job():
    running = status(
        phase="Running",
        attempt=2,
        pools=[{"name": "fastRollout", "desired": 8, "current": 8, "ready": 7, "summary": "7/8"}],
        training={
            "step": 30,
            "totalSteps": 120,
            "weightVersion": 29,
            "reward": 0.71,
            "staleness": {"mean": 0.4, "max": 1},
            "tokensPerSecond": 91000.0,
            "queueDepth": 96,
            "checkpoint": {"step": 20, "path": "/rljob/x"},
        },
        conditions=[
            {
                "type": "Degraded",
                "status": "True",
                "reason": "RolloutWorkerLost",
                "message": "Waiting for 1 of 8 fast-rollout pods.",
                "lastTransitionTime": "2026-03-04T11:43:00Z",
            }
        ],
    )
    assert text.whole("ml", "math", running, NOW) == [
        "ml/math   Running   attempt 2   fast-rollout 7/8",
        "step 30/120   ████████░░░░░░░░░░░░░░░░░░░░░░   reward 0.710",
        "version 29   staleness 0.4 mean, 1 max   queue 96   tokens/s 91,000   checkpoint 20",
        "",
        "Degraded   True       17m  RolloutWorkerLost: Waiting for 1 of 8 fast-rollout pods.",
    ]


def test_masked_tokens_are_shown_where_steps_do_not_wait():
    age = {"mean": 2.0, "max": 11, "masked": 0.162}
    training = {"attempt": 1, "step": 3, "totalSteps": 4, "weightVersion": 2, "staleness": age}
    shown = text.whole("ml", "math", status(phase="Running", training=training), NOW)
    assert any("staleness 2.0 mean, 11 max   masked 16 %" in line for line in shown)


def test_the_newest_evaluation_is_shown():
    evaluation = {"step": 2, "version": 2, "sets": [], "summary": "0.25/0.5\x1b"}
    training = {"attempt": 1, "step": 3, "totalSteps": 4, "weightVersion": 2, "evaluation": evaluation}
    shown = text.whole("ml", "math", status(phase="Running", training=training), NOW)
    assert any("   evaluation 0.25/0.5 after step 2" in line for line in shown)


def test_busy_pools_are_named():
    load = {
        "windowSeconds": 61,
        "pools": [
            {"name": "trainer", "busyPercent": 88},
            {"name": "fastRollout", "busyPercent": 93, "running": 120},
            {"name": "heavyRollout", "running": 0},
        ],
        "waiting": 8,
        "summary": "88/93/-",
    }
    training = {"attempt": 1, "step": 3, "totalSteps": 4, "weightVersion": 2, "load": load}
    shown = text.whole("ml", "math", status(phase="Running", training=training), NOW)
    assert shown[3] == (
        "busy in 61 s: trainer 88 %   fast-rollout 93 %, 120 running   heavy-rollout –, 0 running   8 waiting"
    )


@pytest.mark.parametrize(
    ("seconds", "shown"), [(-1, "0s"), (0, "0s"), (59.9, "59s"), (60, "1m"), (7200, "2h"), (1e6, "11d")]
)
def test_age(seconds: float, shown: str):
    assert text.age(seconds) == shown


HOSTILE = "boom \x1b[2J\x1b]0;root\x07\x9b31m\u202egnp.exe\r\n\x1b]8;;http://x\x1b\\click"


def test_what_a_job_wrote_is_printed_and_does_nothing_else():
    failed = {"type": "Failed", "status": "True", "reason": "\x1b[31mX", "message": HOSTILE}
    written = status(
        phase="Failed",
        pools=[{"name": "trainer", "summary": HOSTILE}],
        training={"step": 10**18, "totalSteps": -1, "weightVersion": -(10**18)},
        conditions=[{**failed, "lastTransitionTime": "\x1b[2J"}],
    )
    lines = text.whole("ml", "math", written, NOW)
    assert all(character.isprintable() for line in lines for character in line)
    assert lines[-1] == "Failed     True         ?  X: boom gnp.exe  click"
    assert len(lines[1]) < 100


@pytest.mark.parametrize("time", ["", "yesterday", "9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00"])
def test_a_time_that_is_none_is_shown_as_such(time):
    one = {"type": "Running", "status": "True", "reason": "R", "lastTransitionTime": time}
    assert "?" in text.condition(status(conditions=[one]).conditions[0], NOW)


def test_a_driver_that_has_just_begun_is_at_no_step_yet():
    training = {"attempt": 2, "step": 0, "totalSteps": 0, "weightVersion": 0}
    shown = text.whole("ml", "math", status(phase="Starting", training=training), NOW)
    assert shown[1] == "the driver has begun, and has not said at which step"
