"""A vLLM engine whose weight versions are adapters (LoRA) beside one model that stays as it is.

Guarantees:
- each version that is loaded is an adapter of its own to vLLM, under a name and a number that none has had
  before, also where a version comes again with other weights: no KV cache of another is ever its own;
- a response, or the part of one that a request asks for, has one adapter from its first token to its last,
  so that its version is known without stopping anything: vLLM generates on through `pause("keep")`, `load`
  and `resume`, and what runs is finished with the adapter that it began with. Requests that come after
  `resume` get the new one;
- the folder of an adapter stays as long as a request is generated with it;
- an adapter of which not every tensor has reached its layer ends the engine: nothing is generated with it.
Otherwise the contract of `protocol.Engine` holds.
"""

import asyncio
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from rljob_api.adapter import Adapter
from rljob_runtime.engines.last_words import in_one_line
from rljob_runtime.engines.protocol import EngineDied, PauseMode, WeightRef
from rljob_runtime.engines.vllm import VllmEngine
from rljob_runtime.engines.vllm_shape import AdapterRoom, LoadedAdapter
from rljob_runtime.weights.adapter import adapter_shapes, has_experts, target_names
from rljob_runtime.weights.contents import Shapes, check_same_model, tensor_shapes
from rljob_runtime.weights.shm import reading


class _Held:
    """An adapter whose folder is kept."""

    def __init__(self, loaded: LoadedAdapter, folder: ExitStack) -> None:
        self.loaded = loaded
        self.folder = folder
        self.requests = 0
        """Requests that are generated with it."""


class AdapterEngine(VllmEngine):
    """See the module's guarantees."""

    def __init__(self, adapter: Adapter, room: AdapterRoom, *arguments: Any, **options: Any) -> None:
        """`adapter`: what every version is; the rest as for `VllmEngine`."""
        super().__init__(*arguments, **options)
        self._room = room
        self._shape = replace(self._shape, adapters=room)
        self._adapter = adapter
        self._held: dict[int, _Held] = {}
        """By number: the newest adapter, and those that requests are generated with."""
        self._newest: _Held | None = None
        """None: the model as it is."""
        self._count = 0
        """Adapters so far."""

    async def start(self, version: int) -> None:
        """Raises what `VllmEngine.start` raises, and `NoSuchLayers`."""
        model = tensor_shapes(self._shape.model_folder)
        if has_experts(model):
            # vLLM would keep room for adapters of the experts, too, which get none.
            room = replace(self._room, layers=tuple(target_names(model, self._adapter)))
            self._shape = replace(self._shape, adapters=room)
        await super().start(version)

    async def load(self, ref: WeightRef) -> None:
        """Raises what `VllmEngine.load` raises."""
        self._life.check()
        if not self._paused:
            raise RuntimeError(f"engine {self.name}: load while not paused")
        if ref.transport != "shm":
            raise ValueError(f"engine {self.name}: an adapter comes as a folder, not through {ref.transport}")
        with ExitStack() as stack:
            folder = stack.enter_context(reading(Path(ref.location)))
            check_same_model(self._tensors, folder)
            self._count += 1
            loaded = LoadedAdapter(self._count, f"version-{ref.version}-{self._count}", folder)
            await self._bring(loaded, ref)
            before, self._newest = self._newest, _Held(loaded, stack.pop_all())
        self._held[loaded.number] = self._newest
        self.version = ref.version
        if before is not None:
            self._forget_unused(before)

    async def _bring(self, adapter: LoadedAdapter, ref: WeightRef) -> None:
        """Load an adapter into the core; the engine ends where that fails, or does less than it should."""
        try:
            arrived = await self._life.guard(self._live_core().load_adapter(adapter))
        except EngineDied:
            raise
        except Exception as error:  # noqa: BLE001 - whatever went wrong in the core, nothing must be generated with it
            why = in_one_line(error)
        else:
            if arrived == len(self._tensors):
                return
            why = f"{arrived} of {len(self._tensors)} tensors of the adapter reached a layer"
        await self._shut(f"loading version {ref.version} from {ref.location} failed: {why}")
        self._life.check()

    def _expected_tensors(self, model: Shapes) -> Shapes:
        return adapter_shapes(model, self._adapter)

    def _take_adapter(self) -> LoadedAdapter | None:
        if self._newest is None:
            return None
        self._newest.requests += 1
        return self._newest.loaded

    def _give_back(self, adapter: LoadedAdapter | None) -> None:
        if adapter is not None and (held := self._held.get(adapter.number)) is not None:
            held.requests -= 1
            self._forget_unused(held)

    def _forget_unused(self, held: _Held) -> None:
        """Let the folder of an adapter go that no request needs, now or later."""
        if held is not self._newest and not held.requests:
            del self._held[held.loaded.number]
            held.folder.close()

    async def _stop_core(self, mode: PauseMode) -> None:
        """The core goes on with what it runs."""
        if mode == "abort":
            running = [name for name, ticket in self._tickets.items() if ticket.spans is not None]
            # At once: each waits for the end of a step.
            await asyncio.gather(*map(self.abort, running))

    async def _start_core(self) -> None:
        """It never stood still."""

    async def _shut(self, reason: str) -> None:
        await super()._shut(reason)
        for held in self._held.values():
            held.folder.close()
        self._held.clear()
