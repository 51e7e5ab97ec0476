"""How far earlier epochs tell which prompts have longer responses than others: measured by how groups turn
out, so that what contradicts them soon makes them count nothing.

It is the slope of a regression of the lengths that were found on those that earlier epochs had expected, in
logarithms, newer groups weighed more: 1 where they tell all, 0 where they tell nothing, and below it where
they tell the contrary. From a half on prediction by them has the smaller error, and they count in full. About
the means: where all lengths have changed together, earlier epochs tell as well as before which are the longer
ones. Until groups have told, earlier epochs are believed.

Pure.
"""

_KEPT = 0.98
"""What a group counts beside the next one."""
_ENOUGH = 0.5
"""Slope from which on earlier epochs count as if they told all: with them lengths are predicted better than
by the mean of all groups, and a slope is taken from few groups, whose responses differ."""
_BELIEVED = 4.0
"""So many groups, all as expected, are taken to be known from the beginning."""


class HistoryTrust:
    """See the module."""

    def __init__(self) -> None:
        self._count = self._x = self._y = self._xx = self._xy = 0.0
        """Groups, sums of what was expected and found, of the squares of the former, and of the products."""

    def push(self, expected: float, found: float) -> None:
        """By earlier epochs a group was expected to have one length, and its first response that ended has
        another. First ones are shorter than their siblings, of all groups alike."""
        self._count = _KEPT * self._count + 1
        self._x = _KEPT * self._x + expected
        self._y = _KEPT * self._y + found
        self._xx = _KEPT * self._xx + expected * expected
        self._xy = _KEPT * self._xy + expected * found

    def share(self, between: float) -> float:
        """What earlier epochs count, of what they would where they were right: 0 to 1. `between`: variance
        between groups."""
        if not self._count:
            return 1.0
        believed = _BELIEVED * between
        together = self._xy - self._x * self._y / self._count
        alone = self._xx - self._x * self._x / self._count
        slope = (believed + together) / (believed + max(0.0, alone))
        return min(1.0, max(0.0, slope / _ENOUGH))


def weight(prior: float, believed: float, share: float) -> float:
    """What earlier epochs weigh beside `prior`, the weight of the mean of all groups: the two together have a
    group be `share` as far from that mean as with the weight `believed`."""
    part = share * believed / (prior + believed)
    return prior * part / (1 - part)
