"""The report on time: pools, events, steps.

Pure: an analysis in, markup out.
"""

from collections.abc import Mapping
from html import escape

from rljob_runtime.step_numbers import step_number
from rljob_runtime.trace.analyse.analysis import Analysis
from rljob_runtime.trace.analyse.usage import KINDS, PoolUse
from rljob_runtime.trace.analyse.windows import Anomaly
from rljob_runtime.trace.record.event_log import STATES
from rljob_runtime.trace.report.charts import Mark, Series, line_chart, stacked_chart, step_axis
from rljob_runtime.trace.report.markup import bar, figure, grid, legend, percent, seconds, table
from rljob_runtime.trace.report.section_learning import column
from rljob_runtime.trace.report.section_steps import step_panels
from rljob_runtime.trace.report.waterfall import most_moved

_KINDS = {
    "work": ("generating or training", "0"),
    "sync": ("weight update", "5"),
    "save": ("checkpoint", "6"),
    "move": ("fetching, handing on", "4"),
    "idle": ("idle", "wait"),
}
_IDLE_COLOUR = 8
"""A colour class of the charts that the page draws as waiting."""
_TRAINER_LAYERS = {
    "forward": 1, "backward": 2, "optimizer": 3, "reference_forward": 4, "gather": 0, "get": 7, "share": 7,
    "reduce": 7, "checkpoint": 6, "weight_publish": 5,
}  # fmt: skip
"""What a trainer does and its colour, which is that of the time lines and of the kinds above."""
_LIFE = ("generate", "reward", "group_assembly", "put", "queue_wait")
"""What a sample goes through, in this order."""


def time_spent(analysis: Analysis, notes: Mapping[int, str]) -> str:
    """The section "Where did the time go?": pools, events, steps that stand out, and single steps."""
    if not analysis.windows:
        return "<p>No step is complete.</p>"
    parts = [_pool_table(analysis), grid(_time_figures(analysis))]
    parts.append("<h3>Events</h3>" + _event_table(analysis))
    if analysis.anomalies:
        parts.append("<h3>Steps that stand out</h3>" + _anomaly_table(analysis))
    shown = analysis.anomalies[0].step if analysis.anomalies else None
    if shown not in [detail.window.step for detail in analysis.details]:
        shown = most_moved(analysis.details)
    panels = step_panels(analysis.details, notes, shown)
    parts.append(f'<h3 id="steps">Single steps</h3>{panels}' if panels else "")
    return "".join(parts)


def _pool_table(analysis: Analysis) -> str:
    rows = []
    for pool in analysis.pools:
        if pool.role == "other":
            continue
        parts = [(_KINDS[kind][0], pool.overall[kind], _KINDS[kind][1]) for kind in KINDS]
        rows.append(
            [
                escape(pool.pool), str(len(pool.workers)), bar(parts),
                *(percent(pool.overall[kind]) for kind in KINDS), _in_parallel(analysis, pool),
            ]
        )  # fmt: skip
    heads = [
        "pool",
        "workers",
        "share of its time",
        *(_KINDS[kind][0] for kind in KINDS),
        "requests at a time",
    ]
    return legend(_KINDS.values()) + table(heads, rows, numbers=(1, *range(3, 4 + len(KINDS))))


def _in_parallel(analysis: Analysis, pool: PoolUse) -> str:
    if (pool.pool, "generate") not in analysis.event_uses:
        return "–"
    return f"{analysis.at_a_time(pool, 'generate'):.1f}"


def _mark(odd: Anomaly) -> Mark:
    number = step_number(odd.step)
    return Mark(number, f"step {number}: {seconds(odd.seconds)}")


def _time_figures(analysis: Analysis) -> list[str]:
    steps = step_axis(window.step for window in analysis.windows)
    marks = [_mark(odd) for odd in analysis.anomalies[:40]]
    duration = [window.seconds for window in analysis.windows]
    speed = column(analysis, "tokens_per_second")
    figures = [
        figure(
            "Time per step", line_chart(steps, [Series("step", duration)], unit="s", marks=marks, zero=True)
        ),
        figure(
            "Tokens per second",
            line_chart(
                step_axis(row["step"] for row in analysis.metrics.rows), [Series("tokens", speed)], zero=True
            ),
        ),
    ]
    for pool in analysis.pools:
        if pool.role == "engine":
            layers = [
                Series(_KINDS[kind][0], [share[kind] * 100 for share in pool.by_step], _colour(kind))
                for kind in KINDS
                if kind == "idle" or pool.overall[kind]
            ]
            figures.append(figure(f"Time of pool {pool.pool}", stacked_chart(steps, layers, top=100)))
        elif pool.role == "trainer":
            figures.append(
                figure(
                    f"Time of pool {pool.pool}", stacked_chart(steps, trainer_layers(analysis, pool), top=100)
                )
            )
    figures += _pass_figures(analysis)
    life = _life_layers(analysis)
    if life:
        figures.append(
            figure("Life of a sample", stacked_chart(steps, life, unit="s"), "mean seconds of each stage")
        )
    return figures


