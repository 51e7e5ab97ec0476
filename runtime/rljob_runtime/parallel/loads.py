"""What bins carry: costs that sum exactly, and loads. Pure numpy.

A *bin* is whatever items are dealt to: a rank, a micro-batch, an update. Which bin has which item is an array
`bin_of` of shape (items,), int64.
"""

import math
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ints: TypeAlias = NDArray[np.int64]

EXACT = 2**52
"""Integer costs may sum up to this: float64 holds every sum below it, in whatever order it is made."""
_SCALED = 2**44
"""What fractions sum to when they are made whole. Below `EXACT`, so that constants can be added."""


def integer_costs(costs: ArrayLike) -> Ints:
    """Costs as integers, so that loads do not depend on the order of additions and all ranks that have the
    same costs decide alike.

    Integers are kept as they are. Fractions are scaled such that all together make up about 2**44: costs that
    differ by less than 2**-44 of the total are the same. Raises `ValueError` for costs that are negative,
    not finite, or not in one row, and for integers that sum to more than 2**52.
    """
    values = np.asarray(costs)
    if values.size == 0:
        return np.empty(0, np.int64)
    if values.ndim != 1:
        raise ValueError(f"costs have shape {values.shape}, and must be one number for each item")
    if not np.isfinite(values).all() or values.min() < 0:
        index = int(np.flatnonzero(~np.isfinite(values) | (values < 0))[0])
        raise ValueError(f"the cost of item {index} is {values[index]}: costs must be finite, 0 or more")
    # In float64, which does not wrap around; good enough for a limit that leaves half a bit.
    total = float(values.sum(dtype=np.float64))
    if values.dtype.kind in "iub":
        if total > EXACT:
            raise ValueError(f"costs sum to {total:.6g}, above 2**52: give them in a larger unit")
        return values.astype(np.int64)
    largest = float(values.max())
    if largest == 0:
        return np.zeros(len(values), np.int64)
    # By the largest first: the total of huge costs may be infinite. `fsum` is exact, so that processors that
    # add in another order give the same integers.
    shares = values.astype(np.float64) / largest
    return np.floor(shares * (_SCALED / math.fsum(shares.tolist()))).astype(np.int64)


def loads_of(bin_of: Ints, costs: Ints, bins: int) -> Ints:
    """The sum of each bin's costs, shape (bins,). Costs are those of `integer_costs`."""
    return np.bincount(bin_of, weights=costs, minlength=bins).astype(np.int64)


def members_of(bin_of: Ints, bins: int) -> list[tuple[int, ...]]:
    """The items of each bin, ascending."""
    order = np.argsort(bin_of, kind="stable")
    edges = np.searchsorted(bin_of[order], np.arange(1, bins))
    return [tuple(part.tolist()) for part in np.split(order, edges)]
