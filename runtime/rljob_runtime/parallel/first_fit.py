"""First-fit decreasing: few bins of a fixed size (Johnson, 1973: at most 11/9 of the fewest, and one more),
and a number of bins that is needed at least. Pure numpy."""

import numpy as np

from rljob_runtime.parallel.loads import Ints

_PARTS = 16
"""Up to how many items of like size to a bin are counted; of smaller ones their sum says nearly as much."""


def first_fit(sizes: Ints, cap: int) -> Ints:
    """The bin of each item, shape (items,): each, the largest first, goes to the first bin with room for it.
    Sizes are at most `cap`; bins are numbered from 0, as they are opened."""
    bin_of = np.empty(len(sizes), np.int64)
    free = np.empty(len(sizes), np.int64)
    bins = 0
    for item in np.argsort(-sizes, kind="stable").tolist():
        size = sizes[item]
        fits = free[:bins] >= size
        place = int(fits.argmax()) if bins else 0
        if not bins or not fits[place]:
            place, bins = bins, bins + 1
            free[place] = cap
        bin_of[item] = place
        free[place] -= size
    return bin_of


def fewest_bins(sizes: Ints, cap: int) -> int:
    """Bins without which the items, of at most `cap` each, cannot be packed: the most that the sum of their
    sizes, or of what `_by_parts` has in their place, asks for."""
    least = -(-int(sizes.sum()) // cap)
    return max(least, *(_by_parts(sizes, cap, parts) for parts in range(1, _PARTS + 1)))


def _by_parts(sizes: Ints, cap: int, parts: int) -> int:
    """Fekete and Schepers, 2001: with k the `parts`, an item of which (k + 1) · size / cap is whole keeps its
    size, and another one counts with the whole part of that as a share of k. What fits into a bin sums to no
    more than one bin so: items of more than half a bin are one each, of more than a third half a bin, and so
    on."""
    scaled = sizes * (parts + 1)
    shares, kept = scaled // cap, scaled % cap == 0
    # In k · (k + 1)-ths of a bin.
    total = int((shares * np.where(kept, parts, parts + 1)).sum())
    return -(-total // (parts * (parts + 1)))
