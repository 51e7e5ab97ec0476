"""What a terminal gets of a log."""

import io
import re
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_operator.kubectl.command import show
from rljob_operator.kubectl.terminal_log import TerminalLog

ALLOWED = re.compile(r"(?:[^\x00-\x08\x0b-\x1f\x7f-\x9f]|\x1b\[[0-9;:]*m)*")
LONG = "x" * 100_000

LOGS = {
    # what: (logged, shown)
    "lines": (b"step 1\n\tloss 0.5\nstep 2\n", "step 1\n\tloss 0.5\nstep 2\n"),
    "a last line that has not ended": (b"a\nb", "a\nb"),
    "colours, and none after the log": (b"\x1b[36m(worker)\x1b[0m on", "\x1b[36m(worker)\x1b[0m on\x1b[0m"),
    "a cleared screen and a title": (b"a\x1b[2J\x1b]0;root@host\x07b\n", "ab\n"),
    "a clipboard that is filled, without an end": (b"a\x1b]52;c;cm0=\nb\n", "a\nb\n"),
    "a bar that is drawn anew": (b"10 %\r20 %\r\ndone\n", "10 %\n20 %\ndone\n"),
    "line ends of Windows": (b"a\r\nb\r\n", "a\nb\n"),
    "no UTF-8": (b"a\x9b2Jb\xff\n", "a\ufffd2Jb\ufffd\n"),
    "letters of several bytes": ("größer 模型 🙂\n".encode(), "größer 模型 🙂\n"),
    "half a letter": ("🙂".encode()[:2], "\ufffd"),
    "a long line": (LONG.encode(), LONG),
}


def shown(*chunks: bytes) -> str:
    log = TerminalLog()
    return "".join([*(log.text(chunk) for chunk in chunks), log.end()])


@pytest.mark.parametrize(("logged", "text"), LOGS.values(), ids=LOGS)
def test_what_is_shown(logged, text):
    assert shown(logged) == text
    assert shown(*(logged[at : at + 1] for at in range(min(len(logged), 100)))) == shown(logged[:100])


def test_a_line_is_shown_as_soon_as_it_has_ended_or_is_too_long_to_wait_for():
    log = TerminalLog()
    assert [log.text(chunk) for chunk in (b"a", b"b\nc", b"\n")] == ["", "ab\n", "c\n"]
    assert log.text(LONG.encode()) == LONG and log.end() == ""


PIECES = ["\x1b", "[", "]", "31m", "2J", "0;t", "\x07", "\\", "\n", "\r", "a", "\x9b", "é", "?", ";", "P"]


@given(st.lists(st.sampled_from(PIECES), max_size=30), st.lists(st.integers(0, 60), max_size=5))
def test_wherever_it_is_cut_the_same_is_shown_and_acts_on_nothing(pieces, cuts):
    logged = "".join(pieces).encode()
    at = [0, *sorted(min(cut, len(logged)) for cut in cuts), len(logged)]
    text = shown(*(logged[a:b] for a, b in pairwise(at)))
    assert text == shown(logged)
    assert ALLOWED.fullmatch(text)


@pytest.mark.parametrize("code", [0, 3])
def test_a_command_s_log_is_shown_and_its_exit_code_kept(code):
    terminal = io.StringIO()
    program = f"import sys; print('a\\x1b[2Jb'); sys.exit({code})"
    assert show([sys.executable, "-c", program], terminal) == code
    assert terminal.getvalue() == "ab\n"
