"""What a decode step costs on the engines of the pool, as they measure it while they generate, and which of
them are slower than the others of their pool (`routing.cost_fit`); people are told of those."""

import logging
from collections.abc import Mapping, Sequence

from rljob_runtime.engines.protocol import Request
from rljob_runtime.rollout.engine_slot import EngineSlot
from rljob_runtime.routing.cost_fit import MeasuredCosts

log = logging.getLogger(__name__)


class StepCosts:
    """Keeps `cost` and `slowness` of the engines' slots."""

    def __init__(self) -> None:
        self._measured = MeasuredCosts()

    def serves(self, slot: EngineSlot) -> None:
        """This engine gets requests; where nothing was measured since it was there, it is taken for an
        ordinary one of its pool."""
        if not slot.cost.measured:
            slot.cost = self._measured.known(slot.pool) or slot.cost

    def given(self, slot: EngineSlot, request: Request, now: float) -> None:
        """This engine, which gets requests, is about to be given this one."""
        if not slot.requests:
            slot.given_idle = slot.given
            self._measured.began(slot.number, slot.prefilled, now)
        had = len(request.tokens) if request.generated else 0
        self._measured.given(slot.number, slot.pool, request.request_id, had, now)

    def ended(self, slot: EngineSlot, request_id: str) -> None:
        """A request has ended on this engine, or left it."""
        self._measured.ended(slot.number, slot.pool, request_id)

    def paused(self, slot: EngineSlot) -> None:
        """This engine stands still, or is gone: the time until its next report tells nothing."""
        self._measured.paused(slot.number, slot.pool)

    def report(
        self,
        slot: EngineSlot,
        tokens: Mapping[str, int],
        kv_tokens: float,
        prefilled: int,
        slots: Sequence[EngineSlot],
        now: float,
    ) -> list[EngineSlot]:
        """The requests that run on this engine have generated so many tokens there, by request id,
        `kv_tokens` are in its cache, and it says that it has prefilled so many tokens. Returns those of
        `slots`, the live engines, whose costs were found anew."""
        _prefilled(slot, prefilled, any(tokens.values()))
        cost = self._measured.report(slot.number, slot.pool, tokens, kv_tokens, now, slot.prefilled)
        if cost is None:
            return []
        pool = [other for other in slots if other.pool == slot.pool]
        slowness = self._measured.slowness(slot.pool, (other.number for other in pool))
        for other in pool:
            _tell(other, slowness[other.number])
            other.slowness = slowness[other.number]
            other.cost = cost.times(other.slowness)
        return pool


def _prefilled(slot: EngineSlot, told: int, begun: bool) -> None:
    """It says that it has prefilled so many tokens; `begun`: whether anything has a token. Whatever it says,
    it has not computed more than it was given; and when it tells for the first time since it had nothing to
    do, not more than since: the rest is of what had ended before."""
    told = max(slot.told_prefilled, min(told, slot.given))
    new = told - slot.told_prefilled
    if slot.given_idle is not None:
        new = min(new, slot.given - slot.given_idle) if begun else 0
    slot.told_prefilled, slot.given_idle = told, None
    slot.prefilled += new


def _tell(slot: EngineSlot, slowness: float) -> None:
    """Log that an engine is not like the others of its pool any more, or is again."""
    if slowness != 1.0 and slot.slowness == 1.0:
        name, pool = slot.engine.name, slot.pool
        log.info("engine %s: a step takes %.2f times as long as usual in the %s pool", name, slowness, pool)
    elif slowness == 1.0 and slot.slowness != 1.0:
        log.info("engine %s: a step takes about as long as usual again", slot.engine.name)
