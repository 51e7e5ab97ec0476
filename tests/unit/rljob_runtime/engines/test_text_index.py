"""Where the last tokens of a text stood before."""

import numpy as np
import pytest
from numpy.typing import NDArray

from rljob_runtime.engines.text_index import Match, TextIndex


def tokens(text: str) -> NDArray[np.int32]:
    """One token for each letter."""
    return np.array([ord(letter) for letter in text], np.int32)


def index_of(*texts: str, context: int = 2, candidates: int = 16, ended: bool = True) -> TextIndex:
    index = TextIndex(context, candidates)
    for text in texts:
        index.extend(tokens(text))
        if ended:
            index.end_text()
    return index


@pytest.mark.parametrize(
    ("texts", "tail", "expected"),
    [
        (["abcd"], "ab", Match(2, 2)),
        (["abcd"], "bc", Match(2, 3)),
        (["abcd"], "xbc", Match(2, 3)),
        (["abcd"], "abc", Match(3, 3)),
        (["abcd"], "abcabc", Match(3, 3)),
        (["abcd"], "cd", None),  # nothing follows
        (["abcd"], "c", None),  # shorter than the context
        (["abcd"], "", None),
        ([], "ab", None),
        (["abc", "xbcd"], "abc", Match(2, 7)),  # in the first text nothing follows
        (["xbcd", "abce"], "xbc", Match(3, 3)),  # longer, though older
        (["xbcd", "ybce"], "zbc", Match(2, 8)),  # as long, and newer
        (["ab", "cd"], "bc", None),  # not over the end of a text
        (["a", "b", "cde"], "cd", Match(2, 6)),
    ],
)
def test_the_longest_match(texts: list[str], tail: str, expected: Match | None) -> None:
    assert index_of(*texts).longest(tokens(tail)) == expected


def test_no_more_places_are_compared_than_asked_for() -> None:
    assert index_of("xbcd", "ybce", "ybcf", candidates=2).longest(tokens("xbc")) == Match(2, 13)
    assert index_of("xbcd", "ybce", "ybcf", candidates=3).longest(tokens("xbc")) == Match(3, 3)


def test_a_text_read_in_pieces_is_one_text() -> None:
    whole, pieces = index_of("abcabd"), TextIndex(2)
    for piece in ("a", "", "bc", "a", "bd"):
        pieces.extend(tokens(piece))
    pieces.end_text()
    for tail in ("ab", "bc", "ca", "bd", "abcab", "cab"):
        assert pieces.longest(tokens(tail)) == whole.longest(tokens(tail))
    assert len(pieces) == len(whole) == 7


@pytest.mark.parametrize(
    ("text", "ended", "start", "count", "expected"),
    [
        ("abcdef", True, 2, 3, "cde"),
        ("abcdef", True, 4, 3, "ef"),
        ("abcdef", False, 4, 5, "efefe"),  # goes on as it did since the start
        ("abcdef", False, 2, 0, ""),
    ],
)
def test_the_continuation(text: str, ended: bool, start: int, count: int, expected: str) -> None:
    found = index_of(text, ended=ended).continuation(start, count)
    assert "".join(map(chr, found)) == expected


def test_a_continuation_ends_with_its_text() -> None:
    assert index_of("abc", "def").continuation(1, 9) == tokens("bc").tolist()
