"""How much is kept of a file that other processes append to."""

from pathlib import Path

import pytest

from rljob_runtime.short_files import DROPPED, shorten

KEPT = {
    # what: (the file, what is left of it with a limit of 10 bytes)
    "little": (b"one\ntwo\n", b"one\ntwo\n"),
    "twice the limit": (b"0123456789\n012345678\n"[:20], b"0123456789\n012345678\n"[:20]),
    "more": (b"first line\nsecond line\nabc\ndef\n", DROPPED + b"abc\ndef\n"),
    "a long line": (b"x" * 30, DROPPED + b"x" * 10),
}


@pytest.mark.parametrize(("printed", "kept"), KEPT.values(), ids=KEPT)
def test_the_newest_lines_are_kept(tmp_path: Path, printed: bytes, kept: bytes) -> None:
    log = tmp_path / "printed.log"
    log.write_bytes(printed)
    shorten(log, 10)
    assert log.read_bytes() == kept


def test_who_prints_goes_on_at_the_new_end(tmp_path: Path) -> None:
    log = tmp_path / "printed.log"
    with log.open("ab", buffering=0) as printer:
        printer.write(b"old\n" * 10)
        shorten(log, 8)
        printer.write(b"new\n")
    assert log.read_bytes() == DROPPED + b"old\n" + b"new\n"


def test_a_file_that_is_not_there_yet(tmp_path: Path) -> None:
    shorten(tmp_path / "printed.log", 10)
    assert list(tmp_path.iterdir()) == []
