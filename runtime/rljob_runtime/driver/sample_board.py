"""Shows in TensorBoard what the model says: of a step the best, the worst and the longest response, and one
at random, as text.

Guarantees: whatever a model wrote stands there as code, which nothing of it leaves; a run of N steps shows
some log(N) of them, so that TensorBoard's files stay small: each of the first `_EACH`, then ever fewer.
"""

from collections.abc import Callable, Mapping, Sequence

from rljob_runtime.trace.analyse.said import overview, shortened
from rljob_runtime.trace.record.sample_log import SampleLine
from rljob_runtime.trace.report.samples_text import facts
from rljob_runtime.view.visible import visible

_EACH = 20
"""Steps from the run's beginning on that are all shown."""
_FURTHER = 1.05
"""Afterwards one is shown from so many times the number of the one shown last."""
_PROMPT, _RESPONSE = 600, 2000
"""Characters that are shown of each, half of them from its end."""


class SampleBoard:
    """To be told what is kept of each step."""

    def __init__(self, write: Callable[[int, Mapping[str, str]], None]) -> None:
        """`write` is given a step and texts in Markdown by their names."""
        self._write = write
        self._shown = 0
        """The step that was shown last."""

    def __call__(self, rows: Sequence[SampleLine]) -> None:
        """Show some of the rows, all of one step, if that step is to be shown."""
        if not rows:
            return
        step = rows[0].step
        # Less than the last one where training went back.
        if _EACH <= step < self._shown * _FURTHER and step >= self._shown:
            return
        self._shown = step
        self._write(step, {order: markdown(row) for order, row in overview(rows, at_random=1, seed=step)})


def markdown(row: SampleLine) -> str:
    """A response and what is known of it, all of it as one block of code."""
    prompt, response = visible(shortened(row.prompt, _PROMPT)), visible(shortened(row.response, _RESPONSE))
    lines = "\n".join([" · ".join(filter(None, facts(row))), "", "prompt:", prompt, "", "says:", response])
    # Four spaces before each line make it code in Markdown, whatever stands in it.
    return "\n".join(f"    {line}" for line in lines.split("\n"))
