"""The report on what routing expected of responses, against how long they became.

Pure: predictions in, markup out.
"""

import math
from html import escape

from rljob_runtime.trace.analyse.predictions import Calls, Predictions
from rljob_runtime.trace.report.charts import Series, line_chart, scatter_chart
from rljob_runtime.trace.report.markup import figure, grid, number, percent, table

_FEWEST = 5
"""Responses of a row of the table from which on its quantiles mean something."""


def predictions(found: Predictions) -> str:
    """The part "Expected against real lengths"; nothing where nothing was expected."""
    if not found.count:
        return ""
    figures = [
        figure(
            "Expected against real length", scatter_chart(found.points, "expected tokens", "real tokens"),
            f"{len(found.points)} of {found.count:,} responses",
        ),
        figure("Error of what was expected", _by_version(found), "mean, as a factor"),
    ]  # fmt: skip
    return (
        "<h3>Expected against real lengths</h3>"
        + _paragraph(sentence(found))
        + grid(figures)
        + _calibration(found)
        + _paragraph(calls_sentence(found.calls))
    )


def sentence(found: Predictions) -> str:
    """How good the expectations were, in words."""
    error, guess = found.mean_error, _factor(found.error_of_one_guess)
    some = (
        f" Of {found.count:,} responses: those of {found.removed:,} groups were taken out of lengths.jsonl, "
        "to keep it small."
    )
    return (
        f"When a response was placed, before its first token, its expected length was off by a factor of "
        f"{_factor(error)} on average (mean absolute log error {error:.2f}). One guess for all, the run's "
        f"mean length, which is known at its end only, would have been off by {guess}. All together "
        f"{found.ratio:.2f} x as many tokens were expected as came. Estimates improve while siblings run; "
        "what is shown here is the first one."
    ) + (some if found.removed else "")


def _factor(error: float) -> str:
    return f"{math.exp(error):.2f}"


def _by_version(found: Predictions) -> str:
    versions = sorted(found.by_version)
    values = [math.exp(total / count) for count, total in (found.by_version[version] for version in versions)]
    line = Series("off by a factor of", values, 0)
    return line_chart([float(version) for version in versions], [line], x_label="weight version")


def _calibration(found: Predictions) -> str:
    """Quantiles of the real length, by the expected one."""
    rows = []
    for place, real in sorted(found.by_expected.items()):
        if real.count >= _FEWEST:
            low, high = 2 ** (place - 0.5), 2 ** (place + 0.5)
            rows.append(
                [
                    f"{number(math.ceil(low))} – {number(math.ceil(high) - 1)}", f"{real.count:,}",
                    number(real.mean), *(number(real.quantile(share)) for share in (0.1, 0.5, 0.9)),
                    number(real.largest),
                ]
            )  # fmt: skip
    heads = ["expected tokens", "responses", "real mean", "p10", "median", "p90", "longest"]
    return table(heads, rows, numbers=range(1, 7))


def _paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>" if text else ""


def calls_sentence(calls: Calls) -> str:
    """How many were called long rightly and wrongly, in words; empty where nothing counted as long."""
    if not calls.count:
        return ""
    called, were = calls.rightly_long + calls.wrongly_long, calls.rightly_long + calls.missed
    told = (
        f"{calls.count:,} responses were placed while some lengths counted as long. {were:,} of them became "
        f"long; {called:,} were called long, {calls.rightly_long:,} rightly and {calls.wrongly_long:,} "
        "wrongly."
    )
    if not were:
        return told
    known, later = percent(calls.rightly_long / were), calls.missed_to_heavy
    rest = f"; {later:,} of the others ended on the heavy pool all the same." if later else "."
    return f"{told} So {known} of the long ones were known when they were placed{rest}"
