"""The report's look into single steps: time line of every worker, longest requests, distributions.

Pure: a `StepDetail` in, markup out, of bounded size.
"""

from collections.abc import Mapping, Sequence
from html import escape

from rljob_runtime.step_numbers import step_number
from rljob_runtime.trace.analyse.step_detail import StepDetail, TimeLine
from rljob_runtime.trace.analyse.what_if import DONE
from rljob_runtime.trace.report.charts import curve_chart
from rljob_runtime.trace.report.lanes import ROW, SPAN, area, box, lanes
from rljob_runtime.trace.report.markup import figure, grid, legend, percent, seconds
from rljob_runtime.trace.report.waterfall import extent, waterfall

COLOURS = {
    "generate": 0, "evaluate": 0, "forward": 1, "backward": 2, "optimizer": 3, "reference_forward": 4,
    "weight_publish": 5, "weight_write": 4, "weight_fetch": 4, "weight_stage": 4, "weight_pause": 5,
    "weight_load": 5, "weight_resume": 5, "weight_swap": 5, "checkpoint": 6, "reward": 7, "get": 4,
    "put": 4, "prompt_fetch": 4, "group_assembly": 4, "share": 4, "gather": 4, "reduce": 4,
}  # fmt: skip
"""Colour class of each event; what waits ("idle", "queue_wait" and the like) is hatched."""

_FINISHED = {"stop": 0, "length": 5, "abort": 2}
"""Colour class of a request by how it left the engine."""
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
        f"step {step_number(detail.window.step)}{escape(notes.get(detail.window.step, ''))}</option>"
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
            curve_chart([("all", detail.finished), *detail.finished_by_worker.items()], "s", linear=True),
            "and by the engine on which they ended",
        ),
        figure("Lengths of its responses", curve_chart([("", detail.lengths)], "tokens")),
        figure("Durations of its requests, by engine", curve_chart(by_worker, "s")),
    )
    return (
        f'<section class="step" data-step="{window.step}"{"" if shown else " hidden"}>'
        f"<h4>Step {step_number(window.step)}: what each worker did in its {window.seconds:.2f} s</h4>"
        + lanes(lines, window.seconds)
        + more
        + f'<p class="hint">{escape(done_sentence(detail))}</p>'
        + waterfall(detail)
        + _worker_timeline(detail)
        + grid(figures)
        + "</section>"
    )


def done_sentence(detail: StepDetail) -> str:
    """The step's tail in a sentence; empty where no response ended in it."""
    if detail.done is None:
        return ""
    share = detail.done / max(detail.responses_seconds, 1e-9)
    return (
        f"{percent(DONE)} of the {detail.responses:,} responses that ended in this step were done in "
        f"{percent(share)} of the time that all of them took ({seconds(detail.responses_seconds)})."
    )


def _worker_timeline(detail: StepDetail) -> str:
    """The requests of the engine on which the step's last response ended, as they lay beside each other."""
    found = detail.last_worker
    if found is None:
        return ""
    first, span = extent(detail)
    rows = []
    for number, stays in enumerate(found.rows, 1):
        parts = [f'<rect class="lane" x="0" y="1" width="{SPAN}" height="{ROW - 2}"/>']
        for stay in stays:
            took = seconds(stay.end - stay.start)
            title = f"{stay.name}: {stay.tokens:,} tokens in {took}, then: {stay.finish}"
            path = box((stay.start - first) / span, (stay.end - first) / span)
            colour = _FINISHED.get(stay.finish, 4)
            parts.append(f'<path class="f{colour}" d="{path}"><title>{escape(title)}</title></path>')
        rows.append((str(number), "".join(parts)))
    more = f" {found.left_out:,} shorter ones are not shown." if found.left_out else ""
    names = legend((name, str(colour)) for name, colour in _FINISHED.items())
    return (
        f"<h4>Requests of {escape(found.worker)}, where the last response ended</h4>"
        f'<p class="hint">Each bar is a request; those in one row came one after the other.{more}</p>'
        f"{names}{lanes(rows, span)}"
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
