"""Rows over a common time axis, which `page.js` lets people zoom and move; pure."""

from collections.abc import Sequence
from html import escape

SPAN = 1000
"""Width of a row in units of its drawing; `page.js` has the same number."""
ROW = 22
"""Height of a row, in pixels."""


def lanes(rows: Sequence[tuple[str, str]], seconds: float, notes: Sequence[str] = ()) -> str:
    """Rows of (label, drawing), over so many seconds; `notes` stand to the right of them, one for each."""
    if not rows:
        return "<p class=hint>No events.</p>"
    height = ROW * len(rows)
    labels = "".join(f"<span>{escape(label)}</span>" for label, _ in rows)
    drawn = "".join(
        f'<g transform="translate(0 {index * ROW})">{row}</g>' for index, (_, row) in enumerate(rows)
    )
    told = "".join(f"<span>{escape(note)}</span>" for note in notes)
    beside = f'<div class="labels">{told}</div>' if notes else ""
    return (
        f'<div class="lanes{" noted" if notes else ""}" data-seconds="{seconds:.4f}">'
        f'<div class="labels">{labels}</div>'
        f'<div class="plot"><svg viewBox="0 0 {SPAN} {height}" style="height:{height}px" '
        f'preserveAspectRatio="none">{drawn}</svg>'
        f'<div class="axis"></div></div>{beside}</div>'
    )


def box(start: float, end: float, inset: int = 3) -> str:
    """The path of a bar in a row, from `start` to `end` in shares of its width; `inset` pixels of the row
    are free above and below it."""
    # Half a unit at least, so that a short event can still be seen.
    width = max((end - start) * SPAN, 0.5)
    return f"M{start * SPAN:.1f} {inset}h{width:.1f}v{ROW - 2 * inset}h-{width:.1f}z"


def area(running: Sequence[float], most: float) -> str:
    """The path of so many running requests in each equal part of a row, `most` of which fill its height."""
    width, floor, height = SPAN / len(running), ROW - 1, ROW - 3
    points = "".join(
        f"V{floor - value / most * height:.1f}H{(index + 1) * width:.1f}"
        for index, value in enumerate(running)
    )
    return f"M0 {floor}{points}V{floor}z"
