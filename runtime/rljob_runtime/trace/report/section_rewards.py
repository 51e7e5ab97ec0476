"""What rewards are made of, in the report: curves of parts and metrics, and of each source.

Pure: rows of metrics in, markup out.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rljob_runtime.trace.report.charts import Mark, Series, line_chart
from rljob_runtime.trace.report.markup import figure

_COLOURS = 8
"""Lines of a chart at most: the page has so many colours for them."""


def reward_values(rows: Sequence[Mapping[str, Any]], marks: Sequence[Mark]) -> list[str]:
    """Figures of all values that the `rows` of metrics have by name; none where rewards are single numbers
    of one source. Metrics have a figure each, since their scales differ."""
    steps = [float(row["step"]) for row in rows]

    def charts(key: str, title: str, note: str) -> list[str]:
        lines = list(_by_name(rows, key).items())
        return [
            _figure(title, note, steps, lines[first : first + _COLOURS], marks)
            for first in range(0, len(lines), _COLOURS)
        ]

    return [
        *charts("reward_parts", "Parts of the reward", "means of the step's responses"),
        *(
            _figure(
                name, "metric of the reward, mean of the step's responses", steps, [(name, values)], marks
            )
            for name, values in _by_name(rows, "reward_metrics").items()
        ),
        *charts("source_reward", "Reward by source", "means of the step's responses"),
        *charts("source_pass_rate", "Passed, by source", "share of the step's responses"),
    ]


def _by_name(rows: Sequence[Mapping[str, Any]], key: str) -> dict[str, list[float | None]]:
    """By each name under `key` its value in every row, None where there is none; in the order of names,
    without those that never have a value."""
    found = [of if isinstance(of := row.get(key), dict) else {} for row in rows]
    columns = {
        name: [float(value) if isinstance(value := of.get(name), int | float) else None for of in found]
        for name in sorted({name for of in found for name in of})
    }
    return {name: values for name, values in columns.items() if any(value is not None for value in values)}


def _figure(
    title: str,
    note: str,
    steps: Sequence[float],
    lines: Sequence[tuple[str, Sequence[float | None]]],
    marks: Sequence[Mark],
) -> str:
    series = [Series(name, values, index) for index, (name, values) in enumerate(lines)]
    return figure(title, line_chart(steps, series, marks=marks), note)
