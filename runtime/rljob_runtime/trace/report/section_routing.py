"""The report on routing by length: what the engines for long responses did, and what moved why.

Pure: an analysis in, markup out.
"""

from html import escape

from rljob_runtime.trace.analyse.analysis import Analysis
from rljob_runtime.trace.analyse.scheduling import FAST, HEAVY, LONG, Share
from rljob_runtime.trace.report.charts import Series, line_chart, stacked_chart, step_axis
from rljob_runtime.trace.report.markup import figure, grid, number, percent, seconds, table
from rljob_runtime.trace.report.section_predictions import predictions
from rljob_runtime.trace.report.waterfall import REASONS

NAMES = {HEAVY: "heavy pool", LONG: "fast engines while they were for long responses", FAST: "fast pool"}
"""What people call each kind of engines; those for long responses first."""


def routing(analysis: Analysis) -> str:
    """The section "How were responses placed and moved?"."""
    if not analysis.scheduling.shares:
        return "<p>No request was recorded.</p>"
    figures = [
        figure("Tokens generated", _tokens(analysis), "share of each kind of engines"),
        figure("From which length on a response was long", _cuts(analysis), "and how long responses were"),
        figure("Engines for long responses", _engines(analysis), "mean over each step"),
        figure("Moves between engines", _moves(analysis), "of the responses that ended in each step"),
    ]
    return (
        f"<p>{escape(_sentence(analysis))}</p>"
        + _kinds(analysis)
        + grid(figures)
        + _move_table(analysis)
        + predictions(analysis.predictions)
    )


def _sentence(analysis: Analysis) -> str:
    """What the engines for long responses did, in words; only what was measured."""
    shares = analysis.scheduling.shares
    parts = []
    fast = shares.get(FAST)
    total = sum(share.tokens for share in shares.values())
    for kind in (HEAVY, LONG):
        share = shares.get(kind)
        if share is None:
            continue
        said = f"The {NAMES[kind]} generated {percent(share.tokens / max(total, 1))} of the tokens"
        if fast is not None and fast.seconds and share.seconds:
            said += (
                f"; a response grew by {number(speed(share))} tokens a second there, and by "
                f"{number(speed(fast))} in the fast pool"
            )
        parts.append(said + ".")
    moved = analysis.scheduling.moved
    if moved:
        times = "once" if moved == 1 else f"{moved:,} times"
        parts.append(f"Responses went on on another engine {times}.")
    else:
        parts.append("No response moved from one engine to another.")
    return " ".join(parts)


def speed(share: Share) -> float:
    """Tokens that a response gets in a second on such engines."""
    return share.tokens / share.seconds if share.seconds else 0.0


def shares_by_kind(analysis: Analysis) -> list[tuple[str, Share, float | None]]:
    """What engines of each kind did, those for long responses first, and the busy share of their time where
    it is known."""
    shares = analysis.scheduling.shares
    busy = {pool.pool: 1 - pool.overall["idle"] for pool in analysis.pools}
    # A pool's busy time is that of all its engines: where some were for long responses for a while it cannot
    # be divided.
    pools = {HEAVY: "heavy"} | ({} if LONG in shares else {FAST: "fast"})
    return [(kind, shares[kind], busy.get(pools.get(kind, ""))) for kind in NAMES if kind in shares]


def _kinds(analysis: Analysis) -> str:
    total = sum(share.tokens for share in analysis.scheduling.shares.values())
    rows = []
    for kind, share, busy in shares_by_kind(analysis):
        quantiles = (share.lengths.quantile(part) if share.lengths.count else None for part in (0.5, 0.9))
        rows.append(
            [
                escape(NAMES[kind]), f"{share.lengths.count:,}", f"{share.tokens:,}",
                percent(share.tokens / max(total, 1)), *(number(value) for value in quantiles),
                number(speed(share)), f"{share.moved_in:,}", f"{share.moved_out:,}",
                "–" if busy is None else percent(busy),
            ]
        )  # fmt: skip
    heads = [
        "engines", "responses that ended there", "tokens", "of all", "median length", "p90", "tokens/s",
        "moved in", "moved out", "busy",
    ]  # fmt: skip
    return table(heads, rows, numbers=range(1, 10))


def _steps(analysis: Analysis) -> list[int]:
    return [window.step for window in analysis.windows]


def _tokens(analysis: Analysis) -> str:
    shares = analysis.scheduling.shares
    totals = {step: sum(share.by_step.get(step, 0) for share in shares.values()) for step in _steps(analysis)}
    # Nothing may have ended in a step.
    steps = [step for step, total in totals.items() if total]
    if len(shares) < 2:
        return ""
    layers = [
        Series(
            NAMES[kind], [shares[kind].by_step.get(step, 0) / totals[step] * 100 for step in steps], colour
        )
        for colour, kind in ((2, HEAVY), (3, LONG), (0, FAST))
        if kind in shares
    ]
    return stacked_chart(step_axis(steps), layers, top=100)


def _cuts(analysis: Analysis) -> str:
    divisions, steps = analysis.scheduling.divisions, _steps(analysis)
    cuts = [division.mean_cut if (division := divisions.get(step)) else None for step in steps]
    if not any(cut is not None for cut in cuts):
        return ""
    by_step = analysis.requests.by_step
    lengths = {
        label: [by_step[step].lengths.quantile(share) if step in by_step else None for step in steps]
        for label, share in (("median length", 0.5), ("p90", 0.9))
    }
    lines = [Series("long from", cuts, 2)]
    lines += [
        Series(label, values, colour, faint=True) for colour, (label, values) in enumerate(lengths.items())
    ]
    return line_chart(step_axis(steps), lines, unit="tokens", zero=True)


def _engines(analysis: Analysis) -> str:
    divisions, steps = analysis.scheduling.divisions, _steps(analysis)
    if not divisions:
        return ""
    values = [division.mean_engines if (division := divisions.get(step)) else None for step in steps]
    return line_chart(step_axis(steps), [Series("engines", values, 2)], zero=True)


def _moves(analysis: Analysis) -> str:
    found, steps = analysis.scheduling.moves_by_step, _steps(analysis)
    if not found:
        return ""
    words = [word for word in REASONS if word in found] + [word for word in found if word not in REASONS]
    layers = [
        Series(word or "not recorded", [float(found[word].get(step, 0)) for step in steps], colour % 8)
        for colour, word in enumerate(words)
    ]
    return stacked_chart(step_axis(steps), layers, unit="moves")


def _move_table(analysis: Analysis) -> str:
    moves = analysis.scheduling.moves
    rows = [
        [
            escape(why or "–"), f"{NAMES[source]} → {NAMES[target]}", f"{found.tokens.count:,}",
            number(found.tokens.quantile(0.5)), number(found.tokens.largest),
            seconds(found.pauses.quantile(0.5)), seconds(found.pauses.largest),
            escape(REASONS.get(why, "a policy of your own has this word for it")),
        ]
        for (why, source, target), found in sorted(moves.items(), key=lambda item: -item[1].tokens.count)[:30]
    ]  # fmt: skip
    heads = [
        "moved because", "from → to", "times", "median tokens carried", "most", "median pause", "longest", "",
    ]  # fmt: skip
    return "<h3>Why responses moved</h3>" + table(heads, rows, range(2, 7), (7,)) if rows else ""
