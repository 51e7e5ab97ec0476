"""A kept response as markup: what is known of it, and its text. Pure.

Guarantees: whatever a model wrote stands there as text, and nothing of it acts; a long text is cut in its
middle.
"""

from html import escape

from rljob_runtime.trace.analyse.said import shortened
from rljob_runtime.trace.record.sample_log import SampleLine
from rljob_runtime.trace.report.samples_text import facts
from rljob_runtime.view.visible import visible

_PROMPT, RESPONSE = 600, 2000
"""Characters that are shown of each, half of them from its end."""


def card(row: SampleLine, why: str, prompt: bool = True, most: int = RESPONSE) -> str:
    """A response, with its prompt where that is wanted. `why` it is shown stands before what is known of it;
    `most`: characters of the response."""
    asked = prompt_text(row) if prompt else ""
    return (
        f'<div class="said"><p><b>{escape(why)}</b>{known(row)}</p>{asked}{_text("says", row.response, most)}'
        "</div>"
    )


def folded(row: SampleLine, why: str) -> str:
    """A response of which only what is known of it shows, until it is opened."""
    return (
        f'<details class="said"><summary>{escape(why)}{known(row)}</summary>'
        f"{prompt_text(row)}{_text('says', row.response, RESPONSE)}</details>"
    )


def known(row: SampleLine) -> str:
    """What is known of a response beside its text."""
    return escape(" · ".join(filter(None, facts(row))))


def prompt_text(row: SampleLine) -> str:
    """The prompt of a response."""
    return _text("prompt", row.prompt, _PROMPT)


def _text(name: str, text: str, most: int) -> str:
    return f'<div class="text"><small>{name}</small><pre>{escape(visible(shortened(text, most)))}</pre></div>'
