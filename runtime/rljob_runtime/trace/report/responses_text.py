"""`rljob trace responses`: the longest responses of a step as lines of a terminal, what the engines for long
responses did, what moved why, and what had been expected.

Guarantees: reads the run's folder and writes nothing; says what the report says, from the same figures.
"""

from pathlib import Path

from rljob_runtime.step_numbers import step_index, step_number
from rljob_runtime.trace.analyse.analysis import Analysis, analyse_run
from rljob_runtime.trace.analyse.requests import Attempt
from rljob_runtime.trace.analyse.step_detail import StepDetail
from rljob_runtime.trace.forecast.text import table
from rljob_runtime.trace.report.markup import number, percent, seconds
from rljob_runtime.trace.report.samples_text import in_words
from rljob_runtime.trace.report.section_predictions import calls_sentence, sentence
from rljob_runtime.trace.report.section_routing import NAMES, shares_by_kind, speed
from rljob_runtime.trace.report.waterfall import REASONS, extent, most_moved, on_engine_for_long, path

_WIDTH = 48
"""Cells of a line."""
_FAST, _LONG = "░", "█"
"""A stay on an engine, and on one of the heavy pool or for long responses."""
_MOVED = "┃"
"""Where a stay begins that is not the first."""
_MOST_MOVES = 20
"""Lines of the table of moves."""


class NoSuchStep(Exception):
    """The run has no such step, or nothing of it; the message says which there are."""


def responses_text(run: Path, step: int | None) -> str:
    """What is printed of the step of this number; None chooses one in which many responses moved. Raises
    `NoSuchStep`."""
    wanted = None if step is None else step_index(step)
    analysis = analyse_run(run, wanted)
    chosen = most_moved(analysis.details) if wanted is None else wanted
    detail = next((each for each in analysis.details if each.window.step == chosen), None)
    if detail is None:
        steps = [step_number(window.step) for window in analysis.windows]
        if step is None or not steps:
            damaged = f" that can be read: {analysis.left_out}" if analysis.left_out else ""
            raise NoSuchStep(f"{run} has no step{damaged}.")
        raise NoSuchStep(f"{run} has {in_words(steps, step)}, and not step {step}.")
    parts = [_lines(detail, bool(analysis.event_uses)), _kinds(analysis), _moves(analysis)]
    if analysis.predictions.count:
        parts.append(" ".join([sentence(analysis.predictions), calls_sentence(analysis.predictions.calls)]))
    if analysis.left_out:
        parts.append(f"{analysis.left_out}.")
    return "\n\n".join(part.rstrip() for part in parts if part)


def _lines(detail: StepDetail, recorded: bool) -> str:
    """`recorded`: whether the run has events at all."""
    window = detail.window
    heading = f"Step {step_number(window.step)}, {seconds(window.seconds)}"
    if not detail.requests:
        # Of a run whose events are damaged more is said at the end.
        why = "no response ended in it" if recorded else "no events: was training.profiling.events false?"
        return f"{heading}: {why}" + ("." if recorded else "")
    first, span = extent(detail)
    name = max(len(request.name) for request in detail.requests)
    lines = [
        f"{request.name:>{name}} {request.length:>8,} tokens │{_bar(request.attempts, first, span)}│ "
        f"{path(request.attempts)}"
        for request in detail.requests
    ]
    indent = " " * (name + 17)
    scale = f"{'0 s':<{_WIDTH // 2}}{seconds(span):>{_WIDTH - _WIDTH // 2}}"
    earlier = window.start - first
    begin = f"; 0 s is {seconds(earlier)} before the step" if earlier > 0 else ""
    return "\n".join(
        [
            f"{heading}: its {len(lines)} longest responses",
            *lines, f"{indent}{scale}",
            f"{_FAST} on an engine, {_LONG} of the heavy pool or for long responses, {_MOVED} went on there"
            f"{begin}",
        ]
    )  # fmt: skip


def _bar(attempts: list[Attempt], first: float, span: float) -> str:
    cells = [" "] * _WIDTH
    for place, attempt in enumerate(attempts):
        begin = min(_WIDTH - 1, int((attempt.start - first) / span * _WIDTH))
        # A stay is never so short that it is not seen.
        end = max(begin + 1, round((attempt.end - first) / span * _WIDTH))
        for cell in range(begin, min(_WIDTH, end)):
            cells[cell] = _LONG if on_engine_for_long(attempt) else _FAST
        if place:
            cells[begin] = _MOVED
    return "".join(cells)


def _kinds(analysis: Analysis) -> str:
    rows = [
        ["engines", "responses", "tokens", "of all", "median length", "tokens/s", "moved in", "out", "busy"]
    ]
    total = sum(share.tokens for share in analysis.scheduling.shares.values())
    rows += [
        [
            NAMES[kind], f"{share.lengths.count:,}", f"{share.tokens:,}",
            percent(share.tokens / max(total, 1)),
            number(share.lengths.quantile(0.5) if share.lengths.count else None), number(speed(share)),
            f"{share.moved_in:,}", f"{share.moved_out:,}", "–" if busy is None else percent(busy),
        ]
        for kind, share, busy in shares_by_kind(analysis)
    ]  # fmt: skip
    return table(rows) if len(rows) > 1 else ""


def _moves(analysis: Analysis) -> str:
    moves = sorted(analysis.scheduling.moves.items(), key=lambda item: -item[1].tokens.count)
    rows = [["moved because", "from", "to", "times", "median tokens", "median pause"]]
    rows += [
        [
            why or "not recorded", NAMES[source], NAMES[target], f"{found.tokens.count:,}",
            number(found.tokens.quantile(0.5)), seconds(found.pauses.quantile(0.5)),
        ]
        for (why, source, target), found in moves[:_MOST_MOVES]
    ]  # fmt: skip
    if len(rows) == 1:
        return "No response moved from one engine to another."
    words = dict.fromkeys(why for (why, _, _), _ in moves if why in REASONS and why)
    return "\n".join([table(rows), *(f"  {word}: {REASONS[word]}" for word in words)])
