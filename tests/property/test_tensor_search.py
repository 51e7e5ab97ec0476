"""The search by tensors against one of every place in plain Python."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.engines.tensor_search import COMPARED, END, drafts

TOKENS = st.lists(st.integers(0, 2), max_size=30)
TEXT = st.lists(st.integers(0, 2), min_size=1, max_size=30)


def guessed(finished: list[list[int]], own: list[int], minimum: int, count: int) -> list[int]:
    """What `drafts` must find for one text."""
    best, draft = 0, list[int]()
    for text in [*finished, own]:
        for place in range(len(text)):
            agreed = 0
            while (
                agreed < min(place, len(own), max(COMPARED, minimum))
                and text[place - 1 - agreed] == own[-1 - agreed]
            ):
                agreed += 1
            if agreed >= max(minimum, best):
                best, draft = agreed, text[place:]
                if text is own:
                    draft = [draft[step % len(draft)] for step in range(count)]
    return draft[:count]


def table(rows: list[list[int]], beyond: int) -> torch.Tensor:
    width = max(map(len, rows))
    return torch.tensor([row + [beyond] * (width - len(row)) for row in rows], dtype=torch.int32).reshape(
        len(rows), width
    )


@given(
    st.lists(st.tuples(st.lists(TOKENS, max_size=4), TEXT), min_size=1, max_size=5),
    st.integers(1, 20),
    st.integers(1, 12),
    st.integers(0, 2),
)
def test_the_longest_match_of_all_places_goes_on(
    texts: list[tuple[list[list[int]], list[int]]], minimum: int, count: int, beyond: int
) -> None:
    finished = table([[token for one in several for token in (*one, END)] for several, _ in texts], END)
    own = table([text for _, text in texts], beyond)
    lengths = torch.tensor([len(text) for _, text in texts])
    tokens, counts = drafts(finished, own, lengths, minimum, count)
    for (several, text), row, known in zip(texts, tokens.tolist(), counts.tolist(), strict=True):
        expected = guessed(several, text, minimum, count)
        assert row[:known] == expected
        assert row[known:] == [text[-1]] * (count - known)
