"""The KV cache that is computed anew after an update: vLLM's own pool of blocks keeps nothing of it, whatever
blocks it is shown for that."""

from types import SimpleNamespace
from typing import Any

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id

from rljob_runtime.engines.vllm_swap import compute_anew

BLOCKS, SIZE = 40, 16


def cached(pool: BlockPool, *names: str) -> list[Any]:
    """A block for each name, which prompts find by it, taken and given back."""
    blocks = pool.get_new_blocks(len(names))
    for name, block in zip(names, blocks, strict=True):
        key = make_block_hash_with_group_id(name.encode(), 0)  # type: ignore[arg-type]
        pool._insert_block_hash(key, block, SIZE)
    pool.free_blocks(blocks)
    return blocks


def scheduler(pool: BlockPool) -> Any:
    def reset(reset_running_requests: bool) -> None:
        assert reset_running_requests
        assert pool.reset_prefix_cache()

    return SimpleNamespace(kv_cache_manager=SimpleNamespace(block_pool=pool), reset_prefix_cache=reset)


def test_no_block_is_found_by_a_prompt_afterwards() -> None:
    pool = BlockPool(BLOCKS, enable_caching=True, hash_block_size=SIZE)
    # The second and the third are computed twice: by requests that began at once.
    blocks = cached(pool, "a", "b", "c", "b", "c", "b")
    every = pool.blocks
    compute_anew(scheduler(pool))
    assert pool.blocks is every and len(every) == BLOCKS
    assert {each.block_hash for each in every} == {None}
    assert all(pool.get_cached_block(name.encode(), [0]) is None for name in "abc")  # type: ignore[arg-type]
    # And what is computed next is found.
    again = cached(pool, *(f"d{number}" for number in range(BLOCKS - 1)))
    assert {each.block_id for each in blocks} < {each.block_id for each in again}
    assert pool.get_cached_block(b"d7", [0]) is not None  # type: ignore[arg-type]


def test_blocks_that_are_watched_are_looked_up_by_their_numbers() -> None:
    pool = BlockPool(BLOCKS, enable_caching=True, hash_block_size=SIZE)
    (block,) = cached(pool, "a")
    pool._reuse_watchers[block.block_id] = SimpleNamespace()
    seen: list[int] = []
    pool._notify_reuse = lambda blocks: seen.extend(each.block_id for each in blocks)
    compute_anew(scheduler(pool))
    assert seen == [block.block_id]
    assert block.block_hash is None
