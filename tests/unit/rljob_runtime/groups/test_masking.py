"""Which tokens are context: by the versions of a response's spans, and by the bound."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.groups.masking import context_tokens, oldest_trained
from rljob_runtime.groups.staleness import Bound
from rljob_runtime.samples import Span


@pytest.mark.parametrize(
    ("max_staleness", "masks", "version", "oldest"),
    [
        (1, True, 5, 4),
        (2, True, 5, 3),
        (0.2, True, 5, 4),
        (0, True, 5, 5),
        (1, True, 0, -1),
        (1, False, 5, None),
    ],
)
def test_the_oldest_version_whose_tokens_are_trained(max_staleness, masks, version, oldest):
    assert oldest_trained(Bound(max_staleness, 4, masks=masks), version) == oldest


SPANS = (Span(2, 0, 10), Span(3, 10, 15), Span(5, 15, 40))


@pytest.mark.parametrize(
    ("spans", "oldest", "context"),
    [
        (SPANS, None, 0),
        (SPANS, 2, 0),
        (SPANS, 3, 10),
        (SPANS, 4, 15),
        (SPANS, 5, 15),
        (SPANS, 6, 40),
        ((), 6, 0),
        # Should versions ever go down, what is behind a stale token is trained no earlier than it.
        ((Span(4, 0, 3), Span(3, 3, 5), Span(4, 5, 8)), 4, 5),
    ],
)
def test_tokens_up_to_the_last_stale_one_are_context(spans, oldest, context):
    assert context_tokens(spans, oldest) == context


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 9)), max_size=6), st.integers(0, 7))
def test_no_trained_token_is_stale_and_the_token_before_them_is(lengths, oldest):
    spans, position = [], 0
    for version, length in lengths:
        spans.append(Span(version, position, position + length))
        position += length
    versions = [span.version for span in spans for _ in range(span.start, span.end)]
    context = context_tokens(spans, oldest)
    assert all(version >= oldest for version in versions[context:])
    assert context == 0 or versions[context - 1] < oldest
