"""What goes of a record that has become too large: of its older part every second unit, again and again.

Units are steps or groups, by their numbers: they ascend with time. So a long run keeps its newest units
densely and older ones ever more thinly. Pure.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray


def thinned(bytes_of: Mapping[int, int], wanted: int, most: int) -> set[int]:
    """Which units stay when every second one goes, from the second oldest on, until those that stay have
    `wanted` bytes or fewer; none where a single one has more than `most`. `bytes_of`: of each unit."""
    units = sorted(bytes_of)
    while len(units) > 1 and sum(bytes_of[unit] for unit in units) > wanted:
        # From the newest backwards, so that it is among those that stay.
        units = units[::-1][::2][::-1]
    return set(units) if sum(bytes_of[unit] for unit in units) <= most else set()


def thinned_between(bytes_of: NDArray[np.int64], wanted: int, first: int, newest: int) -> NDArray[np.bool_]:
    """Which units stay when every second one goes, again and again, of those between the first ones, which
    have `first` bytes, and the newest ones, which have `newest`, until all that stay have `wanted` bytes or
    none between them is left. `bytes_of`: shape (units,), in the order of their numbers; the same shape is
    returned. The first and the newest unit always stay where there are such bytes."""
    stays = np.ones(len(bytes_of), bool)
    upto = np.cumsum(bytes_of)
    total = int(upto[-1]) if len(upto) else 0
    # A unit is of the first ones if it begins within their bytes, and of the newest if it ends within theirs.
    between = np.flatnonzero((upto - bytes_of >= first) & (total - upto >= newest))
    while len(between) and int(bytes_of[stays].sum()) > wanted:
        # From the second newest backwards: the newest of them is beside those that stay.
        stays[between[-2::-2] if len(between) > 1 else between] = False
        between = between[stays[between]]
    return stays
