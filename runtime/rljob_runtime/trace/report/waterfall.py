"""The longest responses of a step as bars over time: on which engine each ran, and why it moved.

Pure: a `StepDetail` in, markup out, of bounded size.
"""

import itertools
from collections.abc import Mapping, Sequence
from html import escape

from rljob_runtime.trace.analyse.requests import Attempt, Request
from rljob_runtime.trace.analyse.scheduling import FAST, kind_of_engine
from rljob_runtime.trace.analyse.step_detail import StepDetail
from rljob_runtime.trace.report.lanes import ROW, SPAN, box, lanes
from rljob_runtime.trace.report.markup import legend, seconds

REASONS = {
    "long": "turned out to be long, and went to the engines for long responses",
    "tripped": "had more tokens than the fast pool lets it have",
    "urgent": "the next training step waited for it, and another engine finished it sooner",
    "levelled": "its engine would have finished last, and another one of the same kind first",
    "stolen": "engines of the other kind had room, and would have finished first",
    "stuck": "its engine did nothing for it, and went on with others",
    "drained": "its engine left the pool",
    "set_aside": "its engine was set aside for an evaluation",
    "lost": "its engine was lost, and with it the tokens of that stay",
    "update": "a weight update took it out",
    "engine": "its engine gave it up by itself",
    "moved": "the policy moved it",
    "": "the reason was not recorded",
}
"""Why a response left an engine before its end, by the word that events have for it."""

_STAYS = 6
"""Stays of one response that are told in words: the first ones and the last."""


def waterfall(detail: StepDetail) -> str:
    """The figure; nothing where no response ended in the step."""
    if not detail.requests:
        return ""
    window = detail.window
    first, span = extent(detail)
    stays = [attempt for request in detail.requests for attempt in request.attempts]
    workers = sorted({attempt.worker for attempt in stays})
    colours = {worker: index % 8 for index, worker in enumerate(workers)}
    rows = [(request.name, _bars(request, first, span, colours)) for request in detail.requests]
    notes = [f"{request.length:,} tokens: {path(request.attempts)}" for request in detail.requests]
    names = legend((worker, str(colours[worker])) for worker in workers)
    thick = len({on_engine_for_long(stay) for stay in stays}) == 2
    earlier = window.start - first
    told = (
        "Each bar is a stay on an engine; a line ends one after which the response went on. "
        + ("Thick bars: the heavy pool, or engines for long responses. " if thick else "")
        + (f"The figure begins {seconds(earlier)} before the step." if earlier > 0 else "")
    )
    return (
        f"<h4>Its {len(rows)} longest responses: where each ran, and why it moved</h4>"
        f'<p class="hint">{told}</p>{names}{lanes(rows, span, notes)}{_meanings(stays)}'
    )


def extent(detail: StepDetail) -> tuple[float, float]:
    """When the figure begins, and how many seconds it covers: a response that ends in the step may have begun
    before it."""
    first = min(detail.requests[0].start, detail.window.start)
    return first, max(max(request.attempts[-1].end for request in detail.requests) - first, 1e-9)


def most_moved(details: Sequence[StepDetail]) -> int | None:
    """Of these steps the one in which most of the longest responses went on elsewhere; of equals the one with
    the response that took longest. None without any."""
    if not details:
        return None

    def interest(detail: StepDetail) -> tuple[int, float]:
        longest = max((request.seconds for request in detail.requests), default=0.0)
        return sum(len(request.attempts) > 1 for request in detail.requests), longest

    return max(details, key=interest).window.step


def path(attempts: list[Attempt]) -> str:
    """Where a response ran, in words: "fast-0 → heavy-1 (long)"; each engine with why the one before it was
    left."""
    parts = [attempts[0].worker]
    for before, after in itertools.pairwise(attempts):
        why = f" ({before.left})" if before.left else ""
        parts.append(f"again{why}" if before.worker == after.worker else f"{after.worker}{why}")
    if len(parts) > _STAYS:
        parts = [*parts[: _STAYS // 2], "…", *parts[-(_STAYS // 2) :]]
    return " → ".join(parts)


def on_engine_for_long(attempt: Attempt) -> bool:
    """Whether a stay was on an engine for long responses."""
    return kind_of_engine(attempt.pool, attempt.for_long) != FAST


def _meanings(stays: list[Attempt]) -> str:
    """What the reasons that occur mean."""
    seen = {stay.left for stay in stays if stay.left}
    found = [(word, meaning) for word, meaning in REASONS.items() if word in seen]
    if not found:
        return ""
    told = "; ".join(f"<b>{escape(word)}</b>: {escape(meaning)}" for word, meaning in found)
    return f'<p class="hint">{told}.</p>'


def _bars(request: Request, first: float, span: float, colours: Mapping[str, int]) -> str:
    parts = [f'<rect class="lane" x="0" y="1" width="{SPAN}" height="{ROW - 2}"/>']
    for number, attempt in enumerate(request.attempts, 1):
        start, end = (attempt.start - first) / span, (attempt.end - first) / span
        how = REASONS.get(attempt.left, attempt.left) if attempt.finish == "abort" else attempt.finish
        title = (
            f"{request.name}, stay {number} on {attempt.worker}: "
            f"{attempt.seconds:.3g} s, {attempt.tokens} tokens, then: {how}"
        )
        inset = 2 if on_engine_for_long(attempt) else 6
        parts.append(
            f'<path class="f{colours[attempt.worker]}" d="{box(start, end, inset)}">'
            f"<title>{escape(title)}</title></path>"
        )
        if number < len(request.attempts):
            parts.append(f'<path class="left" d="M{end * SPAN:.1f} 1v{ROW - 2}"/>')
    return "".join(parts)
