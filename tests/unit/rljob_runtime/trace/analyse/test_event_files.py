"""Damaged events are left out, and where the first of them stands is told."""

import json
from pathlib import Path

import pytest

from rljob_runtime.cli.command import main
from rljob_runtime.trace.analyse.event_files import Tally, read_blocks, read_steps
from rljob_runtime.trace.record.event_log import EVENTS_FOLDER
from tests.support.runtime.synthetic_run import EPOCH, Job, write_run

WRONG = [
    ("generate", {"tokens": "many"}, "extra.tokens"),
    ("generate", {"tokens": None}, "extra.tokens"),
    ("generate", {"tokens": 10**30}, "extra.tokens"),
    ("generate", {"tokens": -5}, "extra.tokens"),
    ("generate", {"length": [3]}, "extra.length"),
    ("generate", {"uid": "first"}, "extra.uid"),
    ("generate", {"request": 7}, "extra.request"),
    ("generate", {"left": {}}, "extra.left"),
    ("generate", {"phases": {"decode": 1e308, "preemptions": 1e308}}, "extra.phases[...]"),
    ("reward", {"uid": 1, "rewards": [1e308]}, "extra.rewards[0]"),
    ("reward", {"uid": [1]}, "extra.uid"),
    ("reward", {"uid": 1, "rewards": "none"}, "extra.rewards"),
    ("reward", {"uid": 1, "rewards": [{}]}, "extra.rewards[0]"),
    ("reward", {"uid": 1, "running": "long"}, "extra.running"),
    ("reward", {"uid": 1, "running": None}, "extra.running"),
    ("reward", {"uid": 1, "running": 1.0, "waiting": {}}, "extra.waiting"),
    ("reward", {"uid": 1, "teacher": []}, "extra.teacher"),
    ("reward", {"uid": 1, "spread": "wide"}, "extra.spread"),
    ("division", {"engines": "all", "cut": 5}, "extra.engines"),
    ("division", {"engines": 1, "cut": "long"}, "extra.cut"),
    ("start", {"part": "load", "since": 1e300}, "extra.since"),
    ("usage", {"cpu": 1.0, "memory_mib": 10**400}, "extra"),
]


def line(event: str, extra: object, **other: object) -> str:
    told = {"event": event, "start": EPOCH, "duration": 1.0, "step": 1, "worker": "fast-0", "pool": "fast"}
    return json.dumps({**told, "extra": extra, **other}) + "\n"


@pytest.mark.parametrize(("event", "extra", "field"), WRONG)
def test_an_event_whose_extra_is_wrong_is_left_out_and_told(
    tmp_path: Path, event: str, extra: dict[str, object], field: str
) -> None:
    file = tmp_path / "step_1" / "worker_9.jsonl"
    file.parent.mkdir()
    file.write_text(line("put", {"uid": 1}) + line(event, extra) + line("put", {"uid": 2, "odd": [None]}))
    for found in (
        lambda tally: [event for _, events in read_steps(tmp_path, tally) for event in events],
        lambda tally: [event for block in read_blocks(tmp_path, tally) for event in block],
    ):
        tally = Tally()
        assert [each.extra["uid"] for each in found(tally)] == [1, 2]
        assert tally.unreadable == 1
        assert tally.first.startswith(f"{file} line 2: ") and field in tally.first


def test_commands_say_what_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", Job(steps=4))
    file = run / EVENTS_FOLDER / "step_1" / "worker_1.jsonl"
    number = len(file.read_text().splitlines()) + 1
    with file.open("a") as out:
        out.writelines(line(event, extra) for event, extra, _ in WRONG)
    where = f"{file} line {number}: "
    for command in (["report"], ["trace", "fit"], ["trace", "responses"], ["trace", "export"]):
        assert main([*command, str(run)]) == 0
        out, err = capsys.readouterr()
        told = (run / "report.html").read_text() if command == ["report"] else out + err
        assert f"{len(WRONG)} lines are no events" in told and where in told, command
