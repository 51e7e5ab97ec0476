"""The report on what the model says: responses as text. Pure: kept responses in, markup out.

Guarantees: whatever a model wrote stands there as text, and nothing of it acts; the section's size does not
grow with the run, nor with the length of its responses.
"""

from collections.abc import Sequence
from html import escape

from rljob_runtime.trace.analyse.said import most_seen, over_time, overview, shortened, spread, steps_of
from rljob_runtime.trace.record.sample_log import SampleLine
from rljob_runtime.trace.report.samples_text import facts
from rljob_runtime.view.visible import visible

_AT_RANDOM = 3
"""Responses at random beside the best, the worst and the longest."""
_OVER_TIME = 8
"""Responses to one prompt."""
_SEARCHED = 120
"""Responses that the box searches."""
_PROMPT, _RESPONSE = 600, 2000
"""Characters that are shown of each, half of them from its end."""


def says(rows: Sequence[SampleLine], kept: int | None) -> str:
    """The section. `rows`: what is kept of the run, in order of steps; `kept`: its `samplesPerStep`, None
    where it is not known."""
    if not rows:
        why = (
            "training.profiling.samplesPerStep is 0" if kept == 0 else "no step has been trained, or recorded"
        )
        return f"<p>No response is kept: {why}.</p>"
    newest = [row for row in rows if row.step == rows[-1].step]
    found = [_card(row, f"{order}: ") for order, row in overview(newest, _AT_RANDOM, newest[0].step)]
    return "".join(
        [
            f"<p>{_how_many(rows)} Special tokens are shown by their names, and control characters as "
            "<code>\\x1b</code>, for example.</p>",
            f"<h3>Step {newest[0].step}</h3>",
            *found,
            *_one_prompt(rows),
            *_search(rows),
        ]
    )


def _how_many(rows: Sequence[SampleLine]) -> str:
    steps = steps_of(rows)
    return (
        f"{len(rows):,} responses of {len(steps):,} step{'' if len(steps) == 1 else 's'} are kept, chosen to "
        "have the best, the worst and the longest of each step among them; <code>rljob samples</code> shows "
        "all of them."
    )


def _one_prompt(rows: Sequence[SampleLine]) -> list[str]:
    row = most_seen(rows)
    if row is None:
        return []
    shown = over_time(rows, row, _OVER_TIME)
    return [
        "<h3>The same prompt over time</h3>",
        f"<p>Row {row} of the data; of each step the response with the median reward.</p>",
        _text("prompt", shown[0].prompt, _PROMPT),
        *(_card(each, f"step {each.step}: ", prompt=False) for each in shown),
    ]


def _search(rows: Sequence[SampleLine]) -> list[str]:
    # The newest first.
    found = [rows[index] for index in spread(len(rows), _SEARCHED)][::-1]
    cards = (
        f'<details class="said"><summary>step {row.step}: {_facts(row)}</summary>{_texts(row)}</details>'
        for row in found
    )
    return [
        "<h3>Search</h3>",
        f'<div class="chooser"><input id="find" type="search" placeholder="a part of a prompt or a response" '
        f'aria-label="search"><span class="soft" id="found">{len(found)} responses, spread over the steps'
        "</span></div>",
        f'<div id="said">{"".join(cards)}</div>',
    ]


def _card(row: SampleLine, why: str, prompt: bool = True) -> str:
    texts = _texts(row) if prompt else _text("says", row.response, _RESPONSE)
    return f'<div class="said"><p><b>{escape(why)}</b>{_facts(row)}</p>{texts}</div>'


def _texts(row: SampleLine) -> str:
    return _text("prompt", row.prompt, _PROMPT) + _text("says", row.response, _RESPONSE)


def _facts(row: SampleLine) -> str:
    return escape(" · ".join(filter(None, facts(row))))


def _text(name: str, text: str, most: int) -> str:
    return f'<div class="text"><small>{name}</small><pre>{escape(visible(shortened(text, most)))}</pre></div>'
