"""What `engine_refill` makes of the steps of an engine that is kept full. Pure."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.bench.figures import Figure
from tests.bench.refill_clock import Taken


@dataclass(frozen=True)
class Phase:
    """Some seconds of an engine."""

    tokens: int
    seconds: float
    between: Sequence[float]
    """Seconds between two steps' outputs."""
    mixed: int
    """Steps with tokens of prompts."""
    waits: Sequence[float]
    """Seconds until the first token, of requests that got it."""


def phase(taken: Taken, since: float, full: int | None = None) -> Phase:
    """Of what an engine core recorded from `since` on; `full`: of steps alone that compute no prompt and draw
    so many tokens."""
    steps = [step for step in taken.steps if step.ended >= since]
    pairs = [
        (before, after)
        for before, after in pairwise(steps)
        if full is None or (after.prompt_tokens == 0 and after.tokens == full)
    ]
    between = [after.ended - before.ended for before, after in pairs]
    return Phase(
        sum(step.tokens for _, step in pairs),
        sum(between),
        between,
        sum(step.prompt_tokens > 0 for _, step in pairs),
        [wait for when, wait in taken.waits if when >= since],
    )


def together(phases: Sequence[Phase]) -> Phase:
    """Several as one."""
    return Phase(
        sum(each.tokens for each in phases),
        sum(each.seconds for each in phases),
        [one for each in phases for one in each.between],
        sum(each.mixed for each in phases),
        [one for each in phases for one in each.waits],
    )


def rows(title: str, bare: Phase, off: Sequence[Phase], on: Sequence[Phase]) -> list[Figure]:
    """Of one engine with so many requests in flight: steps without prompts, then without and with the gate,
    which has what is without for its baseline. Of phases that did not come about there is nothing."""
    made = _figures(f"{title}, nothing replaced", bare, None)[:3]
    without = together(off)
    made += _figures(f"{title}, gate off", without, None)
    return made + _figures(f"{title}, gate on", together(on), without)


def _figures(title: str, phase: Phase, baseline: Phase | None) -> list[Figure]:
    if not phase.between:
        return []
    values = _values(phase)
    base = _values(baseline) if baseline is not None and baseline.between else {}
    return [
        Figure(f"{title}: {name}", value, unit, base.get((name, unit)))
        for (name, unit), value in values.items()
    ]


def _values(phase: Phase) -> dict[tuple[str, str], float]:
    """By name and unit."""
    found = {
        ("tokens", "tokens/s"): phase.tokens / phase.seconds,
        ("between two steps: median", "ms"): 1e3 * statistics.median(phase.between),
        ("between two steps: mean", "ms"): 1e3 * statistics.mean(phase.between),
        ("steps with prompts", "share"): phase.mixed / len(phase.between),
    }
    if phase.waits:
        found["wait for the first token: mean", "ms"] = 1e3 * statistics.mean(phase.waits)
    return found
