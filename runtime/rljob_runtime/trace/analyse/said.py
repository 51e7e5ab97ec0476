"""Which of the kept responses are shown: the best of a step, the longest, those of one prompt. Pure."""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from statistics import fmean
from typing import Literal

from rljob_runtime.trace.record.sample_log import SampleLine

Order = Literal["best", "worst", "longest", "random"]
"""What is looked for."""


def steps_of(rows: Sequence[SampleLine]) -> list[int]:
    """The steps that something is kept of, ascending."""
    return sorted({row.step for row in rows})


def ordered(rows: Sequence[SampleLine], order: Order, seed: int = 0) -> list[SampleLine]:
    """The rows that may be meant, those first that are meant most; without a reward none is best or worst.
    Among equals, and for `random`, a generator of `seed` draws."""
    drawn = list(rows)
    random.Random(seed).shuffle(drawn)
    rewarded = [row for row in drawn if row.reward is not None]
    found: Mapping[Order, Callable[[], list[SampleLine]]] = {
        "best": lambda: sorted(rewarded, key=lambda row: -(row.reward or 0.0)),
        "worst": lambda: sorted(rewarded, key=lambda row: row.reward or 0.0),
        "longest": lambda: sorted(drawn, key=lambda row: -row.tokens),
        "random": lambda: drawn,
    }
    return found[order]()


def overview(rows: Sequence[SampleLine], at_random: int, seed: int = 0) -> list[tuple[Order, SampleLine]]:
    """The best, the worst and the longest of the rows and some at random; each row once."""
    shown: dict[tuple[int, int, int], tuple[Order, SampleLine]] = {}
    drawn: Order = "random"
    orders: list[Order] = ["best", "worst", "longest", *[drawn] * at_random]
    for order in orders:
        for row in ordered(rows, order, seed):
            if _place(row) not in shown:
                shown[_place(row)] = (order, row)
                break
    return list(shown.values())


def most_seen(rows: Sequence[SampleLine]) -> int | None:
    """The row of the data whose prompt was kept in most steps, the first of them; None where no prompt was
    kept in more than one."""
    counts = Counter(row for row, _ in {(row.row, row.step) for row in rows})
    if not counts or max(counts.values()) < 2:
        return None
    most = max(counts.values())
    return min(row for row, count in counts.items() if count == most)


def changed_most(rows: Sequence[SampleLine]) -> list[tuple[Literal["rose", "fell"], int]]:
    """The rows of the data whose prompts' mean reward rose most from the first to the last step that they
    were kept in, and fell most; none where none did, and of equals the first."""
    rewards: dict[int, dict[int, list[float]]] = {}
    for each in rows:
        if each.reward is not None:
            rewards.setdefault(each.row, {}).setdefault(each.step, []).append(each.reward)
    change = {
        row: fmean(steps[max(steps)]) - fmean(steps[min(steps)])
        for row, steps in sorted(rewards.items())
        if len(steps) > 1
    }
    found: list[tuple[Literal["rose", "fell"], int]] = []
    rose, fell = (
        max(change, key=change.__getitem__, default=0),
        min(change, key=change.__getitem__, default=0),
    )
    if change.get(rose, 0.0) > 0:
        found.append(("rose", rose))
    if change.get(fell, 0.0) < 0:
        found.append(("fell", fell))
    return found


def over_time(rows: Sequence[SampleLine], row: int, most: int) -> list[SampleLine]:
    """The responses to a prompt, one of each step, spread evenly over up to `most` steps, the first and the
    last among them. Of a step's it is the one with the median reward."""
    of_prompt = sorted((each for each in rows if each.row == row), key=lambda each: each.step)
    each_step = [_median(list(group)) for _, group in groupby(of_prompt, key=lambda each: each.step)]
    return [each_step[index] for index in spread(len(each_step), most)]


def spread(count: int, most: int) -> list[int]:
    """Up to `most` of the indices below `count`, evenly, the first and the last among them."""
    if count <= most:
        return list(range(count))
    if most <= 1:
        return [count - 1][:most]
    return [round(index * (count - 1) / (most - 1)) for index in range(most)]


def shortened(text: str, most: int) -> str:
    """The text, of a longer one than `most` characters the first and the last half of so many."""
    left_out = len(text) - most
    if left_out <= 0:
        return text
    return f"{text[: most // 2]}\n[... {left_out:,} characters left out ...]\n{text[-(most // 2) :]}"


def _median(rows: list[SampleLine]) -> SampleLine:
    rewarded = sorted((row for row in rows if row.reward is not None), key=lambda row: row.reward or 0.0)
    found = rewarded or rows
    return found[len(found) // 2]


def _place(row: SampleLine) -> tuple[int, int, int]:
    return row.step, row.uid, row.index
