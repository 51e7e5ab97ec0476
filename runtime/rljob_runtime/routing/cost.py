"""What an engine's work costs, in seconds: one decode step, and prefill.

A step yields one token for each running request. Its time grows with a fixed part, with the requests (padded
to the size of the captured graph that runs them, the gear), and with the KV tokens that attention reads.

Pure.
"""

from bisect import bisect_left
from typing import NamedTuple


class StepCost(NamedTuple):
    """The constants of one kind of engine."""

    fixed: float = 0.01
    """Seconds of a step with nothing to do."""
    per_request: float = 0.0
    """Seconds of a step for each request of its gear."""
    per_kv_token: float = 0.0
    """Seconds of a step for each token in the KV cache of the running requests."""
    per_prefill_token: float = 0.0
    """Seconds of prefill for each token of a prompt, or of a response that goes on on another engine."""
    gears: tuple[int, ...] = ()
    """Batch sizes for which a graph was captured, ascending; empty: a step takes the batch as it is."""
    per_copied_token: float | None = None
    """Seconds for each KV token of a request that comes from another engine; None: nothing is copied, and its
    tokens are prefilled again."""
    assumed: bool = False
    """Whether `per_prefill_token` is an assumption that is yet to be measured."""
    measured: bool = True
    """Whether any of this is known: of an engine of which nothing is, it is not known either whether it is
    quicker than others."""

    @property
    def moved(self) -> float:
        """Seconds for each KV token of a request that comes from another engine."""
        return self.per_prefill_token if self.per_copied_token is None else self.per_copied_token

    @property
    def untried(self) -> bool:
        """Whether what a move costs is an assumption."""
        return self.assumed and self.per_copied_token is None

    @property
    def to_try(self) -> bool:
        """Whether that alone is: a move tells of it only beside steps that are known."""
        return self.untried and self.measured

    def times(self, factor: float) -> "StepCost":
        """Of an engine that takes so many times as long for all that it computes; copies take their time."""
        if factor == 1.0:
            return self
        return self._replace(
            fixed=self.fixed * factor,
            per_request=self.per_request * factor,
            per_kv_token=self.per_kv_token * factor,
            per_prefill_token=self.per_prefill_token * factor,
        )

    def gear(self, running: int) -> int:
        """The batch size that a step with so many requests computes."""
        if not self.gears:
            return running
        # Above the largest graph engines run without one, on the batch as it is.
        place = bisect_left(self.gears, running)
        return self.gears[place] if place < len(self.gears) else running

    def step(self, running: int, kv_tokens: float = 0.0) -> float:
        """Seconds of one step of `running` requests with `kv_tokens` tokens together."""
        return self.fixed + self.per_request * self.gear(running) + self.per_kv_token * kv_tokens
