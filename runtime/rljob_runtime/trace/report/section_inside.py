"""The report on what the time of requests was made of: inside engines, of rewards, of groups.

Pure: an analysis in, markup out.
"""

from html import escape

from rljob_runtime.trace.analyse.analysis import Analysis
from rljob_runtime.trace.analyse.request_phases import PHASES, PhaseBook, PhaseSums
from rljob_runtime.trace.report.charts import Series, curve_chart, stacked_chart, step_axis
from rljob_runtime.trace.report.markup import bar, figure, grid, legend, percent, seconds, table

COLOURS = {"queued": "4", "prefill": "1", "decode": "0", "paused": "5", "preempted": "6", "recomputed": "2"}
"""Colour class of each phase."""
_REST = "between driver and engine"


def inside(analysis: Analysis) -> str:
    """The part "What was the time of requests made of?"."""
    book = analysis.phases
    if not book.whole.stays:
        return ""
    rows = [_row(pool, book.by_pool[pool]) for pool in sorted(book.by_pool)]
    heads = ["pool", "stays", "share of their time", *PHASES, _REST, "pre-emptions"]
    names = [(phase, COLOURS[phase]) for phase in PHASES] + [(_REST, "wait")]
    return (
        '<h3 id="inside">What was the time of requests made of?</h3>'
        f"<p>{escape(' '.join(phase_sentences(book)))}</p>"
        + legend(names)
        + table(heads, rows, numbers=(1, *range(3, 5 + len(PHASES))))
        + grid(
            [
                figure("Time of requests on engines", _by_step(analysis), "share of each phase"),
                figure("Groups and rewards, cumulative", _groups(book), "seconds of each"),
            ]
        )
    )


def _groups(book: PhaseBook) -> str:
    named = (
        ("first to last response of a group", book.spread),
        ("reward: waiting for a worker", book.reward_waiting),
        ("reward: in the function", book.reward_running),
        ("teacher: the last answer of a group", book.teacher),
    )
    return curve_chart([(name, sketch.curve(60)) for name, sketch in named if sketch.count], "s")


def phase_sentences(book: PhaseBook) -> list[str]:
    """What the time was made of, in words."""
    whole = book.whole
    first, *others = sorted(PHASES, key=lambda phase: -whole.told[phase])
    # Less than half a per cent is nothing to act on.
    told = [f"{percent(whole.share(each))} {each}" for each in others if whole.share(each) >= 0.005]
    said = [
        f"Of the time that requests were on engines, {percent(whole.share(first))} was {first}"
        + (f", {', '.join(told)}." if told else ".")
    ]
    if whole.preemptions:
        said.append(
            f"Requests lost their KV cache for want of room {whole.preemptions:,} times, which cost "
            f"{percent(whole.share('preempted'))} of that time in waiting alone."
        )
    if book.reward_running.count:
        waited, ran = book.reward_waiting.mean, book.reward_running.mean
        said.append(
            f"A group's last reward took {seconds(ran)} on average, after {seconds(waited)} of waiting for a "
            "worker."
        )
    if book.teacher.count:
        said.append(
            f"The teacher's server had answered for all responses of a group {seconds(book.teacher.mean)} "
            f"after the last of them was complete, on average, and {seconds(book.teacher.quantile(0.95))} in "
            "one group of twenty or more."
        )
    if book.spread.count:
        said.append(
            f"From a group's first complete response to its last it took {seconds(book.spread.mean)} on "
            f"average, and {seconds(book.spread.quantile(0.95))} in one group of twenty or more."
        )
    return said


def _row(pool: str, sums: PhaseSums) -> list[str]:
    parts = [(phase, sums.share(phase), COLOURS[phase]) for phase in PHASES]
    return [
        escape(pool), f"{sums.stays:,}", bar([*parts, (_REST, sums.rest, "wait")]),
        *(percent(sums.share(phase)) for phase in PHASES), percent(sums.rest), f"{sums.preemptions:,}",
    ]  # fmt: skip


def _by_step(analysis: Analysis) -> str:
    book = analysis.phases
    known = [window.step for window in analysis.windows if window.step in book.by_step]
    layers = [
        Series(phase, [book.by_step[step].share(phase) * 100 for step in known], int(COLOURS[phase]))
        for phase in PHASES
        if book.whole.told[phase]
    ]
    return stacked_chart(step_axis(known), layers, top=100)
