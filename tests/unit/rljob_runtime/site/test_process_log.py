"""Where an actor's process writes what it says."""

import subprocess
import sys
from pathlib import Path

import pytest

from rljob_runtime.site.process_log import last_line, log_file

SPEAKS = """
import logging, os, subprocess, sys
from pathlib import Path
from rljob_runtime.site import process_log
process_log.LOG_BYTES = 20
process_log.begin(Path(sys.argv[1]) if sys.argv[1] else None)
process_log.begin(Path("never"))
logging.getLogger("rljob_runtime.engines").info("a line of ours")
logging.getLogger("other").info("a line of another")
print("printed", flush=True)
os.write(2, b"without Python\\n")
subprocess.run([sys.executable, "-c", "print('by a child')"], check=True)
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
    # The next process begins a new file where the one before has become too large.
    assert speak(str(file)) == ""
    assert len(file.read_text().splitlines()) == len(SAID)
    assert len((tmp_path / "logs" / "fast-0.log.1").read_text().splitlines()) == len(SAID)


def test_without_a_file_it_stays_where_it_is() -> None:
    assert all(line in speak("") for line in SAID)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b"first\nSegmentation fault\n\n  \n", "Segmentation fault"),
        (b"", ""),
        (b"\xff\xfe it was\n", "\ufffd\ufffd it was"),
        (b"x\n" * 20_000 + b"the end", "the end"),
    ],
)
def test_the_last_line_that_says_anything(tmp_path: Path, text: bytes, line: str) -> None:
    file = tmp_path / "trainer-0.log"
    file.write_bytes(text)
    assert last_line(file) == line


def test_of_a_log_that_is_not_there_nothing_is_said(tmp_path: Path) -> None:
    assert last_line(tmp_path / "none") == ""
