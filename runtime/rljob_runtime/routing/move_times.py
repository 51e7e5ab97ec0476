"""What a response that moves waits for where it goes, by its first token there, for engines that tell nothing
of what they prefill.

Between the moment at which it is given to an engine and a report that tells of so many tokens, the engine has
taken as many steps; the time beyond these is what it took to have its KV there again. So it is known to
within a step, however rarely engines report. It counts only where nothing else on the engine waited for its
first token at that time, whose prefill would be taken for this one's.

Guarantee: what was assumed counts as much as a measurement whose prefill takes as long as a step, and what
was measured longer ago ever less. Pure.
"""

from collections.abc import Mapping
from typing import NamedTuple

_FORGET = 0.95
"""What a measurement's weight is multiplied by with each that follows."""


class _Given(NamedTuple):
    """A request that has no token where it is, and was alone in that since it was given."""

    request: str
    at: float
    kv_tokens: int
    """That are to be there before it goes on; 0: it does not come from another engine."""


class MoveTimes:
    """Of all engines of a pool, by their numbers."""

    def __init__(self) -> None:
        self._waiting: dict[int, set[str]] = {}
        """By engine, the requests that have told of no token there."""
        self._alone: dict[int, _Given] = {}
        """By engine, the one of these that nothing has waited beside."""
        self._tokens = self._steps = 0.0
        """Measured: KV tokens, and the time that they took in steps of one request."""

    def told(self, assumed_share: float) -> bool:
        """Whether more was measured than what is assumed: that a token takes this part of a step of one
        request."""
        return self._tokens > 1 / assumed_share

    def share(self, assumed_share: float) -> float:
        """What a KV token of a response that moves takes, as part of a step of one request, where it is
        taken for so much until it is measured."""
        return (1 + self._steps) / (1 / assumed_share + self._tokens)

    def given(self, engine: int, request: str, kv_tokens: int, now: float) -> None:
        """A request is given to an engine; `kv_tokens`: what it had on another one, with its prompt."""
        waiting = self._waiting.setdefault(engine, set())
        if waiting:
            self._alone.pop(engine, None)
        else:
            self._alone[engine] = _Given(request, now, kv_tokens)
        waiting.add(request)

    def report(self, engine: int, tokens: Mapping[str, int], step: float, one: float, now: float) -> bool:
        """An engine's requests have generated so many tokens there; a step of them takes `step` seconds, and
        one of a single request `one`. Returns whether anything was measured."""
        waiting = self._waiting.get(engine, set())
        waiting.difference_update([each for each in waiting if tokens.get(each)])
        alone = self._alone.get(engine)
        if alone is None or alone.request in waiting:
            return False
        del self._alone[engine]
        if not alone.kv_tokens:
            return False
        # Steps that took longer than others make it less than nothing, now and then.
        seconds = now - alone.at - tokens[alone.request] * step
        self._tokens = _FORGET * self._tokens + alone.kv_tokens
        self._steps = _FORGET * self._steps + seconds / one
        return True

    def left(self, engine: int, request: str) -> None:
        """A request has ended on an engine, or left it."""
        self._waiting.get(engine, set()).discard(request)
        if engine in self._alone and self._alone[engine].request == request:
            del self._alone[engine]

    def paused(self, engine: int) -> None:
        """An engine stands still, or is gone: what waits there for its first token waits for longer."""
        self._waiting.pop(engine, None)
        self._alone.pop(engine, None)
