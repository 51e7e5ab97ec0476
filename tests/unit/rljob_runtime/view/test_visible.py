"""What a model wrote, for terminals and pages: nothing of it acts."""

import unicodedata

import pytest

from rljob_runtime.view.visible import visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("two\n\tlines, é 日 \U0001f600", "two\n\tlines, é 日 \U0001f600"),
        ("\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"),
        ("a\rb\x00\x7f\x9b31m", "a\\rb\\x00\\x7f\\x9b31m"),
        ("\u202eabc\u2066\u200f\u2028\ufeff", "\\u202eabc\\u2066\\u200f\\u2028\\ufeff"),
        ("\ud800", "\\ud800"),
        ("\\x1b", "\\x1b"),
    ],
)
def test_controls_can_be_read(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_no_control_character_is_left() -> None:
    every = "".join(map(chr, range(0x110000)))
    left = {unicodedata.category(char) for char in visible(every) if char not in "\n\t"}
    assert not left & {"Cc", "Cs", "Zl", "Zp"}
    directions = {"RLE", "LRE", "RLO", "LRO", "PDF", "RLI", "LRI", "FSI", "PDI"}
    assert not {unicodedata.bidirectional(char) for char in visible(every)} & directions
