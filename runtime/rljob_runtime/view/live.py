"""The live view of a job on a terminal.

Guarantees: draws only in `start`, `update`, `message` and `finish`; from `update` at most
`FRAMES_PER_SECOND` times a second (what was left out is drawn by a later call); messages stay above the live
area; a terminal that becomes narrower shows nothing of the frames before; the terminal is as it was after
`finish`.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from rich.console import Console, Group, RenderableType
from rich.control import Control
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.segment import ControlType
from rich.table import Table
from rich.text import Text

from rljob_runtime.view.progress import (
    Progress,
    Summary,
    arrow,
    ending,
    flow,
    headline,
    learning,
    pack,
    steps_done,
)

FRAMES_PER_SECOND = 4
_GAP = "   "
_BAR_COLUMNS = 28
_SHORTEST_BAR = 8
"""Columns of one that still says something."""
_MARGIN = 2
"""Columns left of everything that the view draws."""
_MESSAGES = 200
"""Messages that are kept, to be shown again when the screen is begun anew."""


class LiveView:
    """See the module's guarantees."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        # Without a thread of rich's own: what draws is this view, in the calls that its guarantees name.
        self._live = Live(console=console, auto_refresh=False)
        self._progress: Progress | None = None
        self._messages: deque[str] = deque(maxlen=_MESSAGES)
        self._width = 0
        """Columns of the terminal when it was last drawn on."""
        self._screen_is_ours = False
        """Nothing is on the screen but what this view shows."""
        self._drawn_at = float("-inf")

    def start(self, progress: Progress) -> None:
        """Print the header and open the live area."""
        self._progress = progress
        self._open(progress)
        self._draw()

    def update(self, progress: Progress) -> None:
        """Show this from here on."""
        self._progress = progress
        if self._clock() - self._drawn_at >= 1 / FRAMES_PER_SECOND:
            self._draw()

    def message(self, text: str) -> None:
        """A warning or a fault, kept above the live area."""
        self._clear_if_narrower()
        self._messages.append(text)
        self._print_message(text)

    def finish(self, summary: Summary) -> None:
        """Draw the last state, close the live area and say how it ended."""
        if self._progress is not None:
            self._draw()
        self._live.stop()
        # For the terminal to wrap: a path or a command with line breaks of ours cannot be pasted.
        self._console.print(_ending(summary, self._console.width), soft_wrap=True)
        if summary.hint is not None:
            self._console.print(Text(f"{' ' * _MARGIN}{summary.hint}"), soft_wrap=True)

    def _open(self, progress: Progress) -> None:
        """Print the header, and open the live area below it."""
        self._width = self._console.width
        self._console.print(render_header(progress, self._width))
        self._console.print()
        self._live.start()

    def _clear_if_narrower(self) -> None:
        """Begin the screen anew where the terminal has become narrower. It has wrapped the lines of the
        newest frame by then, as this terminal does, and another frame may have been drawn before the new
        width was known: how many rows are to be erased cannot be told."""
        if self._progress is None or self._console.width >= self._width:
            self._width = self._console.width
            return
        self._live.stop()
        height = self._console.height
        if not self._screen_is_ours:
            # What was on the screen before goes into the terminal's history; nothing of it is lost.
            self._console.control(Control((ControlType.CURSOR_DOWN, height)))
            self._console.line(height)
            self._screen_is_ours = True
        self._console.control(Control.home(), Control.clear())
        self._live = Live(console=self._console, auto_refresh=False)
        self._open(self._progress)
        # At most one line for each part of the header and the live area: the newest messages get the rest.
        room = max(0, height - len(headline(self._progress.header)) - len(flow(self._progress)))
        for text in list(self._messages)[-room:] if room else ():
            self._print_message(text)

    def _print_message(self, text: str) -> None:
        self._console.print(Text(f"  {text}", style="yellow"))

    def _draw(self) -> None:
        assert self._progress is not None
        self._clear_if_narrower()
        self._live.update(render(self._progress, self._console.width), refresh=True)
        self._drawn_at = self._clock()


def render_header(progress: Progress, width: int) -> RenderableType:
    """What stays the same: one line, or as many as the width asks for."""
    return _indented(_flowed(headline(progress.header), width, first_style="bold"))


def render(progress: Progress, width: int) -> RenderableType:
    """The live area for a terminal of `width` columns."""
    if progress.activity is not None:
        return _indented(Text(f"{progress.activity} …", style="dim"))
    step = Text(f"step {steps_done(progress)}", style="bold")
    head: list[RenderableType] = [step]
    # 2: the gap of `_beside`.
    room = min(_BAR_COLUMNS, width - _MARGIN - len(step) - 2)
    if progress.total_steps and room >= _SHORTEST_BAR:
        head.append(ProgressBar(total=progress.total_steps, completed=progress.step, width=room))
    learned = learning(progress)
    style = {"▲": "green", "▼": "red"}.get(arrow(progress.reward_trend), "")
    # 4: the two gaps of `_beside` between its three cells.
    beside = len(step) + _BAR_COLUMNS + len(_GAP.join(learned)) + _MARGIN + 4 <= width
    rows: list[RenderableType] = []
    if beside:
        rows.append(_beside([*head, _flowed(learned, width, style)]))
    else:
        rows.extend([_beside(head), _flowed(learned, width, style)])
    rows.append(_flowed(flow(progress), width))
    return _indented(Group(*rows))


def _flowed(parts: Sequence[str], width: int, first_style: str = "") -> Text:
    """Parts with gaps between them, in as many lines as they need; no part is broken."""
    text = Text()
    for index, line in enumerate(pack(parts, _GAP, width - _MARGIN)):
        if index:
            text.append("\n")
        text.append(line)
    text.stylize(first_style, 0, len(parts[0]))
    return text


def _beside(cells: Sequence[RenderableType]) -> Table:
    row = Table.grid(padding=(0, 2))
    for _ in cells:
        row.add_column(no_wrap=True)
    row.add_row(*cells)
    return row


def _ending(summary: Summary, width: int) -> Text:
    style = {"done": "green", "stopped": "yellow"}.get(summary.outcome, "red")
    lines = _flowed(ending(replace(summary, hint=None)), width, style).split("\n")
    return Text("\n").join(Text(" " * _MARGIN) + line for line in lines)


def _indented(content: RenderableType) -> RenderableType:
    return Padding(content, (0, 0, 0, _MARGIN))
