"""The report on requests: distributions, what was slow, engines side by side.

Pure: an analysis in, markup out.
"""

from collections import Counter
from collections.abc import Sequence
from html import escape

from rljob_runtime.step_numbers import step_number
from rljob_runtime.trace.analyse.analysis import Analysis
from rljob_runtime.trace.analyse.request_phases import PHASES
from rljob_runtime.trace.analyse.requests import Request
from rljob_runtime.trace.report.charts import (
    Series,
    bar_chart,
    curve_chart,
    line_chart,
    stacked_chart,
    step_axis,
)
from rljob_runtime.trace.report.markup import bar, figure, grid, legend, number, percent, seconds, table
from rljob_runtime.trace.report.section_inside import COLOURS, inside
from rljob_runtime.trace.report.section_saved import saved
from rljob_runtime.trace.report.waterfall import path

_LAYERS = 6
"""Layers of a chart of shares, the last of which may be all others."""
_STAGE_COLOURS = {"reward": "7", "group_assembly": "3", "put": "3", "queue_wait": "8"}
"""What a group goes through after its responses, and the colour class of each."""


def long_tail(analysis: Analysis) -> str:
    """The section "Which requests were the long tail?"."""
    book = analysis.requests
    if not book.seconds.count:
        return "<p>No request was recorded.</p>"
    details = analysis.details
    few = len(details) <= 5
    picked = details if few else [details[round(index * (len(details) - 1) / 4)] for index in range(5)]
    names = [f"step {step_number(detail.window.step)}" for detail in picked]
    lengths = list(zip(names, (detail.lengths for detail in picked), strict=True))
    durations = list(zip(names, (detail.seconds for detail in picked), strict=True))
    figures = [
        figure("Lengths of responses, cumulative", curve_chart(lengths, "tokens")),
        figure("Durations of requests, cumulative", curve_chart(durations, "s")),
        figure(
            "Durations by engine, whole run",
            curve_chart([(worker, book.by_worker[worker].curve(60)) for worker in _spread(analysis)], "s"),
        ),
        figure("Durations of requests", _quantiles(analysis, "seconds", "s")),
        figure("Lengths of responses", _quantiles(analysis, "lengths", "tokens")),
        figure("How responses ended", _shares(analysis, "finishes")),
        *_attempt_figures(analysis),
    ]
    return (
        grid(figures) + saved(analysis) + inside(analysis) + "<h3>Slowest requests</h3>"
        '<p class="hint">A request is named by the number of its prompt, in order of dispatch, and its own '
        "number in the prompt's group. Its time includes what its group went through afterwards.</p>"
        + _slowest_table(book.slowest())
        + _worker_table(analysis)
    )


def tail_sentence(analysis: Analysis) -> str:
    """The long tail in a sentence."""
    book = analysis.requests
    if not book.seconds.count:
        return ""
    half, most, worst = (book.seconds.quantile(share) for share in (0.5, 0.99, 1.0))
    return (
        f"Half of the {book.seconds.count:,} requests took at most {seconds(half)}; the slowest 1 % took "
        f"more than {seconds(most)} ({most / max(half, 1e-9):.1f} x), the slowest {seconds(worst)}. "
        f"Responses are {number(book.lengths.mean)} tokens long on average, "
        f"{number(book.lengths.largest)} at most."
    )


def _quantiles(analysis: Analysis, what: str, unit: str) -> str:
    known = [window.step for window in analysis.windows if window.step in analysis.requests.by_step]
    sketches = [getattr(analysis.requests.by_step[step], what) for step in known]
    lines = [
        Series(label, [sketch.quantile(share) for sketch in sketches], colour)
        for colour, (label, share) in enumerate((("median", 0.5), ("p90", 0.9), ("p99", 0.99)))
    ]
    lines.append(Series("longest", [sketch.largest for sketch in sketches], 5, faint=True))
    lines.append(Series("shortest", [sketch.smallest for sketch in sketches], 4, faint=True))
    return line_chart(step_axis(known), lines, unit=unit, zero=True)


