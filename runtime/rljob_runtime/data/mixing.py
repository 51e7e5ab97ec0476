"""The order of prompts that come from several sources.

Guarantees: an order is a pure function of the sources' sizes and weights; every stretch of it has each
source's share, to within a prompt for each other source; where weights are the numbers of prompts, an epoch
has each prompt of each source exactly once. Pure.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np


class Place(NamedTuple):
    """A prompt of one source."""

    source: int
    """Which of the sources, from 0."""
    epoch: int
    """How often all of that source came before."""
    place: int
    """Place in that epoch of the source."""


def quotas(rows: Sequence[int], weights: Sequence[float] | None) -> tuple[int, ...]:
    """Prompts of each source in an epoch, one at least: their shares of as many prompts as there are in all,
    by largest remainders. `rows`: prompts of each source; `weights`: None for these numbers themselves."""
    # By way of its text, as bounds are: the float nearest to 0.1 is not 0.1.
    exact = [Fraction(str(weight)) for weight in (rows if weights is None else weights)]
    shares = [weight / sum(exact) * sum(rows) for weight in exact]
    counts = [int(share) for share in shares]
    left = sum(rows) - sum(counts)
    for index in sorted(range(len(rows)), key=lambda index: counts[index] - shares[index])[:left]:
        counts[index] += 1
    return tuple(max(1, count) for count in counts)


class Mix:
    """The order of several sources, epoch after epoch."""

    def __init__(self, rows: Sequence[int], weights: Sequence[float] | None = None) -> None:
        """`rows`: prompts of each source, 1 at least; `weights`: see `quotas`."""
        self.quotas = quotas(rows, weights)
        """Prompts of each source in an epoch."""
        self.rows = sum(self.quotas)
        """Prompts of an epoch."""
        self._sizes = tuple(rows)
        # Prompt j of the q of a source stands in the middle of part j of an epoch that is cut into q.
        middles = np.concatenate([(np.arange(count) + 0.5) / count for count in self.quotas])
        # Stable: the other kinds may order equal keys differently in another version of numpy.
        order = np.argsort(middles, kind="stable")
        self._source = np.repeat(np.arange(len(rows), dtype=np.int16), self.quotas)[order]
        self._number = np.concatenate([np.arange(count) for count in self.quotas])[order]

    def at(self, position: int) -> Place:
        """The prompt at a position of the order, from 0."""
        epoch, place = divmod(position, self.rows)
        source = int(self._source[place])
        number = epoch * self.quotas[source] + int(self._number[place])
        return Place(source, *divmod(number, self._sizes[source]))
