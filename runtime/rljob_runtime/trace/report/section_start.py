"""The report on starting: what each worker did until it was ready.

Pure: an analysis in, markup out.
"""

from html import escape

from rljob_runtime.trace.analyse.analysis import Analysis
from rljob_runtime.trace.analyse.worker_starts import BESIDE, IN_CORE, LEAST, PARTS, WorkerStart
from rljob_runtime.trace.report.markup import bar, legend, seconds, table

_COLOURS = {
    "check": "4", "ray": "0", "model": "2", "process": "7", "imports": "4", "fetch": "1", "join": "3",
    "core": "0", "boot": "7", "device": "3", "load": "2", "profile": "5", "graphs": "6", "prepare": "1",
    "compile": "5",
}  # fmt: skip
"""Colour class of each part."""
_WORKERS = 64
"""In the table, at most: those that took longest."""
_REST = "between these"


def starting(analysis: Analysis) -> str:
    """The section "Where did the time of the start go?"; empty for a run that did not record it."""
    starts = list(analysis.worker_starts.newest.values())
    if not starts:
        return ""
    longest = sorted(starts, key=lambda each: -each.seconds)[:_WORKERS]
    names = [name for name in PARTS if any(each.by_part.get(name, 0.0) >= LEAST for each in longest)]
    rows = [_row(each, names) for each in sorted(longest, key=_place)]
    said = analysis.worker_starts.ready
    told = f"<p>{escape(said[:1].upper() + said[1:])}.</p>" if said else ""
    heads = ["worker", "until it was ready", "share of that time", *names, _REST]
    listed = [(f"{name}: {PARTS[name]}", _COLOURS[name]) for name in names] + [(_REST, "wait")]
    return told + legend(listed) + table(heads, rows, numbers=(1, *range(3, 4 + len(names))))


def _place(start: WorkerStart) -> tuple[bool, bool, str]:
    return start.pool != "driver", start.pool != "trainer", start.worker


def _row(start: WorkerStart, names: list[str]) -> list[str]:
    found = start.by_part
    whole = max(start.seconds, 1e-9)
    inside = sum(found.get(name, 0.0) for name in IN_CORE) if "core" in found else 0.0
    # What the core consists of is drawn in its place, and nothing that takes place beside others.
    drawn = {**found, "core": found["core"] - inside} if "core" in found else dict(found)
    drawn.pop(BESIDE, None)
    rest = start.between
    parts = [(name, seconds_ / whole, _COLOURS[name]) for name, seconds_ in drawn.items()]
    return [
        escape(start.worker), seconds(start.seconds), bar([*parts, (_REST, rest / whole, "wait")]),
        *(seconds(found[name]) if name in found else "–" for name in names), seconds(rest),
    ]  # fmt: skip
