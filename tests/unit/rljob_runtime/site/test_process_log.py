"""Where an actor's process writes what it says."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rljob_runtime.short_files import DROPPED, keep_short
from rljob_runtime.site.process_log import last_lines, log_file, logs_in

SPEAKS = """
import logging, os, subprocess, sys
from pathlib import Path
from rljob_runtime.site import process_log
process_log.begin(Path(sys.argv[1]) if sys.argv[1] else None)
process_log.begin(Path("never"))
logging.getLogger("rljob_runtime.engines").info("a line of ours")
logging.getLogger("other").info("a line of another")
print("printed", flush=True)
os.write(2, b"without Python\\n")
subprocess.run([sys.executable, "-c", "print('by a child')"], check=True)
"""


GOES_ON = """
import sys, time
from pathlib import Path
from rljob_runtime.site import process_log
process_log.begin(Path(sys.argv[1]))
for number in range(100_000):
    print("line", number, flush=True)
    time.sleep(0.0005)
"""


def speak(file: str) -> str:
    """What the terminal of a process shows that logs to `file`."""
    done = subprocess.run(
        [sys.executable, "-c", SPEAKS, file], check=True, text=True, capture_output=True, timeout=60
    )
    return done.stdout + done.stderr


SAID = ["a line of ours", "printed", "without Python", "by a child"]


def test_all_that_a_process_and_its_children_say_is_in_its_file(tmp_path: Path) -> None:
    file = log_file(tmp_path, "fast-0")
    assert file == tmp_path / "logs" / "fast-0.log"
    assert speak(str(file)) == ""
    assert [line.rpartition("INFO ")[2] for line in file.read_text().splitlines()] == SAID
    # The next process goes on in it.
    assert speak(str(file)) == ""
    assert len(file.read_text().splitlines()) == 2 * len(SAID)
    assert logs_in(tmp_path) == [file]


def comes(condition: Callable[[], bool]) -> bool:
    """Whether it holds within a minute."""
    until = time.monotonic() + 60
    while not (found := condition()) and time.monotonic() < until:
        time.sleep(0.01)
    return found


async def test_a_log_is_kept_short_while_a_process_writes_to_it(tmp_path: Path) -> None:
    """By what keeps other files of a run's folder short."""
    file = log_file(tmp_path, "trainer-0")
    writer = await asyncio.create_subprocess_exec(sys.executable, "-c", GOES_ON, str(file))
    keeper = asyncio.create_task(keep_short(lambda: logs_in(tmp_path), 1000, 0.01))
    try:
        assert await asyncio.to_thread(comes, lambda: file.exists() and DROPPED in file.read_bytes())
        # What is written afterwards is there, too.
        assert await asyncio.to_thread(comes, lambda: b"\nline " in file.read_bytes()[-500:])
        assert not keeper.done()
    finally:
        keeper.cancel()
        writer.kill()
        await writer.wait()


def test_without_a_file_it_stays_where_it_is() -> None:
    assert all(line in speak("") for line in SAID)


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        (b"first\nSegmentation fault\n\n", "first", ""),
        (b"\xff\xfe it was\n", "\ufffd\ufffd it was", "\ufffd\ufffd it was"),
        (b"x\n" * 20_000 + b"the end", "", "the end"),
    ],
)
def test_the_lines_that_a_log_ends_with(tmp_path: Path, text: bytes, first: str, last: str) -> None:
    file = tmp_path / "trainer-0.log"
    file.write_bytes(text)
    found = last_lines(file)
    assert (found[0], found[-1]) == (first, last) and len(found) < 10_000


def test_of_a_log_that_is_not_there_nothing_is_said(tmp_path: Path) -> None:
    assert last_lines(tmp_path / "none") == []
