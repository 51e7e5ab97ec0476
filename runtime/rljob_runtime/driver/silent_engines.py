"""Finds engines that have fallen silent (`driver.engine_silence`) and has them started again, also while
steps go on: what they run goes on elsewhere. Of engines that go on it finds requests for which they do
nothing (`driver.request_silence`) and has these go on elsewhere, with the tokens that they have.

Guarantees: an engine that goes on is started again only where it does not let go of such a request, or has
them again and again. It looks every tenth of the time after which an engine counts as silent, and asks only
those engines that told of no token since the last look; each of them has a deadline to answer. A worker whose
engines fall silent one after the other is one that keeps dying (`fleet.fleet`): the time in which an engine
was silent is none in which it worked.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping

from rljob_runtime.driver.engine_silence import EngineLook, EngineSilence
from rljob_runtime.driver.request_silence import RequestSilence, RequestsLook, StuckRequest
from rljob_runtime.rollout.engine_slot import EngineSlot
from rljob_runtime.rollout.generated_tokens import ANSWER_SECONDS, told_tokens
from rljob_runtime.rollout.pool import EnginePool

_log = logging.getLogger(__name__)
_LOOKS = 10
"""How often engines are looked at in the time after which one is silent."""
_FIELD = "spec.training.timeouts.stallSeconds"


class SilentEngines:
    """See the module's guarantees."""

    def __init__(self, pool: EnginePool, stall_seconds: float) -> None:
        """`stall_seconds`: how long an engine may have requests without generating a token, while others
        generate."""
        self._pool = pool
        self._every = stall_seconds / _LOOKS
        self._silence = EngineSilence(stall_seconds, self._every)
        self._requests = RequestSilence(stall_seconds, self._every)

    async def run(self) -> None:
        """Look, until cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            # Silence is no event: nothing but the time tells of it.
            await asyncio.sleep(self._every)
            await self.look(clock)

    async def look(self, clock: Callable[[], float]) -> None:
        """Look at all engines. Those that are silent are started again; requests that are stuck on others
        leave them."""
        slots = {slot.number: slot for slot in self._pool.slots}
        to_ask = self._silence.to_ask(self._looks())
        seconds = min(ANSWER_SECONDS, self._every)
        told = await asyncio.gather(*(told_tokens(slots[number], seconds) for number in to_ask))
        asked = {number: tokens for number, tokens in zip(to_ask, told, strict=True) if tokens is not None}
        # Anew: while some were asked, others may have come, gone or been paused, and tokens may have come.
        slots = {slot.number: slot for slot in self._pool.slots}
        for silent in self._silence.silent(self._looks(), asked, clock()):
            slot = slots[silent.number]
            what = f"generated nothing for {silent.seconds:.0f} s, while others generated"
            why = f"engine {slot.engine.name} has requests and {what} ({_FIELD})"
            self._pool.lost(slot, why, silent=True)
        self._look_at_requests(asked, clock())

    def stuck(self) -> list[EngineSlot]:
        """Where nothing moves in the whole job: the engines that hold requests and stand still with them. One
        that has just been given some is none of these, unless there are no others."""
        holding = [slot for slot in self._pool.slots if slot.running]
        return [slot for slot in holding if self._silence.stood_still(slot.number)] or holding

    def _look_at_requests(self, asked: Mapping[int, int], now: float) -> None:
        slots = {slot.number: slot for slot in self._pool.slots}

        def leaving(number: int, request_id: str) -> bool:
            key, _ = slots[number].requests[request_id]
            return self._pool.moves(key)

        looks = [
            RequestsLook(
                number, slot.joined and bool(slot.requests), slot.tokens, slot.reports, asked.get(number),
                slot.requests, slot.told,
            )
            for number, slot in slots.items()
        ]  # fmt: skip
        for stuck in self._requests.stuck(looks, leaving, now):
            self._free(slots[stuck.engine], stuck)

    def _free(self, slot: EngineSlot, stuck: StuckRequest) -> None:
        """Have a request go on elsewhere."""
        what = (
            f"engine {slot.engine.name} has held request {stuck.request} for {stuck.seconds:.0f} s without a "
            "token while it generated others"
        )
        if stuck.verdict == "kept":
            self._pool.lost(slot, f"{what}, and does not let go of it ({_FIELD})")
        elif stuck.verdict == "again":
            self._pool.lost(slot, f"{what}, as before with requests that left it for that ({_FIELD})")
        elif slot.alive:
            _log.warning("%s (%s): it goes on elsewhere", what, _FIELD)
            self._pool.take_out(slot, stuck.request)

    def _looks(self) -> list[EngineLook]:
        return [
            EngineLook(slot.number, slot.joined and bool(slot.requests), slot.tokens)
            for slot in self._pool.slots
        ]
