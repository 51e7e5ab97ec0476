"""How many drafted tokens the next step of an engine tries of each response that runs, from how many of those
before were kept.

Pure. All responses of a step try as many, so that its shape is known before its drafts are.
"""

from rljob_runtime.engines.kept_shares import KeptShares

_ALL = 1
"""The class of `KeptShares` that all drafts are in: who decides here does not see what they were found by."""


class StepDrafts:
    """For one engine."""

    def __init__(self, draft_tokens: int, minimum_chance: float, at_most_running: int) -> None:
        """`draft_tokens` is the longest draft; `minimum_chance` what chance each drafted token must have to
        be kept; nothing is tried while more than `at_most_running` requests run."""
        self._draft_tokens = draft_tokens
        self._at_most_running = at_most_running
        self._shares = KeptShares(minimum_chance)
        self.tried = 0
        """Drafted tokens that were checked."""
        self.kept = 0
        """Tokens of these that were kept."""

    def count(self, running: int) -> int:
        """Tokens that the next step tries of each of so many requests."""
        if not 0 < running <= self._at_most_running:
            return 0
        return min(self._draft_tokens, self._shares.length(_ALL))

    def tell(self, tried: int, kept: int) -> None:
        """Of the tokens that a step tried of a request the first `kept` were kept."""
        self._shares.tell(_ALL, tried, kept)
        self.tried += tried
        self.kept += kept
