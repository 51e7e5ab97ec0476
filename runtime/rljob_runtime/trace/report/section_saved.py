"""The report on what the long tail cost, and what would have saved it: in sentences and figures.

Pure: an analysis in, markup out.
"""

from html import escape

from rljob_runtime.trace.analyse.analysis import Analysis
from rljob_runtime.trace.analyse.length_duration import LengthDuration
from rljob_runtime.trace.analyse.reward_by_length import RewardByLength
from rljob_runtime.trace.analyse.what_if import DONE, EXTRA, TailSums
from rljob_runtime.trace.report.charts import Series, cloud_chart, line_chart
from rljob_runtime.trace.report.markup import figure, grid, percent, seconds


def saved(analysis: Analysis) -> str:
    """The part "What would have saved it?"; nothing where no response ended."""
    tail = analysis.tail
    if not tail.steps:
        return ""
    sentences = [done_sentence(tail), over_sampling_sentence(tail), limit_sentence(tail, analysis.rewards)]
    items = "".join(f"<li>{escape(each)}</li>" for each in [*sentences, length_sentence(analysis.lengths)])
    figures = [
        figure("A lower limit of response tokens", _limits(tail), "what it would have saved, and cut"),
        figure("Duration of responses, by length", _cloud(analysis.lengths), _thinned(analysis.lengths)),
    ]
    head = "What did the tail cost, and what would have saved it?"
    return f'<h3 id="saved">{head}</h3><ul>{items}</ul>{grid(figures)}'


def done_sentence(tail: TailSums) -> str:
    """The tail in a sentence."""
    return (
        f"{percent(DONE)} of a step's responses were done in {percent(tail.done_share)} of the time that all "
        f"of them took ({seconds(tail.seconds / tail.steps)} for a step): the last "
        f"{percent(1 - DONE)} took the other {percent(1 - tail.done_share)}."
    )


def over_sampling_sentence(tail: TailSums) -> str:
    """What over-sampling would have saved, in a sentence."""
    return (
        f"Over-sampling by {percent(EXTRA)} (begin so many more groups, and give up the last ones when a "
        f"step has enough) would have saved up to {percent(tail.saved_by_over_sampling)} of that time, for "
        f"up to {percent(EXTRA)} more tokens, and with fewer long responses in the batch."
    )


def limit_sentence(tail: TailSums, rewards: RewardByLength) -> str:
    """What a lower limit of tokens would have saved, and what it would have cut, in sentences."""
    if (found := tail.proposed()) is None:
        return (
            f"No lower limit of response tokens is worth a try: the longest response has {tail.longest:,}, "
            "and a limit below it would have cut more than one response in twenty."
        )
    limit, share, cut = found
    return (
        f"A limit of {limit:,} response tokens (the longest response has {tail.longest:,}) would have saved "
        f"up to {percent(share)} of that time, and cut {percent(cut)} of the responses."
        + _worth(*rewards.means(limit))
    )


def _worth(others: float | None, longer: float | None) -> str:
    """What the responses that would have been cut were worth, beside the others."""
    if others is None or longer is None:
        return ""
    return f" Those had a mean reward of {longer:.2f}, the others {others:.2f}."


def length_sentence(lengths: LengthDuration) -> str:
    """How duration follows from length, in a sentence."""
    line = lengths.line()
    if line is None:
        return "Responses do not differ enough in length to say what a token takes."
    _, slope, explained = line
    why = (
        "their lengths alone are what makes responses slow"
        if explained >= 0.9
        else "the rest is how they waited, and what ran beside them"
    )
    return (
        f"A token more took {seconds(max(slope, 0.0))}; lengths explain {percent(explained)} of how much "
        f"durations differ: {why}."
    )


def _limits(tail: TailSums) -> str:
    found = tail.by_limit()
    if len(found) < 2:
        return ""
    return line_chart(
        [float(limit) for limit, _, _ in found],
        [
            Series("time saved, at most", [share * 100 for _, share, _ in found], 0),
            Series("responses cut", [cut * 100 for _, _, cut in found], 5),
        ],
        x_label="limit, tokens", unit="%", zero=True,
    )  # fmt: skip


def _cloud(lengths: LengthDuration) -> str:
    points = [(float(tokens), took) for tokens, took in lengths.points if tokens > 0 and took > 0]
    return cloud_chart(points, "tokens", "s")


def _thinned(lengths: LengthDuration) -> str:
    return "each response" if lengths.every == 1 else f"one response in {lengths.every:,}"
