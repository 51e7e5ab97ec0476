"""Seconds of a forward and backward pass, by the lengths of its samples and the ranks that share it.

A pass that `degree` ranks share takes on each of them

    per_pass + per_token · T / degree + per_square · S / degree
             + shared_pass[degree] + shared_token[degree] · T          (the last two where degree > 1)

T are the pass's tokens and S is the sum of the squares of its samples' lengths (attention: a token attends to
all before it, in its own sample). The last two terms are what sharing costs: latencies of collectives; and
volume of keys and values, together with attention kernels that get less efficient as their pieces shrink.
Each is a number of its own for every degree, for groups of 8 and of 16 ranks can have different links between
them. So a pass costs a constant and a share for each sample.

A table of what was measured corrects the shares of samples by their length. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def padded(lengths: Ints, degree: int) -> Ints:
    """Tokens of samples as `degree` ranks share them: up to a multiple of twice the degree, so that each rank
    gets two equal pieces of each. A rank alone needs no padding."""
    if degree == 1:
        return lengths
    return -(-lengths // (2 * degree)) * (2 * degree)


@dataclass(frozen=True)
class ModelShape:
    """What of a model decides how much a token costs."""

    layers: int
    parameters: int
    """That a token is multiplied with: all but the input embedding; of experts only those that it uses."""
    query_width: int
    """Query heads times the width of a head."""
    key_value_width: int
    """Key heads times the width of a head."""


@dataclass(frozen=True)
class CostTable:
    """By what the formula's seconds of a sample are multiplied, as measured at some lengths."""

    entries: Mapping[int, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    """For each degree lengths in tokens, ascending, with their factors. Between two lengths the factor is
    interpolated, beyond the first and last it stays; a degree without entries has 1."""

    def factors(self, lengths: Ints, degree: int) -> Floats:
        """The factor of each sample."""
        rows = self.entries.get(degree, ())
        if not rows:
            return np.ones(len(lengths))
        at, factor = np.array(rows).T
        tokens = np.clip(lengths, at[0], at[-1])
        above = np.clip(np.searchsorted(at, tokens), 1, len(at) - 1) if len(at) > 1 else 0
        below = np.maximum(0, above - 1)
        span = np.maximum(at[above] - at[below], 1e-9)
        share = np.clip((tokens - at[below]) / span, 0.0, 1.0)
        return np.asarray(factor[below] + share * (factor[above] - factor[below]), dtype=np.float64)


@dataclass(frozen=True)
class CostModel:
    """The constants of a device and a model; all in seconds. The tuples have an entry for each degree: 1, 2,
    4, and so on; the first is 0, and degrees beyond the last have the last one's."""

    per_pass: float
    per_token: float
    """For a token of the rank's own."""
    per_square: float
    """For a squared token, of the rank's share of them."""
    shared_pass: tuple[float, ...] = (0.0,)
    shared_token: tuple[float, ...] = (0.0,)
    """For a token of the whole pass."""
    table: CostTable = CostTable()

    @classmethod
    def prior(cls, shape: ModelShape, largest_degree: int) -> "CostModel":
        """What is expected of a model before anything is measured, from its arithmetic: 6 FLOP for a
        parameter and token; for attention 14 FLOP for a pair of tokens and a query channel, of which
        causality needs half; keys and values in bf16 travel twice forward and twice backward. Rates are those
        of an H200 on NVLink. Only the ratios matter for a plan, and the first fit scales them."""
        linear, attention, link = 790e12, 550e12, 350e9  # FLOP/s, FLOP/s, bytes/s
        overhead, granule, latency = 400, 256, 4 * 25e-6  # tokens, tokens, seconds for a layer
        per_token = 6.0 * shape.parameters / linear
        per_square = 7.0 * shape.layers * shape.query_width / attention
        moved = shape.layers * 2 * 2 * shape.key_value_width / link
        degrees = [2**e for e in range(1, max(1, largest_degree).bit_length())]
        return cls(
            per_pass=overhead * per_token,
            per_token=per_token + granule * per_square,
            per_square=per_square,
            shared_pass=(0.0, *(shape.layers * latency for _ in degrees)),
            shared_token=(
                0.0,
                *(4 * (d - 1) / d * moved + (2 - 1 / d) * granule * per_square for d in degrees),
            ),
        )

    def pass_seconds(self, degree: int) -> float:
        """Seconds of a pass besides those of its samples."""
        return self.per_pass + _of(self.shared_pass, degree)

    def sample_seconds(self, lengths: Ints, degree: int) -> Floats:
        """Seconds that each sample adds to a pass that `degree` ranks share, with its padding."""
        tokens = padded(lengths, degree).astype(np.float64)
        own = self.per_token * tokens + self.per_square * (tokens * tokens)
        formula = own / degree + _of(self.shared_token, degree) * tokens
        return formula * self.table.factors(lengths, degree)

    def seconds(self, lengths: Sequence[int], degree: int = 1) -> float:
        """Seconds of a pass with samples of these lengths."""
        samples = self.sample_seconds(np.asarray(lengths, dtype=np.int64), degree)
        return self.pass_seconds(degree) + float(samples.sum())

    def seconds_of_each(self, passes: Sequence[tuple[Sequence[int], int]]) -> list[float]:
        """As `seconds`, but for the last digits, of many passes at once: each the lengths of its samples and
        its degree. Where there are hundreds, one by one would take longer than a plan."""
        found = np.empty(len(passes))
        degrees = np.array([degree for _, degree in passes], dtype=np.int64)
        for degree in np.unique(degrees).tolist():
            places = np.flatnonzero(degrees == degree)
            rows = [passes[place][0] for place in places.tolist()]
            # A pass may have no samples.
            owner = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
            lengths = np.array([length for row in rows for length in row], dtype=np.int64)
            samples = np.bincount(owner, self.sample_seconds(lengths, degree), len(rows))
            found[places] = self.pass_seconds(degree) + samples
        return [float(each) for each in found]


def _of(values: tuple[float, ...], degree: int) -> float:
    return values[min(degree.bit_length(), len(values)) - 1]
