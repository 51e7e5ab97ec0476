"""vLLM engines whose new prompts wait for one another, at a price that a test says.

By their own times of their steps they would wait on some machines and not on others.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from unittest.mock import patch

from rljob_runtime.engines import vllm_compat
from rljob_runtime.engines.prefill_gate import Costs, StepTimes
from rljob_runtime.engines.vllm import VllmEngine
from rljob_runtime.engines.vllm_blocks import Sparing
from rljob_runtime.engines.vllm_plain_steps import Continuing
from rljob_runtime.engines.vllm_prefills import Delaying
from rljob_runtime.engines.vllm_scheduler import Holding, made_of

_PRICE, _HELD = "price_of_prompts", "steps_in_which_prompts_waited"


class _Known(StepTimes):
    """Times of which is known what a prompt costs: so many steps of each request that runs."""

    def __init__(self, price: float) -> None:
        super().__init__()
        self._price = price

    def costs(self) -> Costs:
        return Costs(1.0, self._price)


class _Counting:
    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.gate: Any
        self.held = 0
        self.ask(0.0)

    def ask(self, price: float) -> None:
        self.gate._times = _Known(price)

    def prompts_wait(self, now: float) -> bool:
        waits: bool = super().prompts_wait(now)  # type: ignore[misc]
        self.held += waits
        return waits


def scheduler(**arguments: Any) -> Any:
    """In the engine core, in the place of `vllm_prefills.scheduler`."""
    from vllm.v1.engine.core import EngineCoreProc

    setattr(EngineCoreProc, _PRICE, lambda core, price: core.scheduler.ask(price))
    setattr(EngineCoreProc, _HELD, lambda core: core.scheduler.held)
    return made_of((_Counting, Delaying, Sparing, Continuing, Holding), arguments)


@contextmanager
def priced_prompts() -> Iterator[None]:
    """Engines with `delayPrefills` that are started in the body have prompts that cost nothing, and so do not
    wait, until `waiting_prompts` says otherwise."""
    with patch.object(vllm_compat, "DELAYING", f"{__name__}.scheduler"):
        yield


async def steps_held(engine: VllmEngine) -> int:
    """In how many steps prompts have waited so far."""
    held: int = await engine._live_core()._client.call_utility_async(_HELD)
    return held


@asynccontextmanager
async def waiting_prompts(engine: VllmEngine, price: float) -> AsyncIterator[None]:
    """In the body a prompt costs so many steps of each request that runs."""
    client = engine._live_core()._client
    await client.call_utility_async(_PRICE, price)
    try:
        yield
    finally:
        await client.call_utility_async(_PRICE, 0.0)
