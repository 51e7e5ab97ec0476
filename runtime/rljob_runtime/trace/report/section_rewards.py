"""What rewards are made of, in the report: curves of parts and metrics, and of each source.

Pure: rows of metrics in, markup out.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rljob_runtime.trace.report.charts import Mark, Series, line_chart, step_axis
from rljob_runtime.trace.report.markup import figure

_COLOURS = 8
"""Lines of a chart at most: the page has so many colours for them."""


def reward_values(rows: Sequence[Mapping[str, Any]], marks: Sequence[Mark]) -> list[str]:
    """Figures of all values that the `rows` of metrics have by name; none where rewards are single numbers
    of one source. Metrics have a figure each, since their scales differ."""
    steps = step_axis(row["step"] for row in rows)

    def charts(key: str, title: str, note: str) -> list[str]:
        return named_values(title, note, steps, [row.get(key) for row in rows], marks)

    return [
        *charts("reward_parts", "Parts of the reward", "means of the step's responses"),
        *(
            _figure(
                name, "metric of the reward, mean of the step's responses", steps, [(name, values)], marks
            )
            for name, values in _by_name([row.get("reward_metrics") for row in rows]).items()
        ),
        *charts("source_reward", "Reward by source", "means of the step's responses"),
        *charts("source_pass_rate", "Passed, by source", "share of the step's responses"),
    ]


def named_values(
    title: str, note: str, steps: Sequence[float], values: Sequence[Any], marks: Sequence[Mark]
) -> list[str]:
    """Figures of the lines of all names: of each of the `steps` the `values` are numbers by their names, or
    something else where it has none."""
    lines = list(_by_name(values).items())
    return [
        _figure(title, note, steps, lines[first : first + _COLOURS], marks)
        for first in range(0, len(lines), _COLOURS)
    ]


def _by_name(values: Sequence[Any]) -> dict[str, list[float | None]]:
    """By each name its value in every step, None where there is none; in the order of names, without those
    that never have a value."""
    found = [of if isinstance(of, dict) else {} for of in values]
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
