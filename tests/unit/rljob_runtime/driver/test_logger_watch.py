"""What a person is told of loggers that fail."""

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from rljob_runtime.driver.logger_watch import LoggerWatch
from rljob_runtime.trace.loggers.backlog import Point
from rljob_runtime.trace.loggers.forwarder import Forwarder, LoggerAway, LoggerDenied, PointsRefused
from rljob_runtime.trace.record.unsent_log import Unsent, append_unsent, read_unsent

SECONDS = 30.0
THERE = "metrics.jsonl and evaluations.jsonl have them (of a long run, the newer ones)"
WHY = "collect answered 503"


class Away:
    """A logger that takes nothing."""

    def log(self, points: Sequence[Point]) -> None:
        raise LoggerAway(WHY)

    def close(self) -> None:
        pass


class Taking:
    """A logger that takes everything."""

    def log(self, points: Sequence[Point]) -> None:
        pass

    def close(self) -> None:
        pass


def watch(folder: Path, *loggers: Forwarder, seconds: float = SECONDS) -> LoggerWatch:
    return LoggerWatch(loggers, folder, seconds, lambda: 7.0)


def test_a_job_without_loggers(tmp_path: Path) -> None:
    none = watch(tmp_path)
    none.close()
    assert (none.metrics(), none.news(), none.unsent, read_unsent(tmp_path)) == ({}, [], [], [])


def test_the_first_failure_is_told_once_and_what_was_lost_in_the_end(tmp_path: Path) -> None:
    away, there = Forwarder("webhook", Away, 10), Forwarder("mlflow", Taking, 10)
    watched = watch(tmp_path, away, there)
    assert watched.news() == []
    for logger in (away, there):
        logger.send(0, 0.0, {})
    watched.close()
    assert watched.news() == [
        f"webhook: metrics are not sent for now: {WHY}. Training goes on, sending is tried again, and {THERE}"
    ]
    assert watched.news() == []
    assert watched.metrics() == {
        "logger_failures": {"webhook": away.failures, "mlflow": 0},
        "logger_lost": {"webhook": 1, "mlflow": 0},
    }
    assert watched.unsent == read_unsent(tmp_path) == [Unsent("webhook", 7.0, 1, WHY)]
    assert watched.unsent[0].sentence == (f"webhook: 1 step or evaluation was not sent ({WHY}); {THERE}.")


class Denying(Away):
    """A logger that was away when it was first asked, and does not take the key."""

    def __init__(self) -> None:
        self.asked_again, self.told = threading.Event(), threading.Event()
        self._asked = 0

    def log(self, points: Sequence[Point]) -> None:
        self._asked += 1
        if self._asked == 1:
            super().log(points)
        self.asked_again.set()
        assert self.told.wait(SECONDS)
        raise LoggerDenied("collect answered 401: set KEY")


def test_a_key_that_is_not_taken_is_told_once_with_what_to_do(tmp_path: Path) -> None:
    sink = Denying()
    denying = Forwarder("webhook", lambda: sink, 10)
    watched = watch(tmp_path, denying)
    denying.send(0, 0.0, {})
    assert sink.asked_again.wait(SECONDS)
    assert [WHY in each for each in watched.news()] == [True]
    sink.told.set()
    watched.close()
    assert watched.news() == [
        "webhook: metrics are not sent: collect answered 401: set KEY. Training goes on, sending is tried "
        f"again at least once an hour, and {THERE}"
    ]
    assert watched.news() == []
    assert [each.why for each in watched.unsent] == ["collect answered 401: set KEY"]


class Picky(Taking):
    """A logger that takes no odd steps, and is away from the fifth point on."""

    def log(self, points: Sequence[Point]) -> None:
        if any(point.step % 2 for point in points):
            raise PointsRefused("it is odd")
        if any(point.step >= 4 for point in points):
            raise LoggerAway(WHY)


def test_a_refusal_is_told_once_with_its_reason(tmp_path: Path) -> None:
    picky = Forwarder("mlflow", Picky, 10)
    watched = watch(tmp_path, picky)
    for step in (0, 1, 3):
        picky.send(step, 0.0, {})
    watched.close()
    assert watched.news() == [
        "mlflow: a step or evaluation is refused: it is odd. It is left out there, as all that are "
        f"refused are; the others are sent, and {THERE}"
    ]
    assert watched.news() == []
    assert watched.unsent == read_unsent(tmp_path) == [Unsent("mlflow", 7.0, 2, "refused: it is odd")]


def test_refused_points_and_lost_ones_are_told_apart(tmp_path: Path) -> None:
    picky = Forwarder("mlflow", Picky, 10)
    watched = watch(tmp_path, picky)
    for step in (0, 1, 4):
        picky.send(step, 0.0, {})
    watched.close()
    assert [(each.points, each.why) for each in watched.unsent] == [
        (2, f"1 refused: it is odd; the others: {WHY}")
    ]


def test_one_that_never_answers_is_told_with_the_time(tmp_path: Path) -> None:
    release = threading.Event()

    def connect() -> Taking:
        release.wait(SECONDS)
        return Taking()

    hanging = Forwarder("wandb", connect, 10)
    watched = watch(tmp_path, hanging, seconds=0.05)
    for step in range(3):
        hanging.send(step, 0.0, {})
    watched.close()
    release.set()
    assert [each.sentence for each in watched.unsent] == [
        f"wandb: 3 steps or evaluations were not sent (no answer within 0.05 s); {THERE}."
    ]


def test_what_cannot_be_recorded_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    away = Forwarder("webhook", Away, 10)
    away.send(0, 0.0, {})
    watched = watch(tmp_path / "gone", away)
    watched.close()
    assert [each.points for each in watched.unsent] == [1]
    assert "what webhook did not get is not recorded" in caplog.text


def test_what_is_no_line_is_passed_over(tmp_path: Path) -> None:
    first, second = Unsent("wandb", 1.0, 2, "a"), Unsent("wandb", 2.0, 3, "b")
    append_unsent(tmp_path, first)
    with (tmp_path / "unsent.jsonl").open("a") as file:
        file.write("{\n")
    append_unsent(tmp_path, second)
    assert read_unsent(tmp_path) == [first, second]
