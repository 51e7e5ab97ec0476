"""The report on what the model says: responses as text. Pure: kept responses in, markup out.

Guarantees: those of `said_cards`; the section's size does not grow with the run, nor with the length of its
responses.
"""

from collections.abc import Sequence

from rljob_runtime.trace.analyse.said import most_seen, over_time, overview, spread, steps_of
from rljob_runtime.trace.record.sample_log import SampleLine
from rljob_runtime.trace.report.said_cards import card, folded, prompt_text
from rljob_runtime.trace.report.samples_text import step_of
from rljob_runtime.trace.report.section_evaluated import evaluated, when

_AT_RANDOM = 3
"""Responses at random beside the best, the worst and the longest."""
_OVER_TIME = 8
"""Responses to one prompt."""
_SEARCHED = 120
"""Responses that the box searches, of those that were trained."""
_SEARCHED_EVALUATED = 60
"""And of those of evaluations."""


def says(rows: Sequence[SampleLine], kept: int | None, held_out: Sequence[SampleLine] = ()) -> str:
    """The section. `rows`: what is kept of the run, in order of steps; `kept`: its `samplesPerStep`, None
    where it is not known; `held_out`: what is kept of its evaluations, in order of steps."""
    return "".join([_trained(rows, kept), evaluated(held_out), *_search(rows, held_out)])


def _trained(rows: Sequence[SampleLine], kept: int | None) -> str:
    """Of the steps that were trained."""
    if not rows:
        why = (
            "training.profiling.samplesPerStep is 0" if kept == 0 else "no step has been trained, or recorded"
        )
        return f"<p>No response is kept: {why}.</p>"
    newest = [row for row in rows if row.step == rows[-1].step]
    found = [card(row, f"{order}: ") for order, row in overview(newest, _AT_RANDOM, newest[0].step)]
    return "".join(
        [
            f"<p>{_how_many(rows)} Special tokens are shown by their names, and control characters as "
            "<code>\\x1b</code>, for example.</p>",
            f"<h3>Step {step_of(newest[0])}</h3>",
            *found,
            *_one_prompt(rows),
        ]
    )


def _how_many(rows: Sequence[SampleLine]) -> str:
    steps = steps_of(rows)
    return (
        f"{len(rows):,} responses of {len(steps):,} step{'' if len(steps) == 1 else 's'} are kept, chosen to "
        "have the best, the worst and the longest of each step among them; <code>rljob samples . --step N "
        "--best</code>, in the run's folder, shows all of step N, the best first."
    )


def _one_prompt(rows: Sequence[SampleLine]) -> list[str]:
    row = most_seen(rows)
    if row is None:
        return []
    shown = over_time(rows, row, _OVER_TIME)
    return [
        "<h3>The same prompt over time</h3>",
        f"<p>Row {row} of the data; of each step the response with the median reward.</p>",
        prompt_text(shown[0]),
        *(card(each, f"step {step_of(each)}: ", prompt=False) for each in shown),
    ]


def _search(rows: Sequence[SampleLine], held_out: Sequence[SampleLine]) -> list[str]:
    # The newest first.
    trained = [rows[index] for index in spread(len(rows), _SEARCHED)][::-1]
    of_evaluations = [held_out[index] for index in spread(len(held_out), _SEARCHED_EVALUATED)][::-1]
    count = len(trained) + len(of_evaluations)
    if not count:
        return []
    cards = [folded(row, f"step {step_of(row)}: ") for row in trained]
    cards += [folded(row, f"{when(row)}: ") for row in of_evaluations]
    return [
        "<h3>Search</h3>",
        f'<div class="chooser"><input id="find" type="search" placeholder="a part of a prompt or a response" '
        f'aria-label="search"><span class="soft" id="found">{count} responses, spread over the steps'
        f"{' and evaluations' if of_evaluations else ''}</span></div>",
        f'<div id="said">{"".join(cards)}</div>',
    ]
