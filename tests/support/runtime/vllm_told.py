"""What a step of vLLM's scheduler tells, and what its KV cache keeps, in a form that can be compared."""

from dataclasses import asdict
from typing import Any

from tests.support.runtime.vllm_schedulers import Steps


def told(asked: Any) -> dict[str, Any]:
    """What a step is to do, with the blocks of each request."""
    return {
        "new": [(each.req_id, each.block_ids, each.num_computed_tokens) for each in asked.scheduled_new_reqs],
        "cached": asdict(asked.scheduled_cached_reqs),
        "tokens": asked.num_scheduled_tokens,
        "ended": asked.finished_req_ids,
        "preempted": asked.preempted_req_ids,
    }


def kept(steps: Steps) -> list[Any]:
    """Of each block: who has it, and what a prompt finds it by."""
    pool = steps.scheduler.kv_cache_manager.block_pool
    return [(block.ref_cnt, block.block_hash) for block in pool.blocks]
