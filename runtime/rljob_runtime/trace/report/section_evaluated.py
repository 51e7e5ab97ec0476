"""The report on what the model says to prompts that are not trained. Pure: kept responses of evaluations in,
markup out.

Guarantees: those of `said_cards`; of each set equally much is shown, however many evaluations there were.
"""

from collections.abc import Sequence
from html import escape

from rljob_runtime.trace.analyse.said import changed_most, over_time, overview, steps_of
from rljob_runtime.trace.record.sample_log import SampleLine
from rljob_runtime.trace.report.said_cards import card, prompt_text

_AT_RANDOM = 1
"""Responses at random beside the best, the worst and the longest."""
_OVER_TIME = 6
"""Responses to one prompt."""
_FOLLOWED = 800
"""Characters that are shown of each of those."""


def evaluated(rows: Sequence[SampleLine]) -> str:
    """For each set of held-out prompts: some responses of its newest evaluation, and the prompts whose
    rewards rose and fell most, over the evaluations. `rows`: what is kept of all of them, in order of
    steps."""
    names = dict.fromkeys(row.evaluation for row in rows if row.evaluation)
    return "".join(_set(name, [row for row in rows if row.evaluation == name]) for name in names)


def when(row: SampleLine) -> str:
    """`after step 20`, of the evaluation that a response is of."""
    return "initial weights" if row.step == 0 else f"after step {row.step}"


def _set(name: str, rows: Sequence[SampleLine]) -> str:
    newest = [row for row in rows if row.step == rows[-1].step]
    evaluations = len(steps_of(rows))
    cards = [card(row, f"{order}: ") for order, row in overview(newest, _AT_RANDOM, newest[0].step)]
    return "".join(
        [
            f"<h3>Evaluation of {escape(name)}, {when(newest[0])}</h3>",
            f"<p>{len(rows):,} responses of {evaluations:,} evaluation{'' if evaluations == 1 else 's'} are "
            f"kept, to the set's first prompts; <code>rljob samples . --evaluation {escape(name)} --step N "
            "--best</code>, in the run's folder, shows all that are kept of the evaluation after step "
            "N.</p>",
            *cards,
            *(
                _followed(rows, row, f"{escape(name)}: the prompt whose reward {how} most")
                for how, row in changed_most(rows)
            ),
        ]
    )


def _followed(rows: Sequence[SampleLine], row: int, title: str) -> str:
    shown = over_time(rows, row, _OVER_TIME)
    cards = [card(each, f"{when(each)}: ", prompt=False, most=_FOLLOWED) for each in shown]
    return (
        f"<h4>{title}</h4><p>Row {row} of the data; of each evaluation the response with the median reward."
        f"</p>{prompt_text(shown[0])}{''.join(cards)}"
    )