def _shares(analysis: Analysis, what: str) -> str:
    """Shares of each step's requests by a counter of theirs."""
    known = [window.step for window in analysis.windows if window.step in analysis.requests.by_step]
    counters: list[Counter[str | int]] = [getattr(analysis.requests.by_step[step], what) for step in known]
    # Padded, so that numbers of attempts stand in their order.
    names = sorted({name for counter in counters for name in counter}, key=lambda name: f"{name:>4}")
    shown, rest = (names, []) if len(names) <= _LAYERS else (names[: _LAYERS - 1], names[_LAYERS - 1 :])
    groups = [(str(name), [name]) for name in shown] + ([("others", rest)] if rest else [])
    layers = [
        Series(
            label,
            [sum(counter[name] for name in each) / max(counter.total(), 1) * 100 for counter in counters],
            colour,
        )
        for colour, (label, each) in enumerate(groups)
    ]
    return stacked_chart(step_axis(known), layers, top=100)


def _attempt_figures(analysis: Analysis) -> list[str]:
    """How often responses were taken out of an engine and went on, and what that took; nothing if never."""
    book = analysis.requests
    if set(book.by_attempts) <= {1}:
        return []
    return [
        figure("Attempts per response", _shares(analysis, "attempts"), "stays on an engine until complete"),
        figure(
            "Mean duration of the first attempt, the second, …",
            bar_chart(
                [(str(n), book.of_attempt[n].mean) for n in sorted(book.of_attempt)[:8]], "attempt", "s"
            ),
        ),
        figure(
            "Mean duration of responses, by attempts",
            bar_chart(
                [(str(n), book.by_attempts[n].mean) for n in sorted(book.by_attempts)[:8]], "attempts", "s"
            ),
        ),
    ]


def _slowest_table(requests: Sequence[Request]) -> str:
    rows = []
    longest = max((_life(request) for request in requests), default=1.0)
    for request in requests[:20]:
        between = max(0.0, request.seconds - request.generating)
        phases = request.phases
        parts = [(name, phases.get(name, 0.0), COLOURS[name]) for name in PHASES]
        # What is not told in phases: stays that ended with their engine, and the way to it and back.
        parts[0:0] = [("generating", max(0.0, request.generating - sum(phases.values())), "0")]
        parts.append(("between attempts", between, "wait"))
        parts += [(stage, request.stages.get(stage, 0.0), colour) for stage, colour in _STAGE_COLOURS.items()]
        rows.append(
            [
                escape(request.name), str(step_number(request.step)),
                escape(path(request.attempts)),
                f"{request.length:,}", escape(request.finish), seconds(request.seconds),
                f"{request.length / request.generating:,.1f}" if request.generating else "–",
                bar([(name, value / max(longest, 1e-9), colour) for name, value, colour in parts]),
            ]
        )  # fmt: skip
    heads = ["request", "step", "engine", "tokens", "ended by", "duration", "tokens/s", "its time"]
    names = [("generating", "0"), *COLOURS.items(), ("between attempts", "wait"), *_STAGE_COLOURS.items()]
    return legend(names) + table(heads, rows, numbers=(1, 3, 5, 6))


def _life(request: Request) -> float:
    return request.seconds + sum(request.stages.values())


def _worker_table(analysis: Analysis) -> str:
    rows = []
    for pool in analysis.with_role("engine"):
        for worker in sorted(pool.workers, key=lambda worker: worker.worker)[:64]:
            split = worker.over(analysis.windows)
            total = max(sum(split.values()), 1e-9)
            spread = analysis.requests.by_worker.get(worker.worker)
            rows.append(
                [
                    escape(worker.worker), escape(worker.host), f"{spread.count if spread else 0:,}",
                    *(seconds(spread.quantile(share)) if spread else "–" for share in (0.5, 0.99)),
                    *(percent(split[kind] / total) for kind in ("work", "sync", "idle")),
                ]
            )  # fmt: skip
    heads = ["engine", "host", "requests", "median", "p99", "generating", "weight update", "idle"]
    return "<h3>Engines</h3>" + table(heads, rows, numbers=range(2, 8))


def _spread(analysis: Analysis) -> list[str]:
    """At most 8 engines: all, or the slowest and fastest by their means."""
    ordered = sorted(analysis.requests.by_worker, key=lambda worker: analysis.requests.by_worker[worker].mean)
    return ordered if len(ordered) <= 8 else ordered[:4] + ordered[-4:]
