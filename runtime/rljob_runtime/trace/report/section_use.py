"""The report on what workers used: processors, memory, accelerators, the engines' caches.

Pure: an analysis in, markup out.
"""

from collections.abc import Sequence
from html import escape

from rljob_runtime.trace.analyse.analysis import Analysis
from rljob_runtime.trace.analyse.worker_use import WorkerSamples, on_grid
from rljob_runtime.trace.report.charts import Series, line_chart
from rljob_runtime.trace.report.markup import figure, grid, number, percent, table

_LINES = 8
"""Workers in a chart: those that used most."""
_POINTS = 240
_CHARTS = (
    ("cpu", "Processors in use", "", 1.0),
    ("memory_mib", "Memory", "GiB", 1 / 1024),
    ("device_use", "Accelerators in use", "%", 100.0),
    ("device_memory_mib", "Memory of accelerators", "GiB", 1 / 1024),
    ("kv_use", "KV cache in use", "%", 100.0),
    ("running", "Requests that an engine computes", "", 1.0),
    ("waiting", "Requests that wait in an engine", "", 1.0),
)
"""Value, title, unit, and its factor."""


def worker_use(analysis: Analysis) -> str:
    """The section "What did each worker use?"."""
    workers = sorted(analysis.use.workers.values(), key=lambda each: each.worker)
    if not workers:
        return "<p>No sample was taken: the run was shorter than one takes, or its events were off.</p>"
    first = min(each.samples[0].start for each in workers)
    last = max(each.samples[-1].end for each in workers)
    times = [first + (last - first) * (index + 0.5) / _POINTS for index in range(_POINTS)]
    figures = [figure(title, _chart(workers, times, name, unit, by)) for name, title, unit, by in _CHARTS]
    return f"<p>{escape(use_sentence(workers))}</p>" + grid(figures) + _table(workers)


def use_sentence(workers: Sequence[WorkerSamples]) -> str:
    """What stands out of the engines' caches and of the machines, in sentences."""
    parts = []
    asked, hits = (_sum(workers, name) for name in ("prefix_asked", "prefix_hits"))
    if asked:
        parts.append(f"{percent((hits or 0.0) / asked)} of the prompt tokens were found in a prefix cache.")
    preempted = _sum(workers, "preemptions")
    if preempted:
        parts.append(f"Engines dropped the KV cache of a request {preempted:,.0f} times for want of room.")
    elif preempted is not None:
        parts.append("No request lost its KV cache for want of room.")
    fullest = max(workers, key=lambda each: each.largest("kv_use") or 0.0)
    if most := fullest.largest("kv_use"):
        parts.append(f"The fullest KV cache was that of {fullest.worker}, with {percent(most)} in use.")
    busiest = max(workers, key=lambda each: each.mean("cpu") or 0.0)
    parts.append(f"{busiest.worker} used most processors: {number(busiest.mean('cpu'))} on average.")
    return " ".join(parts)


def _sum(workers: Sequence[WorkerSamples], name: str) -> float | None:
    told = [total for each in workers if (total := each.total(name)) is not None]
    return sum(told) if told else None


def _chart(workers: Sequence[WorkerSamples], times: Sequence[float], name: str, unit: str, by: float) -> str:
    told = [each for each in workers if each.largest(name) is not None]
    most = sorted(told, key=lambda each: each.mean(name) or 0.0, reverse=True)[:_LINES]
    lines = []
    for colour, each in enumerate(sorted(most, key=lambda each: each.worker)):
        values = [None if value is None else value * by for value in on_grid(each.samples, name, times)]
        lines.append(Series(each.worker, values, colour))
    minutes = [(time - times[0]) / 60 for time in times]
    return line_chart(minutes, lines, x_label="minutes", unit=unit, zero=True)


def _table(workers: Sequence[WorkerSamples]) -> str:
    rows = []
    for each in workers[:64]:
        share, cache, asked = each.mean("device_use"), each.largest("kv_use"), each.total("prefix_asked")
        hits = each.total("prefix_hits")
        rows.append(
            [
                escape(each.worker), number(each.mean("cpu")), _gib(each.largest("memory_mib")),
                "–" if share is None else percent(share), _gib(each.largest("device_memory_mib")),
                "–" if cache is None else percent(cache),
                percent((hits or 0.0) / asked) if asked else "–", number(each.total("preemptions")),
            ]
        )  # fmt: skip
    heads = [
        "worker", "processors, mean", "memory, most", "accelerators, mean", "their memory, most",
        "KV cache, most", "prefix hits", "pre-emptions",
    ]  # fmt: skip
    return table(heads, rows, numbers=range(1, 8))


def _gib(mib: float | None) -> str:
    return "–" if mib is None else f"{mib / 1024:.2f} GiB"
