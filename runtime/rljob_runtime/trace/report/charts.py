"""Charts as inline SVG.

Pure: values in, markup out. Guarantees: the size of a chart does not grow with its data (`POINTS` points per
series at most); colours come from the page's style sheet (classes s0 to s7 for lines, f0 to f8 for areas,
b0 to b8 for legends), so that charts follow its light and dark modes; every text is escaped.
"""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape

from rljob_runtime.step_numbers import step_number
from rljob_runtime.trace.analyse.sketch import Curve

POINTS = 240
"""Points of a line at most."""
WIDTH, HEIGHT = 640, 220
"""Of a drawing, in its own units: the page scales it."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 12, 10, 34
"""Margins for the numbers of the axes, in the same units."""

Values = Sequence[float | None]
"""None where there is no value: the line has a gap."""


@dataclass(frozen=True)
class Series:
    """A line."""

    name: str
    values: Values
    colour: int = 0
    faint: bool = False


@dataclass(frozen=True)
class Mark:
    """Something worth seeing at one place."""

    x: float
    label: str


@dataclass
class Axes:
    """The plot's range in data and how it maps to the drawing."""

    x_min: float
    x_max: float
    y_min: float
    y_max: float
    log_x: bool = False
    log_y: bool = False
    parts: list[str] = field(default_factory=list)

    def x(self, value: float) -> float:
        low, high = self.x_min, self.x_max
        if self.log_x:
            low, high, value = math.log10(low), math.log10(high), math.log10(max(value, low))
        return _LEFT + (value - low) / (high - low or 1) * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        low, high = self.y_min, self.y_max
        if self.log_y:
            low, high, value = math.log10(low), math.log10(high), math.log10(max(value, low))
        return HEIGHT - _BOTTOM - (value - low) / (high - low or 1) * (HEIGHT - _TOP - _BOTTOM)


def step_axis(steps: Iterable[int]) -> list[float]:
    """The x of steps."""
    return [float(step_number(step)) for step in steps]


def line_chart(
    x: Sequence[float],
    series: Sequence[Series],
    x_label: str = "step",
    unit: str = "",
    marks: Sequence[Mark] = (),
    zero: bool = False,
) -> str:
    """Lines over a common x. Where there are more than `POINTS` values each point is the mean of its share of
    them, in a band from the smallest to the largest. `zero`: the y axis begins at 0."""
    numbers = [value for line in series for value in line.values if value is not None]
    if not numbers or not x:
        return ""
    low, high = min(numbers), max(numbers)
    low = min(low, 0.0) if zero else low
    # A line of equal values needs a range too, and is drawn in its middle.
    if high == low:
        low, high = (
            (low - abs(low) * 0.1 - 0.01, high + abs(high) * 0.1 + 0.01) if not zero else (low, low + 1)
        )
    # A little room above: the highest point would be cut by the frame.
    axes = Axes(min(x), max(x), low, high + (high - low) * 0.04)
    _grid(axes, x_label, unit)
    buckets = _buckets(len(x))
    centres = [sum(x[a:b]) / (b - a) for a, b in buckets]
    hover = []
    for line in series:
        means = [_mean(line.values[a:b]) for a, b in buckets]
        if len(buckets) < len(x):
            axes.parts.append(_band(axes, centres, line, buckets))
        axes.parts.append(_line(axes, centres, line, means))
        hover.append([line.name, line.colour, [_short(value) for value in means]])
    for mark in marks:
        at = axes.x(mark.x)
        axes.parts.append(
            f'<g class="mark"><title>{escape(mark.label)}</title><line x1="{at:.1f}" x2="{at:.1f}" '
            f'y1="{_TOP}" y2="{HEIGHT - _BOTTOM}"/><circle cx="{at:.1f}" cy="{_TOP + 4}" r="4"/></g>'
        )
    return _svg(
        axes, [(line.name, line.colour) for line in series], _hover(axes, x_label, centres, hover, unit)
    )


def stacked_chart(
    x: Sequence[float],
    layers: Sequence[Series],
    x_label: str = "step",
    unit: str = "%",
    top: float | None = None,
) -> str:
    """Areas on top of each other. `top` is the upper end of the y axis, which otherwise fits the data."""
    if not x or not layers:
        return ""
    buckets = _buckets(len(x))
    centres = [sum(x[a:b]) / (b - a) for a, b in buckets]
    means = [[_mean(layer.values[a:b]) or 0.0 for a, b in buckets] for layer in layers]
    heights = [sum(column) for column in zip(*means, strict=True)]
    axes = Axes(min(x), max(x), 0, top or max(heights) * 1.04 or 1)
    _grid(axes, x_label, unit)
    floor = [0.0] * len(centres)
    for layer, values in zip(layers, means, strict=True):
        roof = [below + value for below, value in zip(floor, values, strict=True)]
        # Along the roof and back along the floor.
        upper = [f"{axes.x(at):.1f},{axes.y(value):.1f}" for at, value in zip(centres, roof, strict=True)]
        lower = [f"{axes.x(at):.1f},{axes.y(value):.1f}" for at, value in zip(centres, floor, strict=True)]
        axes.parts.append(f'<polygon class="f{layer.colour}" points="{" ".join(upper + lower[::-1])}"/>')
        floor = roof
    hover = [
        [layer.name, layer.colour, [_short(value) for value in values]]
        for layer, values in zip(layers, means, strict=True)
    ]
    return _svg(
        axes, [(layer.name, layer.colour) for layer in layers], _hover(axes, x_label, centres, hover, unit)
    )


