"""Spares vLLM's scheduler what it computes for each token and what nobody needs: above all its KV cache
manager's way through its layers for a token that needs no new block.

vLLM asks for the blocks of each running request in each step, and whether one became full. With blocks of 16
tokens the answer is "none" 15 times of 16, and finding that out is about a third of what an engine core
computes for a step (`tests/bench/step_scheduling`), in one thread, which bounds an engine of a small model.
With each such question it makes a scope for a profiler, whether or not there is one.

Guarantees:
- what is scheduled, allocated and cached is what vLLM's own manager would: where a block is needed, or one
  became full, or a prompt is looked up, or anything else is asked, that manager answers itself;
- where a profiler is asked for it has its scopes, and other schedulers of the process have them always;
- the manager of a model whose layers differ in what they keep (windows, states), and a version of vLLM that
  is not known to answer so, are left as they are; of such a version the log says so.

Runs in the engine core's process (`vllm_scheduler`).
"""

import contextlib
import inspect
from typing import Any

from rljob_runtime.engines.vllm_swap import names

SPARED = "FullAttentionManager"
"""vLLM's name of what keeps the blocks of layers that see all tokens: it never gives back a block of a
request that runs."""

_SCOPES = "record_function_or_nullcontext"
_NO_SCOPE = contextlib.nullcontext()


class Sparing:
    """What comes before a scheduler class of vLLM."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._module: Any = None
        """Of vLLM's scheduler, where each scope of its steps is a context for nobody."""
        if blocks_misfit():
            return
        from vllm.v1.core.sched import scheduler

        spare(self.kv_cache_manager)  # type: ignore[attr-defined]
        if type(getattr(scheduler, _SCOPES)("")) is contextlib.nullcontext:
            self._module = scheduler

    def schedule(self, *arguments: Any, **named: Any) -> Any:
        """Called by vLLM before each step."""
        if self._module is None:
            return super().schedule(*arguments, **named)  # type: ignore[misc]
        own = getattr(self._module, _SCOPES)
        setattr(self._module, _SCOPES, _no_scope)
        try:
            return super().schedule(*arguments, **named)  # type: ignore[misc]
        finally:
            setattr(self._module, _SCOPES, own)


def _no_scope(name: str) -> contextlib.nullcontext[None]:
    """For vLLM, which would make a new one for each running request."""
    return _NO_SCOPE


def spare(cache: Any) -> bool:
    """Have a KV cache manager of vLLM's, in a version that fits, answer at once where it can; whether there
    is such a case."""
    keepers = cache.coordinator.single_type_managers
    if len(keepers) != 1 or type(keepers[0]).__name__ != SPARED:
        return False
    keeper = keepers[0]
    if keeper.block_size != cache.block_pool.hash_block_size:
        # Part of a block can be found by a prompt as well.
        return False
    allocate, cache_blocks = cache.allocate_slots, cache.cache_blocks
    size, longest, caches = keeper.block_size, cache.max_model_len, cache.enable_caching
    blocks_of, cached_of, none = keeper.req_to_blocks, keeper.num_cached_block, cache.empty_kv_cache_blocks

    # Both once for each running request, while the accelerator may be waiting: no calls that can be spared.
    def allocate_slots(
        request: Any, num_new_tokens: int, *others: Any, num_lookahead_tokens: int = 0, **named: Any
    ) -> Any:
        name, end = request.request_id, request.num_computed_tokens + num_new_tokens
        room = len(blocks_of.get(name, ())) * size
        if (
            end + num_lookahead_tokens <= room
            and end <= longest
            and num_new_tokens > 0
            and not (others or named)
            and (not caches or min(end, len(request._all_token_ids)) // size <= cached_of.get(name, 0))
        ):
            return none
        return allocate(request, num_new_tokens, *others, num_lookahead_tokens=num_lookahead_tokens, **named)

    def cache_full_blocks(request: Any, num_computed_tokens: int) -> None:
        if num_computed_tokens // size > cached_of.get(request.request_id, 0):
            cache_blocks(request, num_computed_tokens)

    numbers = none.get_block_ids

    def numbers_of_none(allow_none: bool = False, **named: Any) -> Any:
        return None if allow_none else numbers(**named)

    cache.allocate_slots, cache.cache_blocks = allocate_slots, cache_full_blocks
    none.get_block_ids = numbers_of_none
    return True


def blocks_misfit() -> list[str]:
    """What of this vLLM is not as `spare` needs it; nothing where all is. Imports vLLM."""
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_coordinator import KVCacheCoordinator
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager, SingleTypeKVCacheManager
    from vllm.v1.request import Request

    kept = ("req_to_blocks", "num_cached_block", "block_size", "block_pool")
    managed = ("coordinator", "block_pool", "enable_caching", "empty_kv_cache_blocks", "max_model_len")
    asked = inspect.signature(KVCacheManager.allocate_slots).parameters
    needed = {
        "Scheduler.schedule": names(Scheduler.schedule, "allocate_slots")
        and names(Scheduler.schedule, _SCOPES),
        "KVCacheManager": all(names(KVCacheManager.__init__, each) for each in managed)
        and names(KVCacheManager.allocate_slots, "cache_blocks")
        and list(asked)[:3] == ["self", "request", "num_new_tokens"]
        and "num_lookahead_tokens" in asked,
        "KVCacheBlocks": not hasattr(KVCacheBlocks, "__slots__")
        and "allow_none" in inspect.signature(KVCacheBlocks.get_block_ids).parameters,
        "KVCacheCoordinator": names(KVCacheCoordinator.__init__, "single_type_managers"),
        "BlockPool": names(BlockPool.__init__, "hash_block_size"),
        "SingleTypeKVCacheManager": all(names(SingleTypeKVCacheManager.__init__, each) for each in kept)
        and names(SingleTypeKVCacheManager.cache_blocks, "num_cached_block"),
        "FullAttentionManager": not {"get_num_skipped_tokens", "remove_skipped_blocks"}
        & vars(FullAttentionManager).keys(),
        "Request": names(Request.__init__, "_all_token_ids"),
    }
    return [name for name, fits in needed.items() if not fits]
