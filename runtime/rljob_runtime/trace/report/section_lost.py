"""The report on what became of groups, responses and requests.

Pure: an analysis in, markup out.
"""

from html import escape

from rljob_runtime.groups.counts import GroupCounts, counts_in, lost
from rljob_runtime.trace.analyse.analysis import Analysis
from rljob_runtime.trace.report.html import table


def losses(analysis: Analysis) -> str:
    """Was anything lost?"""
    rows = analysis.metrics.rows
    counts = counts_in(rows[-1]) if rows else None
    if counts is None:
        return "<p>No counts were recorded.</p>"
    answer = lost(counts) or f"No: all {counts.accepted:,} groups that were completed were kept."
    return f"<p>{escape(answer)}</p>" + table(["what", "count", ""], _rows(counts), numbers=(1,))


def _rows(counts: GroupCounts) -> list[list[str]]:
    """Every count since the job began, and what it means."""
    found = [
        ("groups dispatched", counts.dispatched, "their responses were begun"),
        ("groups accepted", counts.accepted, "completed and put into the queue"),
        ("groups under way", counts.open, "at the last step that was recorded"),
        *((f"groups cancelled: {why}", n, "before they were complete; generated again")
          for why, n in sorted(counts.cancelled.items())),
        *((f"groups discarded: {why}", n, "after they were accepted; generated and trained again")
          for why, n in sorted(counts.discarded.items())),
        *((f"responses rejected: {why}", n, "they have no reward and are not trained")
          for why, n in sorted(counts.rejected.items())),
        ("requests moved", counts.moved_requests, "their engine was lost; they went on elsewhere"),
        ("requests continued", counts.continued_requests, "taken out with a part of their tokens, resumed"),
    ]  # fmt: skip
    return [[escape(what), f"{number:,}", escape(meaning)] for what, number, meaning in found]
