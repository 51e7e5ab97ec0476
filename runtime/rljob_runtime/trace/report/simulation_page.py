"""The page of `rljob simulate --html`: what each engine ran over time under each routing policy.

Pure but for the style and script of the page; of bounded size.
"""

from collections.abc import Sequence
from html import escape
from itertools import islice

from rljob_runtime.routing.requests import EngineShape
from rljob_runtime.simulate.compare import Compared
from rljob_runtime.trace.forecast.text import SECONDS_OF, comparison_rows, engine_names, means
from rljob_runtime.trace.report.document import document
from rljob_runtime.trace.report.lanes import ROW, SPAN, area, lanes
from rljob_runtime.trace.report.markup import legend, percent, seconds, table

_PARTS = 400
"""Parts of a row."""
_MOST_ENGINES = 40
"""Rows of a policy, beside the trainer's."""
_COLOURS = {"fast": 0, "heavy": 2}
"""Colour class of each pool, as in the report."""


def simulation_page(
    name: str,
    heading: str,
    limits: Sequence[str],
    assumed: str,
    found: Sequence[Compared],
    own: str,
    shapes: Sequence[EngineShape],
) -> str:
    """The page as HTML: `name` is the job's, `heading`, each of `limits` (what the figures leave out) and
    `assumed` are sentences, `own` is the job's own policy, `shapes` are the engines. Every figure is of the
    first seed, and all have one scale of time."""
    span = max(each.outcomes[0].wall for each in found)
    heads, *rows = comparison_rows(found, own)
    cells = [[escape(cell) for cell in row] for row in rows]
    pools = sorted({shape.pool for shape in shapes})
    colours = [(f"requests of the {pool} pool", str(_COLOURS[pool])) for pool in pools]
    # The job's own first, then the fastest.
    ordered = sorted(found, key=lambda each: (each.policy != own, -each.outcomes[0].samples_per_second))
    return document(
        f"{name} – rljob simulate",
        f'<h1>{escape(name)}</h1><p class="soft">{escape(heading)}</p>'
        + table(heads, cells, numbers=range(1, len(heads)))
        + '<p class="hint">* the job\'s policy; mean and standard deviation over the seeds. '
        + f"{SECONDS_OF}</p>"
        + "".join(f"<p>{escape(each)}</p>" for each in limits)
        + '<h2>What each engine ran</h2><p class="hint">First seed. A full row is an engine at its limit of '
        "requests; lines in the trainer's row are the ends of training steps. wheel: zoom · drag: move · "
        "double click: all</p>"
        + legend(colours)
        + "".join(_policy(each, own, shapes, span) for each in ordered)
        + f'<h2>What is assumed</h2><p class="soft">{escape(assumed)}</p>',
    )


def _policy(compared: Compared, own: str, shapes: Sequence[EngineShape], span: float) -> str:
    outcome = compared.outcomes[0]
    names = engine_names([shape.pool for shape in shapes])
    rows = [("trainer", _trainer(outcome.steps, span))]
    rows += [
        (name, _engine(means(line, outcome.wall, span, _PARTS), shape))
        for name, line, shape in islice(zip(names, outcome.lines, shapes, strict=True), _MOST_ENGINES)
    ]
    left_out = len(shapes) - _MOST_ENGINES
    more = f"<p class=hint>{left_out} more engines are not shown.</p>" if left_out > 0 else ""
    mark = " *" if compared.policy == own else ""
    return (
        f"<h3>{escape(compared.policy)}{mark}: {outcome.samples_per_second:,.3g} samples/s, engines idle "
        f"{percent(outcome.idle)}, done after {seconds(outcome.wall)}</h3>{lanes(rows, span)}{more}"
    )


def _engine(running: Sequence[float], shape: EngineShape) -> str:
    title = f"up to {max(running):,.1f} requests at a time, of {shape.limit}"
    return (
        f'{_row()}<path class="f{_COLOURS[shape.pool]}" d="{area(running, shape.limit)}">'
        f"<title>{title}</title></path>"
    )


def _trainer(steps: Sequence[float], span: float) -> str:
    ends = "".join(f"M{end / span * SPAN:.1f} 1v{ROW - 2}" for end in steps)
    return f'{_row()}<path class="left" d="{ends}"/>'


def _row() -> str:
    return f'<rect class="lane" x="0" y="1" width="{SPAN}" height="{ROW - 2}"/>'