_PASSES = {
    "seconds": "slowest rank", "expected_seconds": "as expected", "compile_seconds": "compiling",
    "imbalance": "by the mean rank",
}  # fmt: skip
"""What is drawn of the metric `passes`, and how it is called."""


def _pass_figures(analysis: Analysis) -> list[str]:
    """How long the trainer's ranks took for their passes; nothing for runs that do not say so."""
    rows = [row.get("passes") for row in analysis.metrics.rows]
    passes = [row if isinstance(row, dict) else {} for row in rows]
    if not any(passes):
        return []
    steps = step_axis(row["step"] for row in analysis.metrics.rows)
    seconds_of, expected, compiling, imbalance = (
        Series(label, [v if isinstance(v := row.get(name), int | float) else None for row in passes], index)
        for index, (name, label) in enumerate(_PASSES.items())
    )
    return [
        figure(
            "Forward and backward passes of the slowest rank",
            line_chart(steps, [seconds_of, expected, compiling], unit="s", zero=True),
            "as measured, and as the cost model had it before the step; time in which torch compiled",
        ),
        figure("Slowest rank of the trainer", line_chart(steps, [imbalance], unit="x the mean rank")),
    ]


def _colour(kind: str) -> int:
    return _IDLE_COLOUR if kind == "idle" else int(_KINDS[kind][1])


def trainer_layers(analysis: Analysis, pool: PoolUse) -> list[Series]:
    """Share of the trainer's time in each event, for each step, in per cent; together 100 at most."""
    shares = analysis.event_shares_by_step(pool)
    layers = []
    for event, colour in _TRAINER_LAYERS.items():
        if (pool.pool, event) in analysis.event_uses:
            layers.append(Series(event, [found.get(event, 0.0) * 100 for found in shares], colour))
    # All 0 where the pool did not exist.
    idle = [split["idle"] * 100 for split in pool.by_step]
    return [*layers, Series("idle", idle, _IDLE_COLOUR)]


def _life_layers(analysis: Analysis) -> list[Series]:
    layers = []
    for colour, event in zip((0, 7, 1, 3, 6), _LIFE, strict=True):
        uses = [use for (_, name), use in analysis.event_uses.items() if name == event]
        if uses:
            means = []
            for window in analysis.windows:
                count = sum(use.by_step.get(window.step, (0, 0.0))[0] for use in uses)
                means.append(sum(use.total_at(window.step) for use in uses) / count if count else 0.0)
            layers.append(Series(event, means, colour))
    return layers


def _event_table(analysis: Analysis) -> str:
    pools = {pool.pool: pool for pool in analysis.pools}
    shares = {name: analysis.event_shares(pool) for name, pool in pools.items() if pool.role != "other"}
    rows = []
    uses = [use for use in analysis.event_uses.values() if use.event not in STATES]
    for use in sorted(uses, key=lambda use: (use.pool, -use.seconds.total)):
        spread = use.seconds
        share = shares.get(use.pool, {}).get(use.event)
        # What may run many times at once: requests on an engine, and what groups go through on the driver.
        at_once = analysis.at_a_time(pools[use.pool], use.event)
        overlaps = use.event == "generate" or share is None
        rows.append(
            [
                escape(use.pool), escape(use.event), f"{spread.count:,}", seconds(spread.total),
                percent(share) if share is not None else "–", _at_once(at_once) if overlaps else "–",
                seconds(spread.mean), seconds(spread.quantile(0.5)), seconds(spread.quantile(0.95)),
                seconds(spread.largest),
            ]
        )  # fmt: skip
    heads = [
        "pool", "event", "count", "total", "of its workers' time", "at a time", "mean", "median", "p95",
        "longest",
    ]  # fmt: skip
    return table(heads, rows, numbers=range(2, 10))


def _at_once(count: float) -> str:
    """How many of an event run at a time, on average."""
    return f"{count:,.1f}" if count >= 0.05 else "&lt; 0.1"


def _anomaly_table(analysis: Analysis) -> str:
    detailed = {detail.window.step for detail in analysis.details}
    rows = []
    for odd in analysis.anomalies[:12]:
        step = (
            f'<a href="#steps" data-step="{odd.step}">{step_number(odd.step)}</a>'
            if odd.step in detailed
            else str(step_number(odd.step))
        )
        requests = analysis.requests.by_step.get(odd.step)
        longest = (
            f"{seconds(requests.seconds.largest)}: {escape(requests.slowest)}"
            if requests is not None
            else "–"
        )
        times = f"{odd.seconds / max(odd.median, 1e-9):.1f} x"
        rows.append([step, seconds(odd.seconds), seconds(odd.median), times, longest])
    return table(
        ["step", "took", "its neighbours", "times", "longest request that ended in it"],
        rows,
        numbers=(1, 2, 3),
        sentences=(4,),
    )
