"""TensorBoard's files: bounded, in parts that TensorBoard reads as one."""

from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rljob_runtime.trace.record.tensorboard_file import TensorBoardFile, thin_out
from tests.support.disks import fill, small_disk

MOST = 64_000
"""Bytes, of some 470 steps."""
STEP = {f"train/{name}": 0.5 for name in "abc"}


def size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def train(board: TensorBoardFile, folder: Path, first: int, last: int) -> None:
    for step in range(first, last):
        board.scalars(step, STEP)
        assert size(folder) <= MOST
        if step % 10 == 0:
            board.scalars(step, {"evaluation/held_out/mean": 0.25})


def read(folder: Path) -> EventAccumulator:
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    found.Reload()
    return found


def steps(found: EventAccumulator, tag: str) -> list[int]:
    return [item.step for item in found.Scalars(tag)]


def test_a_long_run_keeps_its_newest_points_and_ever_fewer_of_the_older_ones(tmp_path: Path) -> None:
    board = TensorBoardFile(tmp_path, lambda: 0.0, MOST)
    board.supersede(0)
    board.texts(3, {"says/best": "aha"})
    train(board, tmp_path, 0, 4000)
    board.close()
    found = read(tmp_path)
    for tag, last, apart in (("train/a", 3999, 1), ("evaluation/held_out/mean", 3990, 10)):
        kept = steps(found, tag)
        gaps = np.diff(kept)
        assert kept[-1] == last and gaps[0] > 8 * apart and gaps.tolist() == sorted(gaps, reverse=True)
        assert gaps[-10:].tolist() == [apart] * 10
    assert [item.step for item in found.Tensors("says/best")] == [3]
    assert not list(tmp_path.glob(".*"))


def test_a_run_that_goes_back_supersedes_points_of_earlier_parts(tmp_path: Path) -> None:
    board = TensorBoardFile(tmp_path, lambda: 0.0, MOST)
    board.supersede(0)
    train(board, tmp_path, 0, 1000)
    board.close()
    again = TensorBoardFile(tmp_path, lambda: 0.0, MOST)
    again.supersede(900)
    train(again, tmp_path, 900, 1100)
    again.close()
    kept = steps(read(tmp_path), "train/a")
    assert kept == sorted(set(kept)) and kept[-200:] == list(range(900, 1100))


def test_a_tensorboard_that_is_open_gets_every_new_point(tmp_path: Path) -> None:
    board = TensorBoardFile(tmp_path, lambda: 0.0, MOST)
    open_one = read(tmp_path)
    for first in range(0, 3000, 50):
        train(board, tmp_path, first, first + 50)
        open_one.Reload()
    board.close()
    assert steps(open_one, "train/a") == list(range(3000))


def test_what_is_cut_off_or_strange_is_no_point(tmp_path: Path) -> None:
    board = TensorBoardFile(tmp_path, lambda: 0.0)
    for step in range(100):
        board.scalars(step, STEP)
    board.close()
    (part,) = tmp_path.iterdir()
    part.write_bytes(part.read_bytes()[:-5])
    strange = tmp_path / "events.out.tfevents.0"
    strange.write_bytes((3).to_bytes(8, "little") + b"1234" + b"\xff\xff\xff" + b"1234")
    whole = strange.read_bytes()
    thin_out([strange, part], 3000)
    assert strange.read_bytes() == whole
    kept = steps(read(part.parent), "train/a")
    assert 10 < len(kept) < 50 and kept[-1] == 98


def test_parts_that_cannot_be_thinned_out_end_the_recording(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with small_disk(tmp_path / "disk", megabytes=1) as disk:
        board = TensorBoardFile(disk, lambda: 0.0, 400_000)
        for step in range(2500):
            board.scalars(step, STEP)
        before = size(disk)
        fill(disk, left=30_000)
        for step in range(2500, 4000):
            board.scalars(step, STEP)
        board.close()
        assert steps(read(disk), "train/a")[:2500] == list(range(2500))
        assert before < 400_000
    (record,) = caplog.records
    assert "nothing more is written for TensorBoard" in record.getMessage()
