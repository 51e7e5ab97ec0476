"""Means of rewards, and of what they have by name. Pure.

Guarantees: where a mean is 0 but for how the numbers were rounded, it is 0.
"""

import math
import sys
from collections.abc import Iterable, Mapping, Sequence

_ROUNDED = 4 * sys.float_info.epsilon
"""What a number may lack of what it stands for, relative to it, that a few operations gave."""


def mean(values: Sequence[float]) -> float:
    """Of one number or more, all of them finite."""
    try:
        total, sizes = math.fsum(values), math.fsum(map(abs, values))
    except OverflowError:
        # Their sum is too large for a float, and their mean is not.
        return math.fsum(value / len(values) for value in values)
    # One number is as it was given.
    if len(values) > 1 and abs(total) <= _ROUNDED * sizes:
        return 0.0
    return total / len(values)


def means_by_name(values: Iterable[Mapping[str, float | None]]) -> dict[str, float]:
    """Of each name the mean over the responses that have a value, in the order of names; none of a name that
    no response has a value of."""
    found: dict[str, list[float]] = {}
    for each in values:
        for name, value in each.items():
            if value is not None:
                found.setdefault(name, []).append(value)
    return {name: mean(found[name]) for name in sorted(found)}