def curve_chart(curves: Sequence[tuple[str, Curve]], x_label: str, linear: bool = False) -> str:
    """Cumulative distributions, in per cent; the x axis is logarithmic where values span more than 50 x,
    unless `linear` forbids it."""
    curves = [(name, curve) for name, curve in curves if curve]
    if not curves:
        return ""
    positive = [value for _, curve in curves for value, _ in curve if value > 0] or [1.0]
    low, high = min(positive), max(positive)
    log = not linear and high / low > 50
    axes = Axes(low if log else 0.0, high if high > low else low * 2, 0, 100, log_x=log)
    _grid(axes, x_label, "%")
    for index, (_, curve) in enumerate(curves):
        points = [(axes.x(value), axes.y(share * 100)) for value, share in curve]
        path = "".join(f"{'L' if at else 'M'}{a:.1f},{b:.1f}" for at, (a, b) in enumerate(points))
        axes.parts.append(f'<path class="line s{index % 8}" d="{path}"/>')
    return _svg(axes, [(name, index % 8) for index, (name, _) in enumerate(curves)], "")


def bar_chart(bars: Sequence[tuple[str, float]], x_label: str, unit: str = "%") -> str:
    """Upright bars with a label each."""
    if not bars:
        return ""
    axes = Axes(0, len(bars), 0, max(value for _, value in bars) * 1.12 or 1)
    _grid(axes, x_label, unit, x_ticks=False)
    for index, (label, value) in enumerate(bars):
        left, right, top = axes.x(index + 0.15), axes.x(index + 0.85), axes.y(value)
        middle = (left + right) / 2
        axes.parts.append(
            f'<rect class="f0" x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" '
            f'height="{HEIGHT - _BOTTOM - top:.1f}"/>'
            f'<text class="tick mid" x="{middle:.1f}" y="{HEIGHT - _BOTTOM + 13}">{escape(label)}</text>'
            f'<text class="tick mid" x="{middle:.1f}" y="{top - 4:.1f}">{_tick(float(f"{value:.3g}"))}</text>'
        )
    return _svg(axes, [], "")


def scatter_chart(points: Sequence[tuple[float, float]], x_label: str, unit: str) -> str:
    """Points of positive numbers over two logarithmic axes of one range, with the line on which both are
    equal."""
    if not points:
        return ""
    low, high = _range([value for point in points for value in point])
    axes = Axes(low, high, low, high, log_x=True, log_y=True)
    _grid(axes, x_label, unit)
    axes.parts.append(
        f'<path class="line faint s4" d="M{axes.x(low):.1f},{axes.y(low):.1f}'
        f'L{axes.x(high):.1f},{axes.y(high):.1f}"/>'
    )
    axes.parts.append(_dots(axes, points))
    return _svg(axes, [("as expected", 4), ("a response", 0)], "")


def cloud_chart(points: Sequence[tuple[float, float]], x_label: str, unit: str) -> str:
    """Points of positive numbers over two logarithmic axes, each of a range of its own."""
    if not points:
        return ""
    axes = Axes(*_range([x for x, _ in points]), *_range([y for _, y in points]), log_x=True, log_y=True)
    _grid(axes, x_label, unit)
    axes.parts.append(_dots(axes, points))
    return _svg(axes, [], "")


def _range(values: Sequence[float]) -> tuple[float, float]:
    """From the smallest to the largest of positive values; one value alone needs a range too."""
    low, high = min(values), max(values)
    return (low / 2, high * 2) if low == high else (low, high)


