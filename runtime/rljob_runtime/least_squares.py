"""Non-negative least squares: constants of a cost model from measurements. Pure."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Fit(NamedTuple):
    """A linear model without negative coefficients."""

    coefficients: Floats
    r_squared: float
    """Share of the targets' variance that the model explains; 1 where they do not vary and are met."""


def fit_nonnegative(features: Floats, targets: Floats) -> Fit:
    """The coefficients, each at least 0, with which features @ coefficients is nearest to `targets`: Lawson
    and Hanson's active-set method (Solving Least Squares Problems, 1974, chapter 23).

    `features` is [measurements, coefficients]. Raises `ValueError` where there are fewer measurements than
    coefficients."""
    count, size = features.shape
    if count < size:
        raise ValueError(f"there must be at least {size} measurements (found {count})")
    # Columns of one scale: seconds per step and seconds per KV token are six orders apart.
    scale = np.sqrt((features**2).sum(axis=0))
    scale[scale == 0] = 1.0
    scaled = features / scale
    found = np.zeros(size)
    free = np.zeros(size, dtype=bool)
    tolerance = 1e-10 * max(1.0, float(np.abs(scaled.T @ targets).max()))
    for _ in range(10 * size):
        gradient = scaled.T @ (targets - scaled @ found)
        gradient[free] = -np.inf
        best = int(np.argmax(gradient))
        if free.all() or gradient[best] <= tolerance:
            break
        free[best] = True
        while (trial := _solve(scaled, targets, free))[free].min() <= 0:
            # Go as far towards the solution as no coefficient becomes negative; those that reach 0 are fixed.
            falling = free & (trial <= 0)
            share = float((found[falling] / (found[falling] - trial[falling])).min())
            found = found + share * (trial - found)
            free &= found > 1e-12
            found[~free] = 0.0
            if not free.any():
                trial = found
                break
        found = trial
    return Fit(found / scale, explained(targets, scaled @ found))


def _solve(features: Floats, targets: Floats, free: NDArray[np.bool_]) -> Floats:
    """The least-squares solution in the free coefficients; the others are 0."""
    found = np.zeros(features.shape[1])
    found[free] = np.linalg.lstsq(features[:, free], targets, rcond=None)[0]
    return found


def explained(targets: Floats, predicted: Floats) -> float:
    """R²: the share of the targets' variance that a prediction explains; 1 where they do not vary and are
    met, below 0 where their mean would have been better."""
    missed = float(((targets - predicted) ** 2).sum())
    spread = float(((targets - targets.mean()) ** 2).sum())
    if spread == 0:
        return 1.0 if missed <= 1e-12 * max(1.0, float((targets**2).sum())) else 0.0
    return 1.0 - missed / spread
