"""What `vllm_compat.VllmCore` asks of an engine core so that versions arrive, and are put in, while it
generates.

Guarantees: each verb returns when the core has done what it says; what arrives is told by the ranks
themselves (`staging_reports`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rljob_runtime.engines.vllm_read import differing
from rljob_runtime.engines.vllm_shape import VllmShape
from rljob_runtime.engines.vllm_swap import SWAP, keeps_order, swap_misfit
from rljob_runtime.weights.contents import Shapes


@dataclass(frozen=True)
class PutIn:
    """What became of the requests in the core when a version was put in between two steps."""

    counts: Mapping[str, int]
    """How many tokens of each request that goes on are of the weights before."""
    unbegun: tuple[str, ...]
    """Those that were ended in the core, as they had no token; they have yet to be ended here."""
    stood: tuple[float, float]
    """From when to when nothing could run, in seconds of the monotonic clock."""


def swap_obstacle(shape: VllmShape, config: Any, holds_outputs: bool) -> str:
    """Why versions that have arrived are put in only in a pause; "" where they are between two steps.
    `config` is vLLM's own. Imports vLLM."""
    from vllm.v1.executor.abstract import Executor

    if not holds_outputs:
        return "its scheduler is vLLM's own"
    if shape.options.speculation is not None:
        return "its steps under way have drafts"
    if not keeps_order(executor := Executor.get_class(config)):
        return f"{executor.__name__} may give its ranks their work in another order than it gets it"
    return differing(swap_misfit())


class StagingVerbs:
    """Part of `VllmCore`; see the module's guarantees."""

    _llm: Any
    _client: Any
    _shape: VllmShape

    async def staging_obstacle(self) -> str:
        """Why versions do not arrive while it generates; "" where they do."""
        obstacles: list[str] = await self._llm.collective_rpc("staging_obstacle")
        return next(filter(None, obstacles), "")

    async def stage_folder(self, number: int, folder: Path, reports: str) -> None:
        """Have the weights of a folder arrive; each rank tells `reports` when it has them."""
        await self._llm.collective_rpc("stage_folder", args=(number, str(folder), reports))

    async def stage_broadcast(self, number: int, location: str, shapes: Shapes, reports: str) -> None:
        """The same by a broadcast."""
        arguments = (number, location, dict(shapes), self._shape.dtype, reports)
        await self._llm.collective_rpc("stage_broadcast", args=arguments)

    async def place_staged(self, number: int) -> None:
        """Generate with what arrived under this number; only while paused."""
        await self._llm.collective_rpc("place_staged", args=(number,))

    async def put_in(self, number: int, keep_kv: bool) -> PutIn:
        """Generate with what arrived under this number, without a pause; `keep_kv`: whether requests that
        have tokens go on upon their KV cache. No request may enter until it has returned."""
        # Of those that end meanwhile the front end forgets the names.
        names = {
            name: state.external_req_id for name, state in self._llm.output_processor.request_states.items()
        }
        counts, unbegun, *stood = await self._client.call_utility_async(SWAP, number, keep_kv)
        return PutIn(
            {names[name]: count for name, count in counts.items() if name in names},
            tuple(names[name] for name in unbegun if name in names),
            (stood[0], stood[1]),
        )

    async def end_here(self, *request_ids: str) -> None:
        """End requests that the core has ended, and that have no token."""
        await self._llm.abort(request_ids)
