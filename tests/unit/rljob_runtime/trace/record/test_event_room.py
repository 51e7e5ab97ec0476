"""Events of old steps make room."""

import logging
from pathlib import Path

import pytest

from rljob_runtime.trace.record.event_log import EventLog
from rljob_runtime.trace.record.event_room import EventRoom, steps_to_remove


@pytest.mark.parametrize(
    ("sizes", "most", "newest", "expected"),
    [
        pytest.param({}, 10, 0, [], id="nothing is there"),
        pytest.param({0: 5, 1: 5}, 10, 1, [], id="all fit"),
        pytest.param(dict.fromkeys(range(6), 5), 20, 5, [0, 1], id="the oldest go"),
        pytest.param(dict.fromkeys(range(6), 5), 19, 5, [0, 1, 2], id="whole steps"),
        pytest.param({0: 1, 1: 100, 2: 1, 3: 1, 4: 1, 5: 1}, 5, 5, [0, 1], id="no more than is needed"),
        pytest.param(dict.fromkeys(range(6), 5), 1, 5, [0, 1, 2], id="the newest three stay"),
        pytest.param({7: 9, 8: 9, 2: 9}, 10, 5, [2], id="those of steps that are trained again stay"),
    ],
)
def test_which_steps_go(sizes: dict[int, int], most: int, newest: int, expected: list[int]) -> None:
    assert steps_to_remove(sizes, most, newest) == expected


def write(log: EventLog, step: int, events: int = 20) -> None:
    for number in range(events):
        log.add("generate", step, float(number), 1.0, uid=number)
    log.flush()


def size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*.jsonl"))


def test_a_long_run_takes_no_more_than_it_may(tmp_path: Path) -> None:
    log = EventLog(tmp_path, 1, "fast-0", "fast")
    write(log, 0)
    most = 10 * size(tmp_path)
    room = EventRoom(tmp_path, most)
    for step in range(1, 100):
        write(log, step)
        room.look(step)
        # Numbers of more digits take a byte more.
        assert size(tmp_path) <= most
    assert size(tmp_path) > 0.8 * most
    assert sorted(path.name for path in tmp_path.iterdir())[-1] == "worker_1.json", "who recorded stays"


def test_what_is_written_late_goes_with_the_next_look(tmp_path: Path) -> None:
    log = EventLog(tmp_path, 1, "fast-0", "fast")
    for step in range(10):
        write(log, step)
    room = EventRoom(tmp_path, size(tmp_path) // 2)
    room.look(9)
    assert not (tmp_path / "step_0").exists()
    write(log, 0, events=1)
    assert (tmp_path / "step_0" / "worker_1.jsonl").exists(), "the log goes on"
    room.look(9)
    assert not (tmp_path / "step_0").exists()


def test_a_folder_that_goes_between_two_looks_of_a_writer_does_not_end_its_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, room = EventLog(tmp_path, 1, "fast-0", "fast"), EventRoom(tmp_path, 1)
    for step in range(5):
        write(log, step)
    made = Path.mkdir

    def removed_behind(path: Path, *args: int, **options: bool) -> None:
        made(path, *args, **options)
        monkeypatch.setattr(Path, "mkdir", made)
        room.look(4)

    monkeypatch.setattr(Path, "mkdir", removed_behind)
    write(log, 0)
    assert (tmp_path / "step_0" / "worker_1.jsonl").read_text().count("\n") == 20


def test_a_folder_that_cannot_be_removed_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, room = EventLog(tmp_path, 1, "fast-0", "fast"), EventRoom(tmp_path, 1)
    for step in range(5):
        write(log, step)

    def refuse(path: Path, target: Path) -> Path:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "rename", refuse)
    with caplog.at_level(logging.WARNING):
        room.look(4)
        room.look(4)
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("events of old steps are not removed") and said.endswith("Permission denied")
