"""The report's look into single steps: time line of every worker, longest requests, distributions.

Pure: a `StepDetail` in, markup out, of bounded size.
"""

from collections.abc import Mapping, Sequence
from html import escape

from rljob_runtime.trace.analyse.step_detail import StepDetail, TimeLine
from rljob_runtime.trace.report.charts import curve_chart
from rljob_runtime.trace.report.lanes import ROW, SPAN, area, box, lanes
from rljob_runtime.trace.report.markup import figure, grid, legend
from rljob_runtime.trace.report.waterfall import waterfall

COLOURS = {
    "generate": 0, "evaluate": 0, "forward": 1, "backward": 2, "optimizer": 3, "reference_forward": 4,
    "weight_publish": 5, "weight_fetch": 4, "weight_pause": 5, "weight_load": 5, "weight_resume": 5,
    "checkpoint": 6, "reward": 7, "get": 4, "put": 4, "prompt_fetch": 4, "group_assembly": 4,
    "share": 4, "gather": 4, "reduce": 4,
}  # fmt: skip
"""Colour class of each event; what waits ("idle", "admission_wait", "queue_wait") is hatched."""

_LEGEND = (
    ("generate", "0"), ("forward", "1"), ("backward", "2"), ("optimizer", "3"),
    ("reference, fetch, hand on", "4"), ("weight update", "5"), ("checkpoint", "6"), ("reward", "7"),
    ("waiting", "wait"),
)  # fmt: skip


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
        + lanes(lines, window.seconds)
        + more
        + waterfall(detail)
        + grid(figures)
        + "</section>"
    )


def _time_line(line: TimeLine, seconds: float) -> str:
    parts = [f'<rect class="lane" x="0" y="1" width="{SPAN}" height="{ROW - 2}"/>']
    most = max(line.running, default=0.0)
    if most > 0:
        title = f"generate: up to {most:.1f} requests at a time"
        parts.append(f'<path class="f0" d="{area(line.running, most)}"><title>{title}</title></path>')
    by_event: dict[str, list[tuple[float, float]]] = {}
    for event, start, end in line.segments:
        by_event.setdefault(event, []).append((start, end))
    # Waiting first, so that work that goes on beside it is drawn over it.
    for event in sorted(by_event, key=lambda name: name in COLOURS):
        spans = by_event[event]
        colour = f"f{COLOURS[event]}" if event in COLOURS else "wait"
        path = "".join(box(start, end) for start, end in spans)
        total = sum(end - start for start, end in spans) * seconds
        parts.append(
            f'<path class="{colour}" d="{path}"><title>{escape(event)}: {total:.3g} s</title></path>'
        )
    return "".join(parts)
