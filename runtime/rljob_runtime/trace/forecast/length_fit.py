"""How far lengths spread, between prompts and within, of responses of which some were cut off.

The logarithm of a length is mu + between * u + within * e, u of its prompt and e of its own, both standard
normal, as in `simulate.workload.LengthModel`. Of a response at the cap only that it would have been as long
at least is known. Where none is there the parts are those of a one-way decomposition of variance; else they
are those of greatest likelihood, by expectation maximisation with the prompts' u on a grid. Guarantee: the
same lengths give the same figures. Pure.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_PROMPTS = 4000
"""Prompts that a fit of cut lengths looks at, evenly taken: enough for three digits of what spreads."""
_ROUNDS = 300
_STILL = 1e-4
"""Change of a deviation in a round, as a part of it, with which a fit ends."""
_WIDE = 5.0
"""The grid goes so many deviations to each side."""
_NODES = 101, 501
"""Fewest and most of its nodes."""
_LEAST = 1e-3
"""Least deviation: lengths are whole tokens."""


@dataclass(frozen=True)
class Deviations:
    """Standard deviations of the logarithm."""

    between: float
    """From prompt to prompt."""
    within: float
    """From response to response of one prompt; 0 where there is one of each."""


def fit_deviations(tokens: NDArray[np.int32], cap: int) -> Deviations:
    """Of lengths, [prompts, samples], that were cut off at `cap` tokens. At least two prompts."""
    cut = tokens >= cap
    logs = np.log(np.maximum(tokens, 1))
    # Of lengths that are all at the cap nothing is known but that.
    if not cut.any() or cut.all():
        return _of_variance(logs)
    if tokens.shape[1] == 1:
        # Nothing tells the parts of one response apart: all is taken for the prompt's.
        return Deviations(_Fit(logs.T, cut.T, math.log(cap)).run(one=True).within, 0.0)
    places = np.unique(np.linspace(0, len(logs) - 1, _PROMPTS).astype(int))
    return _Fit(logs[places], cut[places], math.log(cap)).run()


def _of_variance(logs: Floats) -> Deviations:
    samples = logs.shape[1]
    within = float(logs.var(axis=1, ddof=1).mean()) if samples > 1 else 0.0
    # The means of groups vary by what is within them, too.
    between = max(0.0, float(logs.mean(axis=1).var(ddof=1)) - within / samples)
    return Deviations(math.sqrt(between), math.sqrt(within))


class _Fit:
    """Lengths as the sums that their likelihood needs, for each prompt, [prompts]."""

    def __init__(self, logs: Floats, cut: NDArray[np.bool_], cap: float) -> None:
        self._cap = cap
        self._cut = cut.sum(axis=1).astype(float)
        self._whole = (~cut).sum(axis=1).astype(float)
        # About a middle, so that squares lose no digits.
        self._middle = float(logs.mean())
        known = np.where(cut, 0.0, logs - self._middle)
        self._sum, self._squares = known.sum(axis=1), (known**2).sum(axis=1)
        self._samples = logs.shape[1]
        start = _of_variance(logs) if len(logs) > 1 else Deviations(0.0, float(logs.std()))
        self._mu = 0.0
        self._between, self._within = max(_LEAST, start.between), max(_LEAST, start.within)

    def run(self, one: bool = False) -> Deviations:
        """`one`: all lengths are of one prompt, of which nothing else differs."""
        for _ in range(_ROUNDS):
            before = self._between, self._within
            self._round(np.zeros(1) if one else self._grid())
            after = self._between, self._within
            if all(abs(new - old) <= _STILL * old for new, old in zip(after, before, strict=True)):
                break
        return Deviations(0.0 if one else self._between, self._within)

    def _grid(self) -> Floats:
        """Fine enough for what the responses of a prompt tell of its u."""
        step = 0.5 * self._within / (self._between * math.sqrt(self._samples))
        fewest, most = _NODES
        return np.linspace(-_WIDE, _WIDE, int(min(most, max(fewest, 2 * _WIDE / step))))

    def _round(self, nodes: Floats) -> None:
        """Expect each prompt's u, and what was cut off, by the deviations so far; and find those anew."""
        levels, within = self._mu + self._between * nodes, self._within
        z = (self._cap - self._middle - levels) / within
        beyond = np.array([_log_beyond(each) for each in z.tolist()])
        squares = self._squares[:, None] - 2 * levels * self._sum[:, None] + levels**2 * self._whole[:, None]
        log = -squares / (2 * within**2) + self._cut[:, None] * beyond - nodes**2 / 2
        weights = np.exp(log - log.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        # Above the cap, of a normal distribution: by how many deviations the mean is above its level.
        excess = np.exp(-(z**2) / 2 - beyond) / math.sqrt(2 * math.pi)
        cut, whole = weights.T @ self._cut, weights.T @ self._whole
        count = float(cut.sum() + whole.sum())
        # Least squares of all lengths, as expected, by u.
        found = weights.T @ self._sum + cut * (levels + within * excess)
        each = cut + whole
        a, b, c = count, float(each @ nodes), float(each @ nodes**2)
        p, q = float(found.sum()), float(found @ nodes)
        slope = (a * q - b * p) / (a * c - b * b) if len(nodes) > 1 else 0.0
        base = (p - slope * b) / a
        fitted = base + slope * nodes
        second = self._squares.sum() + cut @ (levels**2 + 2 * levels * within * excess)
        second += cut @ (within**2 * (1 + z * excess))
        rest = float(second - 2 * fitted @ found + each @ fitted**2)
        self._within = max(_LEAST, math.sqrt(max(0.0, rest / count)))
        # As the prompts' u came out they need not be standard normal. They are made so again, which makes
        # rounds few (parameter-expanded maximisation).
        of_prompts = weights.mean(axis=0)
        mean = float(of_prompts @ nodes)
        spread = math.sqrt(float(of_prompts @ (nodes - mean) ** 2))
        self._between, self._mu = max(_LEAST, abs(slope) * spread), base + slope * mean


def _log_beyond(z: float) -> float:
    """Logarithm of the probability that a standard normal value is above `z`."""
    if z < 8:
        return math.log(0.5 * math.erfc(z / math.sqrt(2)))
    return -z * z / 2 - math.log(z * math.sqrt(2 * math.pi)) - 1 / (z * z)
