"""How far a logger has got, and what is sent first when a job goes on."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.loggers import Loggers
from rljob_runtime.driver.logger_watch import LoggerWatch
from rljob_runtime.evaluation.scores import SetScore
from rljob_runtime.trace.loggers.backlog import Point
from rljob_runtime.trace.loggers.forwarder import Forwarder, close_all
from rljob_runtime.trace.loggers.open import open_loggers
from rljob_runtime.trace.loggers.reached import (
    Mark,
    Reached,
    ReachedFile,
    StepsThere,
    is_beyond,
    points_beyond,
)
from rljob_runtime.trace.record.evaluation_log import EvaluationLine, EvaluationLog, scalars
from rljob_runtime.trace.record.metrics_log import MetricsLog
from rljob_runtime.trace.record.unsent_log import Unsent, read_unsent

SECONDS = 30.0
SCORE = SetScore(
    prompts=1, responses=1, failed=0, mean=0.5, pass_at={1: 0.5}, response_length_mean=1.0, cut_off=0.0,
    unpinned=0,
)  # fmt: skip
OF_STEP, OF_EVALUATION = {"train/loss": 1.0}, {"evaluation/gsm8k/mean": 0.5}


def evaluation(step: int, time: float) -> EvaluationLine:
    return EvaluationLine(step=step, version=step, time=time, seconds=1.0, sets={"gsm8k": SCORE})


def run_of(folder: Path, times: dict[int, float], evaluations: dict[int, float]) -> None:
    """A run with these steps, from 0, and these evaluations, each with its time."""
    now = [0.0]
    metrics, log = MetricsLog(folder, lambda: now[0]), EvaluationLog(folder)
    for step, now[0] in times.items():
        metrics.write(step, {"loss": float(step)})
    metrics.close()
    for step, moment in evaluations.items():
        log.write(evaluation(step, moment), [])


@pytest.mark.parametrize(
    ("step", "time", "mark", "expected"),
    [
        (0, 0.0, None, True),
        (5, 9.0, Mark(5, 10.0), False),
        (5, 10.0, Mark(5, 10.0), False),
        (6, 11.0, Mark(5, 10.0), True),
        # A clock that was set back.
        (6, 9.0, Mark(5, 10.0), True),
        # It is trained again.
        (5, 11.0, Mark(5, 10.0), True),
        (2, 11.0, Mark(5, 10.0), True),
        (2, 3.0, Mark(5, 10.0), False),
    ],
)
def test_beyond(step: int, time: float, mark: Mark | None, expected: bool) -> None:
    assert is_beyond(step, time, mark) is expected


@given(st.lists(st.sampled_from(["step", "sent"]) | st.integers(0, 20), max_size=60))
def test_no_row_that_was_not_sent_is_passed_over(events: list[str | int]) -> None:
    """Steps are trained, training goes back to earlier ones, and points are sent in order, until a kill."""
    rows: list[tuple[int, float]] = []
    queue: list[tuple[int, float]] = []
    reached, sent, time = Reached(), set(), 0.0
    for event in events:
        time += 1.0
        if event == "step":
            rows.append((len(rows) + 1, time))
            # A point is made a little after its row.
            queue.append((len(rows), time + 0.5))
        elif event == "sent" and queue:
            step, made = queue.pop(0)
            sent.add((step, made - 0.5))
            reached = reached.after([Point(step, made, OF_STEP)])
        elif isinstance(event, int):
            rows = rows[:event]
    beyond = {row for row in rows if is_beyond(*row, reached.steps)}
    assert set(rows) - sent <= beyond
    # Those that were sent come again only where an earlier step was sent after them.
    assert {row for row in beyond & sent if reached.steps and row[0] <= reached.steps.step} == set()


def test_steps_and_evaluations_are_told_apart() -> None:
    points = [Point(0, 1.0, OF_EVALUATION), Point(1, 2.0, OF_STEP), Point(2, 3.0, OF_STEP)]
    assert Reached().after(points) == Reached(Mark(2, 3.0), Mark(0, 1.0))
    assert Reached(evaluations=Mark(9, 9.0)).after(points[1:2]) == Reached(Mark(1, 2.0), Mark(9, 9.0))


def test_what_is_beyond_comes_in_order_of_time(tmp_path: Path) -> None:
    run_of(tmp_path, {0: 10.0, 1: 20.0, 2: 30.0}, {0: 5.0, 2: 25.0})
    everything = list(points_beyond(tmp_path, Reached()))
    assert [(point.step, point.time) for point in everything] == [
        (0, 5.0), (1, 10.0), (2, 20.0), (2, 25.0), (3, 30.0)
    ]  # fmt: skip
    assert everything[1].values == {"train/loss": 0.0}
    assert everything[3].values == scalars(evaluation(2, 25.0))
    some = points_beyond(tmp_path, Reached(Mark(2, 20.0), Mark(0, 5.0)))
    assert [(point.step, point.time) for point in some] == [(2, 25.0), (3, 30.0)]


def test_a_folder_without_files_has_nothing(tmp_path: Path) -> None:
    assert list(points_beyond(tmp_path, Reached())) == []


def test_steps_whose_rows_are_gone_are_counted() -> None:
    there = StepsThere(Reached(Mark(2, 20.0)))
    for step, values in ((2, OF_STEP), (4, OF_STEP), (9, OF_EVALUATION), (7, OF_STEP), (8, OF_STEP)):
        there.add(Point(step, 30.0, values))
    assert there.gone == 3
    assert StepsThere(Reached()).gone == 0


def test_the_file_goes_on_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "loggers" / "webhook.sent"
    file = ReachedFile(path)
    assert file.reached == Reached()
    file.passed([Point(3, 4.0, OF_STEP), Point(2, 5.0, OF_EVALUATION)], 7, "503")
    assert ReachedFile(path).reached == file.reached == Reached(Mark(3, 4.0), Mark(2, 5.0), 7, "503")
    assert (file.reached.time, Reached().time) == (5.0, 0.0)
    file.told()
    assert ReachedFile(path).reached == file.reached == Reached(Mark(3, 4.0), Mark(2, 5.0))
    assert [each.name for each in path.parent.iterdir()] == ["webhook.sent"]
    path.write_bytes(b'{"steps":')
    assert ReachedFile(path).reached == Reached()


def test_a_file_that_cannot_be_written_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = ReachedFile(tmp_path / "loggers" / "webhook.sent")
    (tmp_path / "loggers").write_text("no folder")
    with caplog.at_level(logging.WARNING):
        for step in range(3):
            file.passed([Point(step, 4.0, OF_STEP)], 0, "")
    (record,) = caplog.records
    assert "how far the logger has got is not written down" in record.getMessage()


class Collector(ThreadingHTTPServer):
    """Takes every point, but those with the curve `refuses`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Taking)
        self.points: list[tuple[int, tuple[str, ...]]] = []
        self.refuses = ""


