"""The cost model's constants from passes that were measured.

The formula is linear in its constants, so they are found by least squares with none of them negative. Beside
the measured passes stand a few of the prior's, scaled to the speed that was measured: they decide where
nothing was measured (a degree that was not yet used, lengths that did not come), and weigh little elsewhere.
Each degree is scaled by its own passes: a device that computes a thousand times slower than the prior's need
not be as much slower in what sharing costs. Scaled by the others', guesses could be so far below what was
measured that a few of them, whose errors have no bound, decide against all passes of their degree.
Errors count relative to a pass's seconds, so that long passes do not drown short ones, and a pass that was
held up by something else does not decide.

Where passes of samples of about one length were measured, the table of `CostTable` corrects the formula.
Pure.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from rljob_runtime.least_squares import explained, fit_nonnegative
from rljob_runtime.parallel.cost_model import CostModel, CostTable, Floats, Ints, padded

_PRIOR_LENGTHS = (128, 512, 2048, 8192, 32768, 131072)
_PRIOR_WEIGHT = 0.2
"""Of each of the prior's passes, where a measured one has 1."""
_ROWS = 64
_DIGITS = 6
"""To which constants are rounded: processors of other makes differ in the last digits of a fit, and ranks
that fit the same passes must come to the same constants."""
_ALIKE = 0.8
"""Shortest by longest sample from which the samples of a pass count as of one length."""
_ENOUGH = 8
"""Passes of about one length before the table has an entry for it, and of one degree before it has a scale of
its own."""
_OCTAVE = 2
"""Entries of the table within a doubling of the length."""
_BOUNDS = (0.25, 4.0)
"""Of the table's corrections; more is a disturbance."""


@dataclass(frozen=True)
class MeasuredPass:
    """A pass of at least one sample and how long it took, which is more than no time."""

    degree: int
    lengths: tuple[int, ...]
    """Of its samples, in tokens, without padding."""
    seconds: float
    """Forward and backward, of the rank of the group that waited least."""


class Fit(NamedTuple):
    """A cost model with how well it explains what it was fitted to."""

    model: CostModel
    r_squared: float
    """Share of the variance of the passes' seconds that the model explains."""


def fit_passes(measured: Sequence[MeasuredPass], prior: CostModel, largest_degree: int) -> Fit:
    """The model for degrees up to `largest_degree`, from at least one pass."""
    if not measured:
        raise ValueError("there is no measured pass to fit a cost model to")
    levels = max(1, largest_degree).bit_length()
    passes = _Passes(measured)
    scales = scales_of(measured, passes.seconds / passes.predicted(prior), levels)
    guessed = _Passes(
        [
            MeasuredPass(1 << level, (length,), scale * prior.seconds([length], 1 << level))
            for level, scale in enumerate(scales)
            for length in _PRIOR_LENGTHS
        ]
    )
    constants = _constants([(passes, 1.0), (guessed, _PRIOR_WEIGHT)], levels)
    formula = CostModel(
        constants[0],
        constants[1],
        constants[2],
        shared_pass=(0.0, *constants[3 : 2 + levels]),
        shared_token=(0.0, *constants[2 + levels :]),
    )
    model = replace(formula, table=_table(passes, formula))
    return Fit(model, explained(passes.seconds, passes.predicted(model)))


class _Passes:
    """Passes as arrays, so that thousands of them take milliseconds."""

    def __init__(self, passes: Sequence[MeasuredPass]) -> None:
        self.seconds: Floats = np.array([each.seconds for each in passes])
        """Of each pass."""
        self.degrees = np.array([each.degree for each in passes])
        self.mean_lengths: Floats = np.empty(len(passes))
        """Of each pass's samples, in tokens."""
        self.alike = np.empty(len(passes), dtype=np.bool_)
        """Whether a pass's samples count as of one length."""
        self._degrees: dict[int, tuple[Ints, Ints, Ints]] = {}
        """For each degree: which passes have it, all their samples' lengths, and where each pass's begin."""
        places: dict[int, list[int]] = {}
        for place, each in enumerate(passes):
            places.setdefault(each.degree, []).append(place)
        for degree, found in sorted(places.items()):
            lengths = np.array([n for place in found for n in passes[place].lengths], dtype=np.int64)
            counts = np.array([len(passes[place].lengths) for place in found])
            starts = np.cumsum(counts) - counts
            self._degrees[degree] = np.array(found), lengths, starts
            shortest, longest = (each.reduceat(lengths, starts) for each in (np.minimum, np.maximum))
            self.alike[found] = shortest >= _ALIKE * longest
            self.mean_lengths[found] = np.add.reduceat(lengths, starts) / counts

    def predicted(self, model: CostModel) -> Floats:
        """The seconds of each pass by a model."""
        seconds = np.empty(len(self.seconds))
        for degree, (places, lengths, starts) in self._degrees.items():
            samples = np.add.reduceat(model.sample_seconds(lengths, degree), starts)
            seconds[places] = model.pass_seconds(degree) + samples
        return seconds

    def features(self, levels: int) -> Floats:
        """For each pass what each constant is multiplied with: those of `CostModel` in their order, of each
        of the last two the degrees 2, 4, and so on."""
        rows = np.zeros((len(self.seconds), 1 + 2 * levels))
        rows[:, 0] = 1.0
        for degree, (places, lengths, starts) in self._degrees.items():
            tokens = padded(lengths, degree).astype(np.float64)
            sums = np.add.reduceat(tokens, starts)
            rows[places, 1] = sums / degree
            rows[places, 2] = np.add.reduceat(tokens * tokens, starts) / degree
            level = min(degree.bit_length(), levels) - 1
            if level:
                rows[places, 2 + level] = 1.0
                rows[places, 1 + levels + level] = sums
        return rows


