"""The report's look into single steps: time line of every worker, longest requests, distributions.

Pure: a `StepDetail` in, markup out, of bounded size.
"""

from collections.abc import Mapping, Sequence
from html import escape

from rljob_runtime.trace.analyse.requests import Request
from rljob_runtime.trace.analyse.step_detail import BINS, StepDetail, TimeLine
from rljob_runtime.trace.report.charts import curve_chart
from rljob_runtime.trace.report.markup import figure, grid, legend

COLOURS = {
    "generate": 0, "forward": 1, "backward": 2, "optimizer": 3, "reference_forward": 4,
    "weight_publish": 5, "weight_fetch": 4, "weight_pause": 5, "weight_load": 5, "weight_resume": 5,
    "checkpoint": 6, "reward": 7, "get": 4, "put": 4, "prompt_fetch": 4, "group_assembly": 4,
}  # fmt: skip
"""Colour class of each event; what waits ("idle", "admission_wait", "queue_wait") is hatched."""

_LEGEND = (
    ("generate", "0"), ("forward", "1"), ("backward", "2"), ("optimizer", "3"),
    ("reference, fetch, hand on", "4"), ("weight update", "5"), ("checkpoint", "6"), ("reward", "7"),
    ("waiting", "wait"),
)  # fmt: skip
_SPAN = 1000
"""Width of a time line in units of its drawing; `page.js` has the same number."""
_ROW = 22
"""Height of a row, in pixels."""


def step_panels(details: Sequence[StepDetail], notes: Mapping[int, str], shown: int | None) -> str:
    """The chooser and one panel per step; `notes` name what is special about a step."""
    if not details:
        return ""
    options = "".join(
        f'<option value="{detail.window.step}"{" selected" if detail.window.step == shown else ""}>'
        f"step {detail.window.step}{escape(notes.get(detail.window.step, ''))}</option>"
        for detail in details
    )
    return (
        '<div class="chooser"><button type="button" data-go="-1">◀</button>'
        f'<select id="step" aria-label="step">{options}</select>'
        '<button type="button" data-go="1">▶</button>'
        '<span class="hint">wheel: zoom · drag: move · double click: whole step</span></div>'
        + legend(_LEGEND)
        + "".join(_panel(detail, detail.window.step == shown) for detail in details)
    )


def _panel(detail: StepDetail, shown: bool) -> str:
    window = detail.window
    lines = [(line.worker, _time_line(line, window.seconds)) for line in detail.time_lines]
    more = f"<p class=hint>{detail.left_out} more workers are not shown.</p>" if detail.left_out else ""
    by_worker = [("all", detail.seconds), *detail.by_worker.items()]
    figures = (
        figure(
            "Responses that had ended, over the step's time",
            curve_chart([("", detail.finished)], "s", linear=True),
        ),
        figure("Lengths of its responses", curve_chart([("", detail.lengths)], "tokens")),
        figure("Durations of its requests, by engine", curve_chart(by_worker, "s")),
    )
    return (
        f'<section class="step" data-step="{window.step}"{"" if shown else " hidden"}>'
        f"<h4>Step {window.step}: what each worker did in its {window.seconds:.2f} s</h4>"
        + _lanes(lines, window.seconds)
        + more
        + _waterfall(detail)
        + grid(figures)
        + "</section>"
    )


def _lanes(rows: Sequence[tuple[str, str]], seconds: float) -> str:
    """Labelled rows over a common, zoomable time axis."""
    if not rows:
        return "<p class=hint>No events.</p>"
    height = _ROW * len(rows)
    labels = "".join(f"<span>{escape(label)}</span>" for label, _ in rows)
    drawn = "".join(
        f'<g transform="translate(0 {index * _ROW})">{row}</g>' for index, (_, row) in enumerate(rows)
    )
    return (
        f'<div class="lanes" data-seconds="{seconds:.4f}"><div class="labels">{labels}</div>'
        f'<div class="plot"><svg viewBox="0 0 {_SPAN} {height}" style="height:{height}px" '
        f'preserveAspectRatio="none">{drawn}</svg>'
        '<div class="axis"></div></div></div>'
    )


def _time_line(line: TimeLine, seconds: float) -> str:
    parts = [f'<rect class="lane" x="0" y="1" width="{_SPAN}" height="{_ROW - 2}"/>']
    most = max(line.running, default=0.0)
    if most > 0:
        title = f"generate: up to {most:.1f} requests at a time"
        parts.append(f'<path class="f0" d="{_area(line.running, most)}"><title>{title}</title></path>')
    by_event: dict[str, list[tuple[float, float]]] = {}
    for event, start, end in line.segments:
        by_event.setdefault(event, []).append((start, end))
    # Waiting first, so that work that goes on beside it is drawn over it.
    for event in sorted(by_event, key=lambda name: name in COLOURS):
        spans = by_event[event]
        colour = f"f{COLOURS[event]}" if event in COLOURS else "wait"
        path = "".join(_box(start, end) for start, end in spans)
        total = sum(end - start for start, end in spans) * seconds
        parts.append(
            f'<path class="{colour}" d="{path}"><title>{escape(event)}: {total:.3g} s</title></path>'
        )
    return "".join(parts)


def _box(start: float, end: float) -> str:
    # Half a unit at least, so that a short event can still be seen.
    width = max((end - start) * _SPAN, 0.5)
    return f"M{start * _SPAN:.1f} 3h{width:.1f}v{_ROW - 6}h-{width:.1f}z"


def _area(running: Sequence[float], most: float) -> str:
    width, floor, height = _SPAN / BINS, _ROW - 1, _ROW - 3
    points = "".join(
        f"V{floor - value / most * height:.1f}H{(index + 1) * width:.1f}"
        for index, value in enumerate(running)
    )
    return f"M0 {floor}{points}V{floor}z"


def _waterfall(detail: StepDetail) -> str:
    if not detail.requests:
        return ""
    window = detail.window
    # A request that ends in this step may have begun before it.
    first = min(detail.requests[0].start, window.start)
    span = max(max(request.attempts[-1].end for request in detail.requests) - first, 1e-9)
    workers = sorted({attempt.worker for request in detail.requests for attempt in request.attempts})
    colours = {worker: index % 8 for index, worker in enumerate(workers)}
    rows = [(request.name, _bars(request, first, span, colours)) for request in detail.requests]
    names = legend((worker, str(colours[worker])) for worker in workers)
    return (
        f"<details><summary>The {len(rows)} longest requests that ended in this step, by engine</summary>"
        f"{names}{_lanes(rows, span)}</details>"
    )


def _bars(request: Request, first: float, span: float, colours: Mapping[str, int]) -> str:
    parts = [f'<rect class="lane" x="0" y="1" width="{_SPAN}" height="{_ROW - 2}"/>']
    for number, attempt in enumerate(request.attempts, 1):
        start, end = (attempt.start - first) / span, (attempt.end - first) / span
        title = (
            f"{request.name}, attempt {number} on {attempt.worker}: "
            f"{attempt.seconds:.3g} s, {attempt.tokens} tokens, {attempt.finish}"
        )
        colour = colours[attempt.worker]
        parts.append(f'<path class="f{colour}" d="{_box(start, end)}"><title>{escape(title)}</title></path>')
    return "".join(parts)