class Taking(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = msgspec.json.decode(self.rfile.read(int(self.headers["Content-Length"])))
        refused = any(self.server.refuses in point["values"] for point in body["points"])
        self.server.points += (
            [] if refused else [(each["step"], tuple(each["values"])) for each in body["points"]]
        )
        self.send_response(400 if refused else 204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def to(port: int, buffer: int = 1000) -> Loggers:
    hook = {"webhook": {"url": f"http://127.0.0.1:{port}/"}}
    return Loggers.model_validate({**hook, "timeoutSeconds": SECONDS, "bufferSteps": buffer})


def resumed(folder: Path, config: Loggers) -> Forwarder:
    (logger,) = open_loggers(config, "math", folder)
    close_all([logger], SECONDS)
    return logger


_KILLED = """
import os, signal, sys
from pathlib import Path
from rljob_runtime.trace.record.evaluation_log import EvaluationLog, scalars
from rljob_runtime.trace.record.metrics_log import MetricsLog
from rljob_runtime.trace.record.unsent_log import Unsent, read_unsent
from rljob_runtime.trace.loggers.open import open_loggers
from tests.unit.rljob_runtime.trace.loggers.test_reached import evaluation, to
folder, port, dead = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
(logger,) = open_loggers(to(port), "math", folder)
metrics = MetricsLog(folder, loggers=[logger])
for step in range(3):
    metrics.write(step, {"loss": 1.0})
logger.close(30.0)
(logger,) = open_loggers(to(dead), "math", folder)
metrics, evaluations = MetricsLog(folder, loggers=[logger]), EvaluationLog(folder)
for step in range(3, 6):
    metrics.write(step, {"loss": 1.0})
line = evaluation(6, 4e9)
evaluations.write(line, [])
metrics.curves(6, scalars(line))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_waited_when_the_driver_was_killed_is_sent_first(tmp_path: Path, collector: Collector) -> None:
    with Collector() as closed:
        dead = closed.server_port
    arguments = [str(tmp_path), str(collector.server_port), str(dead)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    killed = subprocess.run([sys.executable, "-c", _KILLED, *arguments], env=environment, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    loss, found = ("train/loss",), tuple(scalars(evaluation(6, 0.0)))
    assert collector.points == [(1, loss), (2, loss), (3, loss)]
    (logger,) = open_loggers(to(collector.server_port), "math", tmp_path)
    logger.send(7, 5e9, {"train/loss": 1.0})
    close_all([logger], SECONDS)
    assert collector.points[3:] == [(4, loss), (5, loss), (6, loss), (6, found), (7, loss)]
    assert logger.lost == 0
    assert resumed(tmp_path, to(collector.server_port)).lost == 0
    assert len(collector.points) == 8, "all had arrived"


def test_of_more_than_the_buffer_holds_the_oldest_are_left_out_and_counted(tmp_path: Path) -> None:
    run_of(tmp_path, {step: 10.0 + step for step in range(8)}, {})
    with Collector() as closed:
        dead = closed.server_port
    logger = resumed(tmp_path, to(dead, buffer=3))
    assert logger.lost == 8


def test_a_logger_that_is_added_gets_the_run_so_far(tmp_path: Path, collector: Collector) -> None:
    run_of(tmp_path, {0: 10.0, 1: 20.0}, {})
    assert resumed(tmp_path, to(collector.server_port)).lost == 0
    assert [step for step, _ in collector.points] == [1, 2]


def test_steps_that_metrics_jsonl_has_no_more_are_lost_and_told(tmp_path: Path, collector: Collector) -> None:
    run_of(tmp_path, {0: 10.0, 1: 20.0, 5: 30.0}, {})
    assert resumed(tmp_path, to(collector.server_port)).lost == 3
    assert [step for step, _ in collector.points] == [1, 2, 6]


def test_what_was_left_out_by_a_driver_that_was_killed_is_told_at_the_resume(
    tmp_path: Path, collector: Collector
) -> None:
    collector.refuses = "train/loss"
    (logger,) = open_loggers(to(collector.server_port), "math", tmp_path)
    for step, name in enumerate(("train/loss", "train/loss", "train/kl")):
        logger.send(step, 10.0 + step, {name: 1.0})
    deadline = time.monotonic() + SECONDS
    file = tmp_path / "loggers" / "webhook.sent"
    while ReachedFile(file).reached.steps != Mark(2, 12.0) and time.monotonic() < deadline:
        time.sleep(0.001)
    # It is not closed: the driver was killed.
    why = f"refused: 127.0.0.1:{collector.server_port} answered 400"
    for _ in range(2):
        again = resumed(tmp_path, to(collector.server_port))
        assert read_unsent(tmp_path) == [Unsent("webhook", 12.0, 2, why)]
        assert again.lost == 0
    logger.close(SECONDS)


def test_what_the_end_of_a_driver_told_is_not_told_again(tmp_path: Path, collector: Collector) -> None:
    collector.refuses = "train/loss"
    config = to(collector.server_port)
    loggers = open_loggers(config, "math", tmp_path)
    loggers[0].send(1, 10.0, {"train/loss": 1.0})
    LoggerWatch(loggers, tmp_path, SECONDS, lambda: 50.0).close()
    resumed(tmp_path, config)
    assert [(each.time, each.points) for each in read_unsent(tmp_path)] == [(50.0, 1)]