def _dots(axes: Axes, points: Sequence[tuple[float, float]]) -> str:
    # One path: a short stroke with round ends is a dot.
    drawn = "".join(f"M{axes.x(x):.1f},{axes.y(y):.1f}h.01" for x, y in points)
    return f'<path class="dots s0" d="{drawn}"/>'


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers from `low` to `high`, about `count` of them."""
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return [low]
    power: float = 10.0 ** math.floor(math.log10(span / count))
    step = next(power * factor for factor in (1, 2, 5, 10) if span / (power * factor) <= count)
    # With a tolerance: 0.3 / 0.1 is a little less than 3, and the last tick would be missing.
    return [index * step for index in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _grid(axes: Axes, x_label: str, unit: str, x_ticks: bool = True) -> None:
    bottom = HEIGHT - _BOTTOM
    levels = _log_ticks(axes.y_min, axes.y_max) if axes.log_y else ticks(axes.y_min, axes.y_max)
    for value, label in zip(levels, tick_labels(levels), strict=True):
        at = axes.y(value)
        axes.parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
            f'<text class="tick end" x="{_LEFT - 6}" y="{at + 4:.1f}">{label}</text>'
        )
    if x_ticks:
        places = _log_ticks(axes.x_min, axes.x_max) if axes.log_x else ticks(axes.x_min, axes.x_max, 8)
        axes.parts.extend(
            f'<text class="tick mid" x="{axes.x(value):.1f}" y="{bottom + 13}">{label}</text>'
            for value, label in zip(places, tick_labels(places), strict=True)
        )
    axes.parts.append(
        f'<text class="tick end" x="{WIDTH - _RIGHT}" y="{HEIGHT - 5}">{escape(x_label)}</text>'
        + (f'<text class="tick" x="4" y="{HEIGHT - 5}">{escape(unit)}</text>' if unit else "")
    )


def _log_ticks(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    # Over many decades only powers of ten find room.
    factors = (1, 2, 5) if len(powers) <= 4 else (1,)
    values = [factor * 10.0**power for power in powers for factor in factors]
    return [value for value in values if low <= value <= high]


def _buckets(count: int) -> list[tuple[int, int]]:
    """Index ranges that share `count` values evenly among at most `POINTS` points."""
    if count <= POINTS:
        return [(index, index + 1) for index in range(count)]
    edges = [round(index * count / POINTS) for index in range(POINTS + 1)]
    return [(edges[index], edges[index + 1]) for index in range(POINTS)]


def _mean(values: Values) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else None


def _runs(axes: Axes, x: Sequence[float], values: Values) -> Iterator[list[str]]:
    """Points in a row, each with a value; there is a gap where there is none."""
    run: list[str] = []
    for at, value in zip(x, values, strict=True):
        if value is not None:
            run.append(f"{axes.x(at):.1f},{axes.y(value):.1f}")
        elif run:
            yield run
            run = []
    if run:
        yield run


def _line(axes: Axes, x: Sequence[float], line: Series, values: Values) -> str:
    """The line through the values, and a dot for each that has no neighbour: no line goes through it."""
    runs = list(_runs(axes, x, values))
    path = "".join("M" + "L".join(run) for run in runs if len(run) > 1)
    dots = "".join(f"M{run[0]}h0.1" for run in runs if len(run) == 1)
    kind = f"s{line.colour}{' faint' if line.faint else ''}"
    shapes = [("line", path), ("dot", dots)]
    return "".join(f'<path class="{shape} {kind}" d="{drawn}"/>' for shape, drawn in shapes if drawn)


def _band(axes: Axes, x: Sequence[float], line: Series, buckets: Sequence[tuple[int, int]]) -> str:
    """From the smallest to the largest value behind each point."""
    upper, lower = [], []
    for at, (a, b) in zip(x, buckets, strict=True):
        numbers = [value for value in line.values[a:b] if value is not None]
        if numbers:
            upper.append(f"{axes.x(at):.1f},{axes.y(max(numbers)):.1f}")
            lower.append(f"{axes.x(at):.1f},{axes.y(min(numbers)):.1f}")
    return f'<polygon class="band f{line.colour}" points="{" ".join(upper + lower[::-1])}"/>'


def _hover(axes: Axes, x_label: str, x: Sequence[float], series: Sequence[object], unit: str) -> str:
    """What `page.js` shows beside the pointer: the values (`x`, `s`), and where they are drawn (`px`)."""
    data = {
        "x": [_short(value) for value in x], "px": [round(axes.x(value), 1) for value in x],
        "l": x_label, "s": series, "u": unit,
    }  # fmt: skip
    return escape(json.dumps(data, separators=(",", ":")), quote=True)


def _svg(axes: Axes, legend: Sequence[tuple[str, int]], hover: str) -> str:
    names = "".join(f'<span><i class="b{colour}"></i>{escape(name)}</span>' for name, colour in legend)
    attribute = f' data-hover="{hover}"' if hover else ""
    drawing = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{"".join(axes.parts)}</svg>'
    key = f'<div class="legend">{names}</div>' if len(legend) > 1 else ""
    return f'<div class="chart"{attribute}>{drawing}{key}</div>'


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}") if abs(value) < 1e5 else round(value)


def tick_labels(values: Sequence[float]) -> list[str]:
    """Short, and with as many digits as it takes to tell them apart."""
    shortest, most = 4, 12
    for digits in range(shortest, most):
        labels = [_tick(value, digits, digits - shortest) for value in values]
        if len(set(labels)) == len(values):
            return labels
    return [_tick(value, most, most - shortest) for value in values]


def _tick(value: float, digits: int = 4, decimals: int = 0) -> str:
    if value != 0 and (abs(value) >= 1e5 or abs(value) < 1e-3):
        return f"{value:.{decimals}e}".replace("e+0", "e").replace("e-0", "e-")
    return f"{value:,.{digits}g}" if abs(value) < 10000 else f"{value:,.{decimals}f}"
