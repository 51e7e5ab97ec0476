"""metrics.jsonl and TensorBoard: one line per step, and what a resume supersedes."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from rljob_runtime.trace.record.metrics import (
    METRICS_FILE,
    TENSORBOARD_FOLDER,
    MetricsLog,
    Resume,
    read_metrics,
    scalars,
)
from tests.support.disks import fill, small_disk


def write(
    folder: Path, steps: range, reward: float, resumed_at: int | None = None, now: float = 1000.0
) -> None:
    log = MetricsLog(folder, resumed_at, clock=lambda: now)
    for step in steps:
        log.write(step, {"reward_mean": reward, "seconds": {"forward": 0.5}})
    log.close()


def board(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard itself reads."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder / TENSORBOARD_FOLDER))
    read.Reload()
    return {tag: [(item.step, item.value) for item in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


def test_a_step_is_one_line_and_one_point_of_each_curve(tmp_path: Path) -> None:
    write(tmp_path, range(2), 0.25)
    assert [json.loads(line) for line in (tmp_path / METRICS_FILE).read_text().splitlines()] == [
        {"reward_mean": 0.25, "seconds": {"forward": 0.5}, "step": step, "time": 1000.0} for step in range(2)
    ]
    assert board(tmp_path) == {
        "train/reward": [(0, 0.25), (1, 0.25)],
        "seconds/forward": [(0, 0.5), (1, 0.5)],
    }


def test_a_resume_supersedes_the_steps_that_are_trained_again(tmp_path: Path) -> None:
    write(tmp_path, range(6), 0.25)
    write(tmp_path, range(4, 5), 0.75, resumed_at=4, now=2000.0)
    metrics = read_metrics(tmp_path / METRICS_FILE)
    assert [(row["step"], row["reward_mean"]) for row in metrics.rows] == [
        (0, 0.25), (1, 0.25), (2, 0.25), (3, 0.25), (4, 0.75),
    ]  # fmt: skip
    assert metrics.resumes == [Resume(4, 2000.0)]
    assert board(tmp_path)["train/reward"] == [(0, 0.25), (1, 0.25), (2, 0.25), (3, 0.25), (4, 0.75)]


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
    write(tmp_path, range(2, 3), 0.5)
    metrics = read_metrics(tmp_path / METRICS_FILE)
    assert [row["step"] for row in metrics.rows] == [0, 1, 2]
    assert metrics.unreadable == 1


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
        assert board(tmp_path)["train/loss"] == [(0, 0.5)]
    (record,) = caplog.records
    assert "nothing more is written for TensorBoard" in record.getMessage()


def test_no_file_is_no_metrics(tmp_path: Path) -> None:
    assert read_metrics(tmp_path / METRICS_FILE).rows == []


@pytest.mark.parametrize("line", ['{"step": 1}', '{"step": 1, "time": null}', '{"resumed": 1, "time": "x"}'])
def test_a_line_without_a_time_does_not_count(tmp_path: Path, line: str) -> None:
    (tmp_path / METRICS_FILE).write_text(f'{{"step": 0, "time": 1.0}}\n{line}\n')
    metrics = read_metrics(tmp_path / METRICS_FILE)
    assert ([row["step"] for row in metrics.rows], metrics.resumes, metrics.unreadable) == ([0], [], 1)
