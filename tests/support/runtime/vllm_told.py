"""What a step of vLLM's scheduler tells, what comes of it, and what its KV cache keeps, in a form that can be
compared; and two schedulers that have the same to do."""

import random
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from vllm.v1.core.sched.interface import PauseState

from rljob_runtime.engines.vllm_plain_tokens import _STALE
from rljob_runtime.engines.vllm_swap import compute_anew
from tests.support.runtime.vllm_schedulers import Steps

SIZES: dict[str, Any] = {"requests": 8, "blocks": 200, "tokens": 64, "longest": 160}
KINDS: dict[str, dict[str, Any]] = {
    "two steps under way": {},
    "one step": {"asynchronous": False},
    "drafts": {"asynchronous": False, "drafts": 3},
    "no prompts looked up": {"caching": False},
}
"""Of schedulers."""


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


def another(own: Callable[..., Any]) -> Callable[..., Any]:
    """A method that does the same by other words, and has the same name."""

    def other(scheduler: Any, *given: Any) -> Any:
        return own(scheduler, *given)

    other.__qualname__ = own.__qualname__
    return other


def state(steps: Steps) -> dict[str, Any]:
    """Of each request all that tokens change, with what is kept of it."""
    scheduler = steps.scheduler
    counted = (
        "num_computed_tokens", "num_output_placeholders", "num_in_flight_tokens", "is_prefill_chunk",
        "spec_token_ids", "next_decode_eligible_step", *_STALE,
    )  # fmt: skip
    held = {name: (each.tokens, each.log_probs.tolist()) for name, each in scheduler._outputs.items()}
    return {
        name: (
            each.status,
            list(each.all_token_ids),
            list(each.output_token_ids),
            list(each.block_hashes),
            [getattr(each, count, None) for count in counted],
            held.get(name),
        )
        for name, each in scheduler.requests.items()
    }


def sent(steps: Steps) -> list[Any]:
    """What the last step sends, but for the times of what happened."""
    return [
        (
            output.request_id, output.new_token_ids, output.new_logprobs.logprobs.tolist(),
            output.finish_reason, output.stop_reason, [event.type for event in output.events or ()],
        )
        for each in steps.sent.values() for output in each.outputs
    ]  # fmt: skip


def alike(own: Steps, spared: Steps, drawn: random.Random, steps: int = 500) -> bool:
    """Give two schedulers the same to do, at random, and assert that they do the same in every step. Returns
    whether any request was pre-empted."""
    both = (own, spared)
    prompts = [[drawn.randrange(60) for _ in range(drawn.randrange(1, 70))] for _ in range(6)]
    preempted = False
    for number in range(steps):
        if drawn.random() < 0.2:
            prompt, tokens = drawn.choice(prompts), drawn.randrange(1, 90)
            ends = drawn.sample(range(60), 2) if drawn.random() < 0.5 else ()
            for each in both:
                each.add(f"r{number}", prompt, tokens, ends)
        if drawn.random() < 0.02 and own.scheduler.requests:
            name = drawn.choice(sorted(own.scheduler.requests))
            for each in both:
                each.abort(name)
        if cleared := drawn.random() < 0.01:
            drained = drawn.random() < 0.5
            for each in both:
                if drained:
                    each.drain()
                compute_anew(each.scheduler)
        if drawn.random() < 0.03:
            paused = drawn.choice([PauseState.UNPAUSED, *PauseState])
            for each in both:
                each.scheduler.set_pause_state(paused)
        step, other = (each.step() for each in both)
        assert told(step) == told(other), f"step {number}"
        assert sent(own) == sent(spared), f"step {number}"
        assert state(own) == state(spared), f"step {number}"
        last, other = (each.scheduler.prev_step_scheduled_req_ids for each in both)
        assert last == other, f"step {number}"
        assert kept(own) == kept(spared), f"step {number}"
        preempted |= bool(step.preempted_req_ids) and not cleared
    return preempted
