"""How long drafts should be, from how many drafted tokens were kept so far. Pure."""

import math

_FIRST = (3.6, 4.0)
"""Kept and checked tokens before there are any: drafts begin long."""
_MEMORY = 128.0
"""Checked tokens after which the older half counts half: texts change with the weights."""
_TRIAL = 16
"""Where drafts are not worth it, one in so many chances is tried with a single token: that may change."""


class KeptShares:
    """The share of drafted tokens that were kept, separately for short and for long matches.

    Let a be the chance that a drafted token is kept if those before it were. Then the k-th is of use with
    chance a^k, and a draft is made as long as that is at least `minimum`.
    """

    def __init__(self, minimum: float) -> None:
        """`minimum` is above 0 and below 1."""
        self._minimum = minimum
        self._counts: dict[int, tuple[float, float]] = {}
        """By class of matches: tokens kept and tokens checked."""
        self._chances = 0
        """How many were passed up since the last trial."""

    def length(self, match: int) -> int:
        """How many tokens to draft, at most, after a match of `match` tokens."""
        share = self.share(match)
        # Rounded first, so that 0.5^2 reaches 0.25.
        worth = math.floor(round(math.log(self._minimum) / math.log(share), 9)) if share > 0 else 0
        if worth > 0:
            return worth
        self._chances += 1
        if self._chances < _TRIAL:
            return 0
        self._chances = 0
        return 1

    def share(self, match: int) -> float:
        """The share of tokens kept, of those that were checked after matches like that; below 1."""
        kept, checked = self._counts.get(_class(match), _FIRST)
        return kept / checked

    def tell(self, match: int, drafted: int, kept: int) -> None:
        """Of `drafted` tokens after a match of `match` tokens the first `kept` were kept."""
        old_kept, old_checked = self._counts.get(_class(match), _FIRST)
        # What follows a token that was not kept was not checked.
        checked = old_checked + min(kept + 1, drafted)
        fading = 0.5 if checked > _MEMORY else 1.0
        self._counts[_class(match)] = ((old_kept + kept) * fading, checked * fading)


def _class(match: int) -> int:
    """Matches of 1, 2 to 3, 4 to 7, ... tokens."""
    return match.bit_length()
