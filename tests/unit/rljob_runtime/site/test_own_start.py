"""The parts of a process's start."""

import os
import subprocess
import sys
import time

import pytest

from rljob_runtime.site.own_start import OwnStart, StartPart, created, of_command, of_one_start


def test_parts_come_in_the_order_of_their_begins_and_one_that_failed_is_none() -> None:
    times = iter([10.0, 11.0, 12.0, 15.0, 20.0])
    own = OwnStart(lambda: next(times))
    with own.part("load"):
        pass
    with own.part("graphs"):
        pass
    with pytest.raises(ValueError, match="no model"), own.part("profile"):
        raise ValueError("no model")
    own.add([StartPart("imports", 2.0, 5.0)])
    assert own.parts == (
        StartPart("imports", 2.0, 5.0), StartPart("load", 10.0, 1.0), StartPart("graphs", 12.0, 3.0),
    )  # fmt: skip


@pytest.mark.parametrize(("made", "found"), [(4.0, [StartPart("process", 4.0, 6.0)]), (None, []), (10.5, [])])
def test_a_process_that_was_made_at_no_sensible_time_is_no_part(
    made: float | None, found: list[StartPart]
) -> None:
    own = OwnStart(lambda: 10.0)
    own.process("process", made)
    assert list(own.parts) == found


@pytest.mark.parametrize(
    ("made", "checked", "ready", "parts"),
    [
        (10.0, 14.0, 13.0, [StartPart("check", 10.0, 4.0)]),
        (10.0, 14.0, 14.0, [StartPart("check", 10.0, 4.0)]),
        (10.0, 11.0, 13.0, [StartPart("check", 10.0, 1.0), StartPart("ray", 11.0, 2.0)]),
        (None, 11.0, 13.0, [StartPart("ray", 11.0, 2.0)]),
        (None, 14.0, 13.0, []),
    ],
    ids=["Ray is first", "both at once", "the check is first", "begin not known", "not known, Ray is first"],
)
def test_a_command_waits_for_the_check_and_for_what_ray_takes_beyond_it(
    made: float | None, checked: float, ready: float, parts: list[StartPart]
) -> None:
    assert of_command(made, checked, ready) == parts


def test_when_a_process_was_made_is_known_to_a_part_of_a_second() -> None:
    code = "from rljob_runtime.site.own_start import created; print(created())"
    before = time.time()
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60, env=os.environ
    )
    # The kernel counts in hundredths.
    assert before - 0.05 <= float(told.stdout) <= time.time()
    ours = created()
    assert ours is not None and ours < before


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        (100.0, [("process", 100.0, 4.0), ("core", 104.0, 60.0)]),
        (101.5, [("process", 100.0, 4.0), ("core", 104.0, 60.0)]),
        (103.0, [("process", 103.0, 1.0), ("core", 104.0, 60.0)]),
        (104.0, [("core", 104.0, 60.0)]),
        (124.0, [("core", 124.0, 40.0)]),
        (0.0, [("process", 100.0, 4.0), ("core", 104.0, 60.0)]),
    ],
    ids=[
        "after it was asked for", "a clock a little behind", "a process that was there", "and had ended",
        "a part that goes on", "not known",
    ],
)  # fmt: skip
def test_a_start_has_what_came_after_it_was_asked_for(
    asked: float, kept: list[tuple[str, float, float]]
) -> None:
    parts = [StartPart("process", 100.0, 4.0), StartPart("core", 104.0, 60.0)]
    assert [(each.part, each.start, each.seconds) for each in of_one_start(parts, asked)] == kept
