"""Which weight version each token of a response came from.

Pure. Whatever an engine reports ends as `samples.Span`s that are contiguous from 0, ascending, free of empty
spans and of neighbours with one version, and that cover exactly the response's tokens.
"""

from collections.abc import Iterable
from typing import Protocol

from rljob_runtime.samples import Span, join_spans


class ReportedSpan(Protocol):
    """A span as vLLM attaches it to an output: tokens [start, end) are from the weights named `version`."""

    @property
    def version(self) -> str: ...

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...


class SpanRecorder:
    """Records at which token a response's weight version changed, and makes spans of it."""

    def __init__(self, version: int) -> None:
        """`version` labels the tokens from the first one on."""
        self._starts: list[tuple[int, int]] = [(version, 0)]

    def mark(self, version: int, count: int) -> None:
        """Tokens from index `count` on are sampled from the weights of `version`."""
        if count < self._starts[-1][1]:
            raise ValueError(f"mark at token {count} after a mark at token {self._starts[-1][1]}")
        self._starts.append((version, count))

    def spans(self, length: int) -> tuple[Span, ...]:
        """The spans of a response of `length` tokens."""
        ends = [*(start for _, start in self._starts[1:]), length]
        starts = zip(self._starts, ends, strict=True)
        pieces = ((version, min(end, length) - start) for (version, start), end in starts)
        return _joined(pieces)


def spans_from_report(report: Iterable[ReportedSpan] | None, length: int) -> tuple[Span, ...]:
    """Spans of a response of `length` tokens from an engine's own report.

    Raises `ValueError` when the report does not cover the tokens: a label must never be guessed.
    """
    position = 0
    pieces = []
    for span in report or ():
        if span.start != position or span.end < span.start:
            raise ValueError(f"reported spans are not contiguous at token {position}: {span}")
        pieces.append((int(span.version), min(span.end, length) - min(span.start, length)))
        position = span.end
    if position < length:
        raise ValueError(f"reported spans cover {position} of {length} tokens")
    return _joined(pieces)


def _joined(pieces: Iterable[tuple[int, int]]) -> tuple[Span, ...]:
    spans: tuple[Span, ...] = ()
    for version, count in pieces:
        if count > 0:
            spans = join_spans(spans, (Span(version, 0, count),))
    return spans
