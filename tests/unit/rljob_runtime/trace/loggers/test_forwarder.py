"""A logger's own thread: nothing waits for it, its failures are its own, keys stay secret."""

import logging
import threading
import time
from collections.abc import Callable, Sequence

import pytest

from rljob_runtime.trace.loggers import forwarder as forwarder_module
from rljob_runtime.trace.loggers.backlog import Backlog, Point
from rljob_runtime.trace.loggers.forwarder import (
    Forwarder,
    LoggerAway,
    LoggerDenied,
    PointsRefused,
    close_all,
    in_words,
)

SECONDS = 30.0
"""For what takes milliseconds."""


class Recorder:
    """A logger that remembers, and fails as it is told."""

    def __init__(self, failure: Callable[[int], Exception | None] = lambda call: None) -> None:
        self.points: list[Point] = []
        self.closed = False
        self.calls = 0
        self.arrived = threading.Event()
        self._failure = failure

    def log(self, points: Sequence[Point]) -> None:
        self.calls += 1
        if (error := self._failure(self.calls)) is not None:
            raise error
        self.points += points
        self.arrived.set()

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures are tried again after a millisecond."""
    ended = Backlog.ended
    monkeypatch.setattr(Backlog, "ended", lambda self, following: ended(self, following) / 1000)


def test_all_points_arrive_in_order_and_the_logger_is_ended() -> None:
    sink = Recorder()
    logger = Forwarder("webhook", lambda: sink, 10)
    for step in range(5):
        logger.send(step, 7.0, {"train/loss": step / 2})
    logger.close(SECONDS)
    assert sink.points == [Point(step, 7.0, {"train/loss": step / 2}) for step in range(5)]
    assert sink.closed and (logger.failures, logger.lost) == (0, 0)


@pytest.mark.usefixtures("quick")
def test_failures_are_counted_told_once_and_made_up_for(caplog: pytest.LogCaptureFixture) -> None:
    sink, tried = Recorder(lambda call: LoggerAway("503") if call <= 3 else None), []

    def connect() -> Recorder:
        tried.append(len(tried))
        if len(tried) < 3:
            raise OSError("no route")
        return sink

    with caplog.at_level(logging.WARNING):
        logger = Forwarder("mlflow", connect, 10)
        logger.send(0, 0.0, {})
        assert sink.arrived.wait(SECONDS)
        logger.close(SECONDS)
    assert [point.step for point in sink.points] == [0]
    assert (logger.failures, logger.lost, logger.unsent, len(tried)) == (5, 0, 0, 3)
    assert logger.trouble == "OSError: no route"
    assert [record.getMessage() for record in caplog.records] == [
        "mlflow: metrics are not sent for now: OSError: no route", "mlflow: metrics are sent again",
    ]  # fmt: skip


@pytest.mark.usefixtures("quick")
def test_a_key_that_is_not_taken_is_told_once_also_of_a_logger_that_was_away(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failures = [OSError("no route"), *[LoggerDenied("set KEY")] * 2, LoggerAway("503"), LoggerDenied("again")]
    sink = Recorder(lambda call: failures[call - 1] if call <= len(failures) else None)
    with caplog.at_level(logging.WARNING):
        logger = Forwarder("webhook", lambda: sink, 10)
        logger.send(0, 0.0, {})
        assert sink.arrived.wait(SECONDS)
        logger.close(SECONDS)
    assert (logger.failures, logger.lost, logger.denial) == (5, 0, "set KEY")
    assert [record.getMessage() for record in caplog.records] == [
        "webhook: metrics are not sent for now: OSError: no route",
        "webhook: metrics are not sent for now: set KEY",
        "webhook: metrics are sent again",
    ]


def test_nothing_waits_for_a_logger_that_hangs(caplog: pytest.LogCaptureFixture) -> None:
    hanging, release = threading.Event(), threading.Event()

    def connect() -> Recorder:
        hanging.set()
        release.wait(SECONDS)
        return Recorder()

    logger = Forwarder("wandb", connect, 3)
    began = time.monotonic()
    for step in range(5):
        logger.send(step, 0.0, {})
    assert hanging.wait(SECONDS)
    with caplog.at_level(logging.WARNING):
        close_all([logger], 0.05)
    assert time.monotonic() - began < SECONDS / 2
    assert logger.lost == 5
    assert "wandb: 5 steps or evaluations were not sent" in caplog.text
    release.set()


def test_one_that_hangs_until_steps_are_left_out_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    hanging, release = threading.Event(), threading.Event()

    def connect() -> Recorder:
        hanging.set()
        release.wait(SECONDS)
        return Recorder()

    with caplog.at_level(logging.WARNING):
        logger = Forwarder("mlflow", connect, 3)
        logger.send(0, 0.0, {})
        assert hanging.wait(SECONDS)
        logger.send(1, 0.0, {})
        logger.send(2, 0.0, {})
        assert logger.trouble is None
        logger.send(3, 0.0, {})
        logger.send(4, 0.0, {})
    why = "more than 3 steps or evaluations wait for it, and the oldest are left out"
    assert (logger.lost, logger.trouble) == (2, why)
    assert [record.getMessage() for record in caplog.records] == [f"mlflow: {why}"]
    release.set()
    logger.close(SECONDS)


def test_at_the_end_a_logger_that_is_away_gets_one_more_chance() -> None:
    """The pause before the next attempt is cut short, however long it is."""
    failed = threading.Event()

    def failure(call: int) -> Exception | None:
        failed.set()
        return OSError("away")

    logger = Forwarder("webhook", lambda: Recorder(failure), 10)
    logger.send(0, 0.0, {})
    assert failed.wait(SECONDS)
    began = time.monotonic()
    logger.close(SECONDS)
    assert time.monotonic() - began < SECONDS / 2
    assert logger.failures in (1, 2) and logger.lost == 1


def test_a_logger_that_was_never_needed_is_never_reached() -> None:
    reached: list[Recorder] = []

    def connect() -> Recorder:
        reached.append(Recorder())
        return reached[-1]

    logger = Forwarder("webhook", connect, 10)
    logger.close(SECONDS)
    assert (reached, logger.failures, logger.lost) == ([], 0, 0)


def test_what_waits_for_a_logger_that_is_away_has_not_arrived() -> None:
    failed = threading.Event()

    def failure(call: int) -> Exception | None:
        failed.set()
        return LoggerAway("503")

    logger = Forwarder("webhook", lambda: Recorder(failure), 2)
    assert (logger.unsent, logger.trouble) == (0, None)
    logger.send(0, 0.0, {})
    assert failed.wait(SECONDS)
    deadline = time.monotonic() + SECONDS
    while logger.unsent == 0 and time.monotonic() < deadline:
        time.sleep(0.001)
    for step in (1, 2):
        logger.send(step, 0.0, {})
    assert (logger.lost, logger.unsent, logger.trouble) == (1, 3, "503")
    logger.close(SECONDS)
    assert (logger.lost, logger.unsent) == (3, 3)


class Picky(Recorder):
    """A logger that takes no odd steps."""

    def log(self, points: Sequence[Point]) -> None:
        if odd := [point.step for point in points if point.step % 2]:
            self.arrived.set()
            raise PointsRefused(f"400: step {odd[0]} is odd")
        super().log(points)


def test_what_a_logger_refuses_is_told_once_and_holds_up_nothing(caplog: pytest.LogCaptureFixture) -> None:
    sink, reached = Picky(), threading.Event()

    def connect() -> Picky:
        assert reached.wait(SECONDS)
        return sink

    with caplog.at_level(logging.WARNING):
        logger = Forwarder("webhook", connect, 10)
        for step in range(7):
            logger.send(step, 0.0, {})
        reached.set()
        logger.close(SECONDS)
    assert [point.step for point in sink.points] == [0, 2, 4, 6]
    assert (logger.lost, logger.refused, logger.unsent, logger.trouble) == (3, 3, 3, None)
    assert logger.refusal == "400: step 1 is odd"
    kept = "metrics.jsonl and evaluations.jsonl have them (of a long run, the newer ones)"
    assert [record.getMessage() for record in caplog.records] == [
        "webhook: a step or evaluation is refused, and left out: 400: step 1 is odd; "
        "further ones are counted",
        f"webhook: 3 steps or evaluations were not sent; {kept}",
    ]


def test_keys_and_line_breaks_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in forwarder_module.SECRETS:
        monkeypatch.setenv(name, f"secret-of-{name}")
        assert in_words(ValueError(f"bad key\n secret-of-{name}!")) == "ValueError: bad key ***!"
    assert in_words(LoggerAway("x answered 503")) == "x answered 503"
    assert in_words(PointsRefused("x answered 400")) == "x answered 400"
    assert in_words(TimeoutError()) == "TimeoutError: TimeoutError"
