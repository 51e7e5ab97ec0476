"""The report on interruptions, and on what became of groups, responses and requests.

Pure: an analysis in, markup out.
"""

import datetime
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from rljob_runtime.groups.counts import GroupCounts, counts_in, in_words
from rljob_runtime.trace.analyse.analysis import Analysis
from rljob_runtime.trace.record.start_log import Start
from rljob_runtime.trace.record.unsent_log import KEPT, Unsent
from rljob_runtime.trace.report.markup import seconds, table

_HEADINGS = ["what", "count", ""]


def losses(analysis: Analysis, unsent: Sequence[Unsent] = ()) -> str:
    """The section "Was anything lost?": interruptions in sentences, and a table of counts. `unsent`: what
    loggers did not get, in order of time."""
    told = "".join(f"<li>{escape(interruption(start))}</li>" for start in analysis.interruptions)
    parts = [f"<ul>{told}</ul>" if told else "<p>Training was not interrupted.</p>"]
    loggers = _loggers(unsent)
    rows = analysis.metrics.rows
    # Each row has the counts since the job began: the last one has them all.
    counts = counts_in(rows[-1]) if rows else None
    if counts is None:
        told = table(_HEADINGS, loggers, numbers=(1,), sentences=(2,)) if loggers else ""
        return "".join([*parts, "<p>No counts of groups were recorded.</p>", told])
    answer = in_words(counts) or f"Nothing was lost: all {counts.accepted:,} complete groups were kept."
    parts.append(f"<p>{escape(answer)}</p>")
    parts.append(table(_HEADINGS, [*_rows(counts, rows[-1]), *loggers], numbers=(1,), sentences=(2,)))
    return "".join(parts)


def _loggers(unsent: Sequence[Unsent]) -> list[list[str]]:
    """A row for each logger that did not get all, with the newest reason."""
    points, why = Counter[str](), dict[str, str]()
    for each in unsent:
        points[each.logger] += each.points
        why[each.logger] = each.why
    return [
        [
            f"steps and evaluations not sent to {escape(name)}", f"{points[name]:,}",
            f"{escape(words)}; {KEPT}",
        ]
        for name, words in why.items()
    ]  # fmt: skip


def interruption(start: Start) -> str:
    """When what was interrupted, how long, and what is done again, in sentences."""
    began = f"{_moment(start.stopped)}: " if start.stopped is not None else ""
    why = f" ({start.why})" if start.why else ""
    took = f"{seconds(max(0.0, start.time - start.stopped))} later " if start.stopped is not None else ""
    what = {
        "new": "the run began",
        "resumed": "the run ended or was killed after this last step"
        if start.stopped is not None
        else "the run ended or was killed before its first step",
        "trainer lost": f"the trainer was lost{why}",
        "trainer resized": "the trainer was stopped, to go on with another number of workers",
    }[start.cause]
    source = f"from the checkpoint of step {start.step}" if start.step else "from the beginning"
    again = "no step was trained" if start.repeated == 0 else _steps(start.repeated)
    sentence = f"{began}{what}. Training went on {took}{source}; {again} again."
    return sentence[0].upper() + sentence[1:]


def _steps(count: int) -> str:
    return "1 step was trained" if count == 1 else f"{count:,} steps were trained"


def _moment(time: float) -> str:
    return f"{datetime.datetime.fromtimestamp(time, datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"


def _length_bias(row: Mapping[str, Any]) -> str | None:
    """That of over-sampling, in a line of metrics; None where it has none."""
    over_sampling = row.get("over_sampling")
    bias = over_sampling.get("length_bias") if isinstance(over_sampling, Mapping) else None
    return f"{bias:.2f}" if isinstance(bias, int | float) else None


def _rows(counts: GroupCounts, row: Mapping[str, Any]) -> list[list[str]]:
    """Every count since the job began, and what it means; of the line of metrics that has them."""
    bias = _length_bias(row)
    tokens = counts.fast_tokens + counts.heavy_tokens
    found = [
        ("groups dispatched", counts.dispatched, "their responses were begun"),
        ("groups accepted", counts.accepted, "completed and put into the queue"),
        ("groups under way", counts.open, "at the last step that was recorded"),
        ("groups refused: equal rewards", counts.refused - counts.refused_pass_rate,
         "complete, and not trained because all their rewards are equal"),
        ("groups refused: pass rate", counts.refused_pass_rate,
         "complete, and not trained because their pass rate is outside the filter's"),
        ("groups of equal rewards", counts.equal_rewards, "accepted all the same; every advantage is 0"),
        *([("groups of other pass rates", counts.outside_pass_rate,
            "accepted although the filter would refuse them: it had refused enough")]
          if counts.outside_pass_rate else []),
        *([("groups begun again", counts.again, "accepted after over-sampling had aborted them once")]
          if counts.again else []),
        *([("length bias of over-sampling", bias, "mean length of accepted responses that it never aborted, "
            "divided by that of all accepted ones: below 1 short ones come first")]
          if bias is not None else []),
        *((f"groups cancelled: {why}", n, "before they were complete; generated again")
          for why, n in sorted(counts.cancelled.items())),
        *((f"groups discarded: {why}", n, "after they were accepted; generated and trained again")
          for why, n in sorted(counts.discarded.items())),
        *((f"responses rejected: {why}", n, "they have no reward and are not trained")
          for why, n in sorted(counts.rejected.items())),
        ("requests moved", counts.moved_requests, "their engine was lost; they went on elsewhere"),
        ("requests continued", counts.continued_requests, "taken out with a part of their tokens, resumed"),
        ("requests rerouted", counts.rerouted_requests, "routing moved them to another engine"),
        ("requests begun anew", counts.restarted_requests, "by routing, without the tokens that they had"),
        ("tokens dropped", counts.dropped_tokens, f"of {tokens:,} generated"),
        ("tokens of the heavy pool", counts.heavy_tokens, f"{counts.heavy_share:.0%} of all generated"),
    ]  # fmt: skip
    return [
        [escape(what), number if isinstance(number, str) else f"{number:,}", escape(meaning)]
        for what, number, meaning in found
    ]
