"""metrics.jsonl and TensorBoard: one line per step, and what a resume supersedes."""

import json
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from rljob_runtime.trace.analyse.windows import lost_seconds, windows_from_metrics
from rljob_runtime.trace.record.metrics_log import (
    METRICS_FILE,
    Interruption,
    MetricsLog,
    read_metrics,
    scalars,
)
from rljob_runtime.trace.record.start_log import STARTS_FILE, Start, read_starts
from rljob_runtime.trace.record.tensorboard_file import TENSORBOARD_FOLDER
from tests.support.disks import fill, small_disk


def write(folder: Path, steps: range, reward: float, now: float = 1000.0) -> None:
    """A process that begins with the first of `steps`."""
    log = MetricsLog(folder, clock=lambda: now)
    log.begin(steps.start)
    train(log, steps, reward)
    log.close()


def train(log: MetricsLog, steps: range, reward: float) -> None:
    for step in steps:
        log.write(step, {"reward_mean": reward, "seconds": {"forward": 0.5}})


def points(rows: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """The points of a curve, which stand at the steps done, from rows, which count from 0."""
    return [(step + 1, value) for step, value in rows]


def lines(folder: Path) -> list[tuple[int, float]]:
    """(step, reward) of every line: that is what a reader gets who knows nothing of restarts."""
    rows = [json.loads(line) for line in (folder / METRICS_FILE).read_text().splitlines()]
    return [(row["step"], row["reward_mean"]) for row in rows]


def board(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard itself reads, by the reader of its library and by that of its server."""
    from tensorboard.backend.event_processing import event_accumulator, plugin_event_accumulator

    read = event_accumulator.EventAccumulator(str(folder / TENSORBOARD_FOLDER))
    read.Reload()
    found = {tag: [(item.step, item.value) for item in read.Scalars(tag)] for tag in read.Tags()["scalars"]}
    served = plugin_event_accumulator.EventAccumulator(str(folder / TENSORBOARD_FOLDER))
    served.Reload()
    assert found == {
        tag: [(item.step, item.tensor_proto.float_val[0]) for item in served.Tensors(tag)]
        for tag in served.Tags()["tensors"]
    }
    return found


def test_a_step_is_one_line_and_one_point_of_each_curve(tmp_path: Path) -> None:
    write(tmp_path, range(2), 0.25)
    assert [json.loads(line) for line in (tmp_path / METRICS_FILE).read_text().splitlines()] == [
        {"reward_mean": 0.25, "seconds": {"forward": 0.5}, "step": step, "time": 1000.0} for step in range(2)
    ]
    assert board(tmp_path) == {
        "train/reward": [(1, 0.25), (2, 0.25)],
        "seconds/forward": [(1, 0.5), (2, 0.5)],
    }


OLD_AND_NEW = [(0, 0.25), (1, 0.25), (2, 0.25), (3, 0.25), (4, 0.75)]


def test_a_resume_supersedes_the_steps_that_are_trained_again(tmp_path: Path) -> None:
    write(tmp_path, range(6), 0.25)
    write(tmp_path, range(4, 5), 0.75, now=2000.0)
    metrics = read_metrics(tmp_path / METRICS_FILE)
    assert [(row["step"], row["reward_mean"]) for row in metrics.rows] == OLD_AND_NEW
    assert read_starts(tmp_path) == [
        Start(1000.0, 0, "new"),
        Start(2000.0, 4, "resumed", stopped=1000.0, repeated=2),
    ]
    assert lines(tmp_path) == OLD_AND_NEW
    assert board(tmp_path)["train/reward"] == points(OLD_AND_NEW)


def test_a_restart_of_the_trainer_within_a_run_leaves_one_row_and_one_point_of_each_step(
    tmp_path: Path,
) -> None:
    now = [1000.0]
    log = MetricsLog(tmp_path, clock=lambda: now[0])
    log.begin(0)
    train(log, range(6), 0.25)
    now[0] = 1020.0
    start = log.begin(4, Interruption("trainer lost", 1001.0, "rank 1 died"))
    assert start == Start(1020.0, 4, "trainer lost", "rank 1 died", 1001.0, repeated=2)
    assert lines(tmp_path) == OLD_AND_NEW[:4], "at once: the job may end before it is there again"
    train(log, range(4, 5), 0.75)
    log.close()
    assert lines(tmp_path) == OLD_AND_NEW
    assert board(tmp_path)["train/reward"] == points(OLD_AND_NEW)
    assert read_starts(tmp_path)[1:] == [start]


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_anew_in_its_folder(tmp_path: Path) -> None:
    write(tmp_path, range(3), 0.25)
    write(tmp_path, range(2), 0.5, now=2000.0)
    assert lines(tmp_path) == [(0, 0.5), (1, 0.5)]
    assert board(tmp_path)["train/reward"] == points(lines(tmp_path))
    assert [start.cause for start in read_starts(tmp_path)] == ["new", "resumed"]


def test_a_resume_cuts_off_a_line_that_a_kill_left_unfinished(tmp_path: Path) -> None:
    write(tmp_path, range(3), 0.25)
    for file in (METRICS_FILE, STARTS_FILE):
        with (tmp_path / file).open("a") as torn:
            torn.write('{"time": 3')
    write(tmp_path, range(3, 4), 0.75, now=2000.0)
    assert lines(tmp_path) == [(0, 0.25), (1, 0.25), (2, 0.25), (3, 0.75)]
    assert [(start.step, start.repeated) for start in read_starts(tmp_path)] == [(0, 0), (3, 0)]


def test_a_resized_trainer_repeats_nothing(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path, clock=lambda: 1000.0)
    log.begin(0)
    train(log, range(3), 0.25)
    start = log.begin(3, Interruption("trainer resized", 990.0))
    assert (start.repeated, start.goes_back) == (0, False)
    train(log, range(3, 4), 0.25)
    log.close()
    assert lines(tmp_path) == [(step, 0.25) for step in range(4)]
    assert board(tmp_path)["train/reward"] == points(lines(tmp_path))


def test_an_evaluation_stands_at_the_step_whose_weights_it_is_of(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    log.begin(0)
    for done in range(4):
        log.curves(done, {"evaluation/held_out": done / 4})
        train(log, range(done, done + 1), 0.25)
    # Weights of two steps are those that training goes on with: their evaluation is not made again.
    log.begin(2, Interruption("trainer lost", None))
    log.close()
    found = board(tmp_path)
    assert [step for step, _ in found["train/reward"]] == [1, 2]
    assert found["evaluation/held_out"] == [(0, 0.0), (1, 0.25), (2, 0.5)]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"loss": 0.5}, {"train/loss": 0.5}),
        ({"loss": None, "text": "x"}, {}),
        ({"staleness_histogram": {"0": 3}}, {"staleness_histogram/0": 3.0}),
        ({"my_own": 2}, {"other/my_own": 2.0}),
        ({"step": 4, "time": 3.0}, {}),
    ],
)
def test_tags(values: dict[str, object], expected: dict[str, float]) -> None:
    assert scalars(values) == expected


def test_what_is_not_finite_is_null_and_no_point(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    log.write(0, {"loss": math.nan, "kl": math.inf, "entropy": np.float32(1.5)})
    log.close()
    (row,) = read_metrics(tmp_path / METRICS_FILE).rows
    assert (row["loss"], row["kl"], row["entropy"]) == (None, None, 1.5)
    assert set(board(tmp_path)) == {"train/entropy"}


def test_torn_lines_are_counted_and_left_out(tmp_path: Path) -> None:
    write(tmp_path, range(2), 0.5)
    with (tmp_path / METRICS_FILE).open("a") as file:
        file.write('{"step": 2, "rew')
    metrics = read_metrics(tmp_path / METRICS_FILE)
    assert (len(metrics.rows), metrics.unreadable) == (2, 1)
    log = MetricsLog(tmp_path)
    train(log, range(2, 3), 0.5)
    log.close()
    metrics = read_metrics(tmp_path / METRICS_FILE)
    assert [row["step"] for row in metrics.rows] == [0, 1, 2]
    assert metrics.unreadable == 1


@pytest.mark.parametrize("time", ["1e308", "-1e11"])
def test_a_row_of_no_possible_time_is_left_out(tmp_path: Path, time: str) -> None:
    (tmp_path / METRICS_FILE).write_text(f'{{"step": 0, "time": 5.0}}\n{{"step": 1, "time": {time}}}\n')
    metrics = read_metrics(tmp_path / METRICS_FILE)
    assert (metrics.rows, metrics.unreadable) == ([{"step": 0, "time": 5.0}], 1)


def test_a_full_disk_ends_tensorboard_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """TensorBoard's folder is on a disk without room, metrics.jsonl is not."""
    with small_disk(tmp_path / TENSORBOARD_FOLDER, megabytes=1) as disk:
        log = MetricsLog(tmp_path)
        log.write(0, {"loss": 0.5})
        fill(disk, left=0)
        for step in range(1, 200):
            log.write(step, {f"loss_{index}": 0.5 for index in range(20)})
        log.close()
        assert len(read_metrics(tmp_path / METRICS_FILE).rows) == 200
        assert board(tmp_path)["train/loss"] == [(1, 0.5)]
    (record,) = caplog.records
    assert "nothing more is written for TensorBoard" in record.getMessage()


ROW = {"reward_mean": 0.25, "seconds": {"forward": 0.5}}
MOST = 20_000
"""Bytes, of some 220 rows."""


def long_run(folder: Path, steps: int) -> None:
    """Each step ends 2 s after the one before it, the first one at 2 s."""
    now = [0.0]
    log = MetricsLog(folder, clock=lambda: now[0], most_bytes=MOST)
    log.begin(0)
    for step in range(steps):
        now[0] += 2.0
        log.write(step, ROW)
        assert (folder / METRICS_FILE).stat().st_size <= MOST
    log.close()


def test_a_long_run_keeps_its_newest_rows_and_ever_fewer_of_the_older_ones(tmp_path: Path) -> None:
    long_run(tmp_path, 2000)
    metrics = read_metrics(tmp_path / METRICS_FILE)
    found = [row["step"] for row in metrics.rows]
    gaps = np.diff(found)
    assert gaps.tolist() == sorted(gaps, reverse=True) and gaps[0] > 16
    # A quarter of the bytes.
    assert found[-50:] == list(range(1950, 2000))
    assert (metrics.gone, metrics.unreadable) == (2000 - len(found), 0)
    assert all(row.items() >= ROW.items() for row in metrics.rows)
    assert [path.name for path in tmp_path.glob("metrics*")] == [METRICS_FILE]


def test_steps_whose_neighbours_are_gone_took_as_long_as_they_did(tmp_path: Path) -> None:
    long_run(tmp_path, 2000)
    windows = windows_from_metrics(read_metrics(tmp_path / METRICS_FILE), read_starts(tmp_path))
    assert {window.seconds for window in windows} == {2.0}
    assert lost_seconds(windows) == 0.0


def test_all_steps_that_are_trained_again_count_also_those_whose_rows_are_gone(tmp_path: Path) -> None:
    long_run(tmp_path, 2000)
    log = MetricsLog(tmp_path, clock=lambda: 9000.0)
    assert log.begin(200).repeated == 1800
    train(log, range(200, 201), 0.75)
    log.close()
    assert [step for step, _ in lines(tmp_path)][-1] == 200


def test_a_file_that_cannot_be_thinned_out_grows_on_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with small_disk(tmp_path / "disk", megabytes=1) as disk:
        log = MetricsLog(disk, clock=lambda: 0.0, most_bytes=230_000)
        log.begin(0)
        train(log, range(3200), 0.25)
        assert (disk / METRICS_FILE).stat().st_size < 230_000
        fill(disk, left=100_000)
        train(log, range(3200, 3600), 0.25)
        log.close()
        assert len(read_metrics(disk / METRICS_FILE).rows) == 3600
        assert not list(disk.glob("*.tmp"))
    (record,) = [each for each in caplog.records if METRICS_FILE in each.getMessage().split()[0]]
    assert "grows beyond 230000 bytes" in record.getMessage()


def test_no_file_is_no_metrics(tmp_path: Path) -> None:
    assert read_metrics(tmp_path / METRICS_FILE).rows == []


@pytest.mark.parametrize("line", ['{"step": 1}', '{"step": 1, "time": null}', '{"resumed": 1, "time": "x"}'])
def test_a_line_without_a_time_does_not_count(tmp_path: Path, line: str) -> None:
    (tmp_path / METRICS_FILE).write_text(f'{{"step": 0, "time": 1.0}}\n{line}\n')
    metrics = read_metrics(tmp_path / METRICS_FILE)
    assert ([row["step"] for row in metrics.rows], metrics.unreadable) == ([0], 1)


def test_numbers_that_no_figure_can_be_made_of_are_read_as_those_that_are_not_finite(tmp_path: Path) -> None:
    row = {"equal_groups": 1e308, "samples": 10**400, "loss": -1e101, "masked": {"tokens": 1e308, "a": 1.0}}
    (tmp_path / METRICS_FILE).write_text(json.dumps({"step": 0, "time": 1.0, "kl": 1e99, **row}) + "\n")
    (found,) = read_metrics(tmp_path / METRICS_FILE).rows
    assert found == {
        "step": 0, "time": 1.0, "kl": 1e99, "equal_groups": None, "samples": None, "loss": None,
        "masked": {"tokens": None, "a": 1.0},
    }  # fmt: skip


def test_a_step_that_no_run_reaches_is_a_damaged_line(tmp_path: Path) -> None:
    lines = [{"step": 10**400, "time": 1.0}, {"step": 3, "time": 1.0}]
    (tmp_path / METRICS_FILE).write_text("\n".join(map(json.dumps, lines)))
    metrics = read_metrics(tmp_path / METRICS_FILE)
    assert ([row["step"] for row in metrics.rows], metrics.unreadable) == ([3], 1)


class Logged:
    """A logger that remembers."""

    def __init__(self) -> None:
        self.points: list[tuple[int, float, dict[str, float]]] = []

    def send(self, step: int, time: float, values: Mapping[str, float]) -> None:
        self.points.append((step, time, dict(values)))


def test_loggers_get_what_tensorboard_gets(tmp_path: Path) -> None:
    logged = Logged()
    log = MetricsLog(tmp_path, clock=lambda: 1000.0, loggers=[logged])
    log.begin(0)
    log.write(0, {"reward_mean": 0.5, "source_reward": {"math": 1.0}, "entropy": math.nan, "uids": [3]})
    log.curves(1, {"evaluation/held_out": 0.25})
    log.close()
    assert logged.points == [
        (1, 1000.0, {"train/reward": 0.5, "source_reward/math": 1.0}),
        (1, 1000.0, {"evaluation/held_out": 0.25}),
    ]
