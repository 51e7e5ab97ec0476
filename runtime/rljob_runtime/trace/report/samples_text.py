"""`rljob samples`: what the model said, as lines of a terminal or as JSON.

Guarantees: reads the run's folder and writes nothing; whatever a model wrote, the terminal prints it and does
nothing else; `--json` prints the lines of `samples.jsonl` that are meant, so escaped that the same is so.
"""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.cells import chop_cells

from rljob_runtime.manifest.load import ManifestError, read
from rljob_runtime.run_folder import MANIFEST
from rljob_runtime.step_numbers import step_number
from rljob_runtime.trace.analyse.said import Order, ordered, overview
from rljob_runtime.trace.record.evaluation_log import EVALUATION_SAMPLES_FILE
from rljob_runtime.trace.record.sample_log import SAMPLES_FILE, SampleLine, Samples, read_samples
from rljob_runtime.trace.report.markup import seconds
from rljob_runtime.view.visible import visible, visible_json

_AT_RANDOM = 2
"""Responses at random beside the best, the worst and the longest."""
_LINE_END = "⏎"
"""Shown where a text has a line end."""
_LEAST_WIDTH = 20


class NoSamples(Exception):
    """There is nothing to show; the message says why and what there is."""


@dataclass(frozen=True)
class Wanted:
    """Which responses are to be shown."""

    step: int | None = None
    """Its number; of evaluations the steps that were done. None: the newest; all steps for one prompt."""
    order: Order | None = None
    """None: the best, the worst, the longest and some at random of a step; of a prompt all in order."""
    uid: int | None = None
    """One group."""
    row: int | None = None
    """The prompt in this row of the data, whichever groups it had."""
    count: int | None = None
    """At most so many."""
    json: bool = False
    evaluation: str | None = None
    """In evaluations: of the set of this name, of all of them where it is empty. None: in training."""


@dataclass(frozen=True)
class Printed:
    """What a person is told."""

    text: str
    left_out: str
    """Which lines of the file could not be read; empty where all could."""


def samples_text(run: Path, wanted: Wanted, width: int) -> Printed:
    """What is printed, in lines of `width` cells. Raises `NoSamples`, and `OSError`."""
    file = EVALUATION_SAMPLES_FILE if wanted.evaluation is not None else SAMPLES_FILE
    kept = _read(run, file)
    if wanted.evaluation is not None:
        rows = _of_evaluations(run, kept.rows, wanted.evaluation)
    elif not (rows := kept.rows):
        raise NoSamples(_why_none(run))
    found = _found(run, rows, wanted)[: wanted.count]
    left_out = f"{run / file}: {_no_responses(kept.unreadable)} left out" if kept.unreadable else ""
    if wanted.json:
        lines = (visible_json(msgspec.json.encode(row).decode()) for _, row in found)
        return Printed("\n".join(lines), left_out)
    return Printed("\n\n".join(_shown(found, max(width, _LEAST_WIDTH))), left_out)


def _no_responses(lines: int) -> str:
    return "1 line is no response, and is" if lines == 1 else f"{lines:,} lines are no responses, and are"


def _of_evaluations(run: Path, rows: list[SampleLine], name: str) -> list[SampleLine]:
    if not rows:
        raise NoSamples(
            f"{run} has no samples of evaluations: {EVALUATION_SAMPLES_FILE} is written when an evaluation "
            "is over, where training.evaluation is set and training.profiling.samplesPerStep is not 0."
        )
    found = [row for row in rows if name in ("", row.evaluation)]
    if not found:
        there = ", ".join(sorted({str(row.evaluation) for row in rows}))
        raise NoSamples(f"{run} has no samples of an evaluation set {name}; there are {there}.")
    return found


def _read(run: Path, name: str) -> Samples:
    found = read_samples(run, name)
    if found.unreadable and not found.rows:
        lines = "1 line" if found.unreadable == 1 else f"{found.unreadable:,} lines"
        raise NoSamples(
            f"{run / name} has {lines}, and none is a response as this release writes them: the file is "
            "damaged, or of another release."
        )
    return found


def _found(run: Path, rows: Sequence[SampleLine], wanted: Wanted) -> list[tuple[str, SampleLine]]:
    """What is meant, each with the word that says why."""
    of_prompt = wanted.uid is not None or wanted.row is not None
    step = wanted.step
    if step is None and not of_prompt:
        step = step_of(rows[-1])
    if step is not None:
        _check_step(run, rows, step)
        rows = [row for row in rows if step_of(row) == step]
    if of_prompt:
        rows = _of_prompt(run, rows, wanted)
    if wanted.order is not None:
        return [(wanted.order, row) for row in ordered(rows, wanted.order, step or 0)]
    if of_prompt:
        return [("", row) for row in rows]
    # With a count there may be more to show than one of each kind.
    at_random = _AT_RANDOM if wanted.count is None else wanted.count
    return [(order, row) for order, row in overview(rows, at_random, step or 0)]


