"""Text of others, for terminals."""

import re

import pytest

from rljob_operator.plan.conditions import clip, tail
from rljob_operator.plan.printable import coloured, printable

TEXTS = {
    # what: (written, left)
    "words": ("exit code 1: größer 模型 🙂\tx", "exit code 1: größer 模型 🙂\tx"),
    "colours": ("\x1b[1;31mred\x1b[0m", "red"),
    "a screen that is cleared": ("a\x1b[2J\x1b[Hb", "ab"),
    "a title": ("a\x1b]0;root@host\x07b", "ab"),
    "a link": ("\x1b]8;;http://x\x1b\\click\x1b]8;;\x1b\\", "click"),
    "a string without an end": ("a\x1b]52;c;cm0=", "a"),
    "one that the next sequence ends": ("a\x1b]0;x\x1b[31mb", "ab"),
    "a device string": ("\x1bPq#0\x1b\\z", "z"),
    "a reset": ("\x1bca", "a"),
    "a character set": ("\x1b(0a", "a"),
    "an escape at the end": ("a\x1b", "a"),
    "half a sequence": ("a\x1b[", "a"),
    "eight-bit controls": ("a\x9b31mb\x9d0;t\x9cc", "abc"),
    "bells and backspaces": ("a\x07\x08\x7fb", "ab"),
    "a bell before a colour": ("a\x07\x1b[31mb", "ab"),
    "a line that is overwritten": ("error\rfine", "error\nfine"),
    "text that turns around": ("a\u202eb\u2066c", "abc"),
}


@pytest.mark.parametrize(("written", "left"), TEXTS.values(), ids=TEXTS)
def test_what_is_left(written, left):
    assert printable(written) == left


COLOURS = {
    "a colour": ("\x1b[1;38;5;31mred\x1b[0m\x1b[m", "\x1b[1;38;5;31mred\x1b[0m\x1b[m"),
    "a colour by colons": ("\x1b[38:2::1:2:3mx", "\x1b[38:2::1:2:3mx"),
    "a mode of the keyboard, by the same letter": ("\x1b[>4;2mx", "x"),
    "a colour within a sequence that does not end": ("\x1b]0;t\x1b[31mx", "\x1b[31mx"),
    "an eight-bit colour": ("\x9b31mx", "x"),
    "a colour from what is left of others": ("\x1b\x1b[2J[31mx", "[31mx"),
}


@pytest.mark.parametrize(("written", "left"), COLOURS.values(), ids=COLOURS)
def test_colours_are_left_where_they_are_wanted(written, left):
    assert coloured(written) == left
    assert printable(coloured(written)) == printable(written)


@pytest.mark.parametrize(("written", "left"), TEXTS.values(), ids=TEXTS)
def test_nothing_but_colours_is_left(written, left):
    assert re.sub(r"\x1b\[[0-9;:]*m", "", coloured(written)) == left


@pytest.mark.parametrize("shorten", [clip, tail])
def test_conditions_and_last_words_have_none_of_it(shorten):
    assert shorten("boom\x1b[2J\r\n\x1b]0;t\x07now") == "boom now"


def test_nothing_is_made_of_what_is_taken_out():
    """Not even a sequence from the parts of others."""
    assert printable("\x1b\x1b[2J[31mx") == printable(printable("\x1b\x1b[2J[31mx"))
    assert "\x1b" not in printable("\x1b\x1b[2J[31mx")