def scales_of(measured: Sequence[MeasuredPass], ratios: Floats, levels: int) -> list[float]:
    """By what the prior is multiplied for the degrees 1, 2, 4, and so on: the median of its passes' `ratios`,
    of the nearest degree of which there are enough passes, or of all passes where there is none."""
    found: dict[int, list[float]] = {}
    for each, ratio in zip(measured, ratios.tolist(), strict=True):
        found.setdefault(min(each.degree.bit_length(), levels) - 1, []).append(ratio)
    known = {level: float(np.median(row)) for level, row in sorted(found.items()) if len(row) >= _ENOUGH}
    if not known:
        return [float(np.median(ratios))] * levels
    # Of two that are as near the lower one.
    nearest = (min((abs(other - level), other) for other in known)[1] for level in range(levels))
    return [known[level] for level in nearest]


def _constants(parts: Sequence[tuple[_Passes, float]], levels: int) -> list[float]:
    """The constants that fit passes with these weights best."""
    rows = []
    for passes, weight in parts:
        both = np.column_stack([passes.features(levels), passes.seconds])
        rows.append(both * (weight / passes.seconds)[:, None])
    # The triangle of a QR decomposition has the same least squares as the many rows that it was made of. Of
    # few rows at a time: for many, the library would wake threads that the trainer's own work needs.
    together: Floats = np.concatenate(rows)
    triangle = together[:0]
    for start in range(0, len(together), _ROWS):
        both = np.concatenate([triangle, together[start : start + _ROWS]])
        triangle = np.linalg.qr(both, mode="reduced").R
    found = fit_nonnegative(triangle[:, :-1], triangle[:, -1]).coefficients
    return [float(f"{value:.{_DIGITS}g}") for value in found]


def _table(passes: _Passes, formula: CostModel) -> CostTable:
    """Corrections where enough passes of about one length were measured."""
    constants = {degree: formula.pass_seconds(degree) for degree in set(passes.degrees.tolist())}
    fixed = np.array([constants[degree] for degree in passes.degrees.tolist()])
    whole = passes.predicted(formula)
    # Where the pass's constant is most of it, it tells little of its samples.
    telling = passes.alike & (whole > 2 * fixed)
    ratios = (passes.seconds - fixed)[telling] / (whole - fixed)[telling]
    columns = (each.tolist() for each in (passes.degrees[telling], passes.mean_lengths[telling], ratios))
    found: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for degree, length, ratio in zip(*columns, strict=True):
        found.setdefault((degree, int(_OCTAVE * math.log2(length))), []).append((length, ratio))
    entries: dict[int, list[tuple[float, float]]] = {}
    for (degree, _), rows in sorted(found.items()):
        if len(rows) >= _ENOUGH:
            length, ratio = (float(f"{np.median(column):.{_DIGITS}g}") for column in zip(*rows, strict=True))
            entries.setdefault(degree, []).append((length, min(max(ratio, _BOUNDS[0]), _BOUNDS[1])))
    return CostTable({degree: tuple(rows) for degree, rows in entries.items()})


class OnlineFit:
    """The model of the latest passes, fitted anew as they come."""

    def __init__(self, prior: CostModel, largest_degree: int, *, window: int = 2048, every: int = 32) -> None:
        """`window` passes are remembered, and the model is fitted after each `every` of them."""
        self.model = prior
        """The prior, until passes were measured."""
        self.r_squared: float | None = None
        """Of the last fit; None before it."""
        self._prior = prior
        self._largest = largest_degree
        self._every = every
        self._passes: deque[MeasuredPass] = deque(maxlen=window)
        self._new = 0

    def add(self, passes: Iterable[MeasuredPass]) -> None:
        """Remember passes, and fit where enough are new. Those without samples, or that took no time, tell
        nothing."""
        for each in passes:
            if 0 < each.seconds < math.inf and each.lengths:
                self._passes.append(each)
                self._new += 1
        if self._new >= self._every:
            self.model, self.r_squared = fit_passes(tuple(self._passes), self._prior, self._largest)
            self._new = 0