def _check_step(run: Path, rows: Sequence[SampleLine], step: int) -> None:
    steps = sorted({step_of(row) for row in rows})
    if step in steps:
        return
    raise NoSamples(f"{run} has samples of {in_words(steps, step)}, and not of step {step}.")


def in_words(steps: Sequence[int], missing: int) -> str:
    """Which steps there are, ascending, where `missing` is none of them."""
    there = f"{len(steps):,} steps, {steps[0]} to {steps[-1]}"
    if not steps[0] < missing < steps[-1]:
        return there
    before, after = (
        max(each for each in steps if each < missing),
        min(each for each in steps if each > missing),
    )
    return f"{there} (of older ones not all are kept; nearest: {before} and {after})"


def _of_prompt(run: Path, rows: Sequence[SampleLine], wanted: Wanted) -> list[SampleLine]:
    found = [row for row in rows if wanted.uid in (None, row.uid) and wanted.row in (None, row.row)]
    if found:
        return found
    name, asked = ("--prompt", wanted.uid) if wanted.uid is not None else ("--row", wanted.row)
    there = sorted({row.uid if wanted.uid is not None else row.row for row in rows})
    some = ", ".join(map(str, there[:8])) + (", …" if len(there) > 8 else "")
    raise NoSamples(f"{run}: nothing is kept of {name} {asked}; there are {some}.")


def _why_none(run: Path) -> str:
    try:
        kept = read(run / MANIFEST).job.spec.training.profiling.samples_per_step
    except ManifestError:
        kept = None
    if kept == 0:
        return f"{run} keeps no samples: training.profiling.samplesPerStep is 0 in {run / MANIFEST}."
    return f"{run} has no samples yet: {SAMPLES_FILE} is written once a step is trained."


def _shown(found: Sequence[tuple[str, SampleLine]], width: int) -> list[str]:
    """Each response with its prompt, which is left out where it is the one above."""
    parts, above = [], None
    for why, row in found:
        # Indented, so that nothing that is quoted in a heading looks like the beginning of another.
        lines = textwrap.wrap(_heading(why, row), width, subsequent_indent="  ")
        if (row.uid, row.step) != above:
            lines += _boxed("prompt", row.prompt, width)
        above = row.uid, row.step
        lines += _boxed("says", row.response, width)
        parts.append("\n".join(lines))
    return parts


def _heading(why: str, row: SampleLine) -> str:
    return " · ".join(filter(None, [f"step {step_of(row)}", why, *facts(row)]))


def step_of(row: SampleLine) -> int:
    """The number of the step in which a response was trained; of one of an evaluation the number of the step
    after which it was made, 0 where none was done."""
    return row.step if row.evaluation else step_number(row.step)


def facts(row: SampleLine) -> list[str]:
    """What is known of a response beside its text, each in a few words."""
    failure = " ".join((row.failure or "").split())
    reward = f"no reward ({visible(failure)})" if row.reward is None else f"reward {row.reward:.4g}"
    if row.reward_parts:
        reward += f" ({_numbers(row.reward_parts)})"
    return [
        reward,
        _numbers(row.reward_metrics),
        f"evaluation of {row.evaluation}" if row.evaluation else f"advantage {row.advantage:+.3g}",
        f"{row.tokens:,} token{'' if row.tokens == 1 else 's'}, {_FINISH[row.finish]}",
        f"prompt {row.uid} (row {row.row}, response {row.index})",
        visible(row.engine),
        _versions(row),
        seconds(row.seconds),
    ]


def _versions(row: SampleLine) -> str:
    if row.first_version is None:
        return ""
    versions = f"version {row.first_version}"
    if row.last_version != row.first_version:
        versions += f" to {row.last_version}"
    return versions if row.evaluation else f"{versions}, trained with {row.trained_with}"


def _numbers(values: Mapping[str, float | None]) -> str:
    """`correct 1, format 0.5`, in the order in which they were returned."""
    # Zero is added so that none is shown as -0.
    return ", ".join(
        f"{visible(name)} {'none' if value is None else f'{value + 0.0:.4g}'}"
        for name, value in values.items()
    )


_FINISH = {"stop": "ended by itself", "length": "cut off at the limit", "abort": "aborted"}


def _boxed(name: str, text: str, width: int) -> list[str]:
    """A text in lines behind its name."""
    head, room = f"  {name:<7}│ ", width - 11
    lines = []
    parts = visible(text).expandtabs(4).split("\n")
    for number, part in enumerate(parts):
        ended = part + (_LINE_END if number + 1 < len(parts) else "")
        # By hand: textwrap would drop the spaces at which it breaks, which may matter here.
        lines += chop_cells(ended, room) or [""]
    indent = f"  {'':<7}│ "
    return [(head if number == 0 else indent) + line for number, line in enumerate(lines)]
