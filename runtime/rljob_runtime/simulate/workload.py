"""What a simulated job generates: how long each response is, and where it waits for a tool.

Lengths are drawn from a lognormal distribution, in which responses to one prompt resemble each other, or
are those that a run recorded. Pure: equal seeds give equal workloads.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Lengths = NDArray[np.int64]


@dataclass(frozen=True)
class ToolWaits:
    """A response stands still after each `every_tokens` tokens, while its KV cache is kept."""

    every_tokens: int
    seconds: float


@dataclass(frozen=True)
class Workload:
    """The groups of a job, in the order in which they are dispatched; a group's uid is its place here."""

    lengths: Lengths
    """Response tokens, [groups, samples], each at least 1."""
    prompt_tokens: Lengths
    """Of each group's prompt, [groups]."""
    rows: Lengths
    """Each group's row in the data, [groups]: groups of one row have one prompt."""
    waits: ToolWaits | None = None

    def __post_init__(self) -> None:
        if self.lengths.ndim != 2 or self.lengths.size == 0:
            raise ValueError(f"lengths must be [groups, samples] and not empty (found {self.lengths.shape})")
        if int(self.lengths.min()) < 1:
            raise ValueError(f"lengths must be at least 1 token (found {int(self.lengths.min())})")
        for name, values in (("prompt_tokens", self.prompt_tokens), ("rows", self.rows)):
            if values.shape != (self.groups,):
                raise ValueError(f"{name} must have one value for each group (found {values.shape})")

    @property
    def groups(self) -> int:
        return int(self.lengths.shape[0])

    @property
    def samples(self) -> int:
        """Responses to each prompt."""
        return int(self.lengths.shape[1])

    @property
    def longest(self) -> int:
        """Most tokens that one request has in the KV cache: prompt and response."""
        return int((self.lengths.max(axis=1) + self.prompt_tokens).max())


@dataclass(frozen=True)
class LengthModel:
    """Lognormal lengths under a cap, as reasoning models have them.

    The logarithm of a length is mu + between * u + within * e, with u drawn for each prompt and e for each
    response, both standard normal. mu is chosen so that the mean, cap included, is `mean`. The correlation
    of two responses to one prompt is between² / (between² + within²), on the logarithmic scale.
    """

    mean: float
    """Tokens; at most `cap`, which it is where every response has that length."""
    cap: int
    """Longest response, in tokens."""
    between: float = 0.6
    """Standard deviation of the logarithm between prompts."""
    within: float = 0.2
    """The same between responses to one prompt."""
    order: float = 0.0
    """Correlation of u from a prompt to the next, from 0 to below 1: data sets are often sorted by topic or
    difficulty."""
    prompt_tokens: int = 64
    rows: int | None = None
    """Prompts in the data set, which is repeated after them; None: every group has a prompt of its own."""
    mu: float = field(init=False)

    def __post_init__(self) -> None:
        for name in ("between", "within"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0 (found {getattr(self, name):g})")
        if not 0 <= self.order < 1:
            raise ValueError(f"order must be from 0 to below 1 (found {self.order:g})")
        if self.prompt_tokens < 1:
            raise ValueError(f"prompt_tokens must be at least 1 (found {self.prompt_tokens})")
        if not 1 <= self.mean <= self.cap:
            raise ValueError(
                f"mean must be at least 1 and at most cap, {self.cap} tokens (found {self.mean:g})"
            )
        object.__setattr__(self, "mu", fit_mu(self.mean, math.hypot(self.between, self.within), self.cap))

    def draw(self, groups: int, samples: int, seed: int, waits: ToolWaits | None = None) -> Workload:
        """A workload of `groups` prompts with `samples` responses each."""
        random = np.random.default_rng(seed)
        rows = np.arange(groups, dtype=np.int64)
        if self.rows is not None:
            rows %= self.rows
        count = int(rows.max()) + 1
        by_row = _correlated(random.standard_normal(count), self.order)
        noise = random.standard_normal((groups, samples))
        logs = self.mu + self.between * by_row[rows][:, None] + self.within * noise
        # Beyond the cap before the exponential: a wide distribution would overflow.
        lengths = np.rint(np.exp(np.minimum(logs, math.log(self.cap))))
        return Workload(
            np.clip(lengths, 1, self.cap).astype(np.int64),
            np.full(groups, self.prompt_tokens, dtype=np.int64),
            rows,
            waits,
        )


def fit_mu(mean: float, deviation: float, cap: float) -> float:
    """The mu with which min(X, cap) has this mean, for X lognormal with (mu, deviation)."""
    low, high = math.log(mean) - deviation**2 / 2 - 1.0, math.log(cap) + 12.0 * deviation + 1.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _capped_mean(middle, deviation, cap) < mean else (low, middle)
    return (low + high) / 2


def _capped_mean(mu: float, deviation: float, cap: float) -> float:
    """Mean of min(X, cap), X lognormal."""
    if deviation == 0:
        return min(math.exp(mu), cap)
    z = (math.log(cap) - mu) / deviation
    below = math.exp(min(mu + deviation**2 / 2, 700.0)) * _normal_cdf(z - deviation)
    return below + cap * (1 - _normal_cdf(z))


def _normal_cdf(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


def _correlated(values: NDArray[np.float64], correlation: float) -> NDArray[np.float64]:
    """Standard normal values of which each resembles the one before it (an AR(1) sequence)."""
    if correlation == 0:
        return values
    fresh = math.sqrt(1 - correlation**2)
    result = values.copy()
    for place in range(1, len(values)):
        result[place] = correlation * result[place - 1] + fresh * values[place]
    return result
