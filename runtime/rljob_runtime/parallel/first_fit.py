"""First-fit decreasing: few bins of a fixed size (Johnson, 1973: at most 11/9 of the fewest, and one more).
Pure numpy."""

import numpy as np

from rljob_runtime.parallel.loads import Ints


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
