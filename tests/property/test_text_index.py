"""The index of texts against a search of every place."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.engines.text_index import Match, TextIndex

TOKENS = st.lists(st.integers(0, 2), max_size=30)


def everywhere(texts: list[list[int]], tail: list[int], context: int) -> Match | None:
    """What `TextIndex.longest` must find."""
    best, start = None, 0
    for text in texts:
        for position in range(len(text)):
            length = 0
            while length < min(position, len(tail)) and text[position - 1 - length] == tail[-1 - length]:
                length += 1
            if length >= context and (best is None or length >= best.length):
                best = Match(length, start + position)
        start += len(text) + 1
    return best


@given(st.lists(TOKENS, max_size=4), TOKENS, st.integers(1, 4))
def test_the_longest_match_of_all_places_is_found(
    texts: list[list[int]], tail: list[int], context: int
) -> None:
    index = TextIndex(context, candidates=1000)
    for text in texts:
        for token in text:
            index.extend(np.array([token], np.int32))
        index.end_text()
    assert index.longest(np.array(tail, np.int32)) == everywhere(texts, tail, context)


@given(TOKENS, st.integers(1, 4), st.integers(0, 12))
def test_what_is_drafted_stood_after_the_same_tokens(text: list[int], context: int, count: int) -> None:
    index = TextIndex(context)
    index.extend(np.array(text, np.int32))
    match = index.longest(np.array(text, np.int32))
    if match is None:
        return
    assert text[match.start - match.length : match.start] == text[-match.length :]
    drafted = index.continuation(match.start, count)
    assert len(drafted) == count
    # The text that is being read goes on as it did since the match.
    assert (text + drafted)[match.start : match.start + count] == drafted
