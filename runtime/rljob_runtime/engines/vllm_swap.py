"""Puts a version that has arrived beside the weights into the model between two steps of vLLM's engine core.

Guarantees:
- steps that were given to the ranks before are computed with the weights before, and all later ones with the
  new: an engine core gives the ranks their work in one order, in which the copy has its place (`FITTING`);
- what is counted as of the weights before are the tokens of those steps. The count is made when the outputs
  of the last of them were processed, and not foretold: what is pre-empted, aborted or ended meanwhile is
  counted as vLLM itself does;
- where requests keep their KV cache no step is waited for. Requests that have no token, and get none by the
  steps under way, are ended, to enter anew: else they would begin upon KV of weights that they have no token
  of;
- where the KV cache is computed anew the steps under way end first, as their tokens belong to what is
  computed: nothing is thrown away. The copy comes right behind them.

Runs in the engine core's process (`vllm_scheduler`).
"""

import inspect
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, Protocol, TypeAlias

SWAP = "put_in_between_steps"
"""Name of the engine core's utility, which is given the number of what arrived, and whether requests keep
their KV cache. It answers with a `Swapped` when the tokens of the weights before are counted."""

Swapped: TypeAlias = tuple[dict[str, int], list[str], float, float]
"""Tokens of the weights before, of each request that goes on; the requests that were ended, to enter anew;
from when to when nothing could run, in seconds of the monotonic clock. Requests by the core's names."""

FITTING = ("UniProcExecutor", "MultiprocExecutor")
"""vLLM's executors that give a rank its work in one order: in the thread that runs the model, and through a
queue. Those that are derived from them do too."""


class Counted(Protocol):
    """A request of vLLM's scheduler."""

    request_id: str
    num_output_placeholders: int
    """Tokens that it gets by steps under way; always 0 where there are none between two calls."""

    @property
    def num_output_tokens(self) -> int: ...


def without_token(requests: Iterable[Counted]) -> list[str]:
    """Those that have no token, and get none by the steps under way."""
    return [
        each.request_id
        for each in requests
        if each.num_output_tokens == 0 and each.num_output_placeholders == 0
    ]


def keeps_order(executor: type) -> bool:
    """Whether a class of executors is one of `FITTING`."""
    return not {each.__name__ for each in executor.__mro__}.isdisjoint(FITTING)


def swap_misfit() -> list[str]:
    """What of this vLLM is not as `swap` needs it; nothing where all is. Imports vLLM."""
    from vllm.v1.core.block_pool import BlockHashToBlockMap, BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine.core import EngineCore, EngineCoreProc
    from vllm.v1.executor.abstract import Executor
    from vllm.v1.request import Request

    needed = {
        "EngineCore.batch_queue": names(EngineCore.step_with_batch_queue, "batch_queue"),
        "EngineCore.pause_scheduler": hasattr(EngineCoreProc, "pause_scheduler")
        and hasattr(EngineCoreProc, "resume_scheduler"),
        "Executor.collective_rpc": "non_block" in inspect.signature(Executor.collective_rpc).parameters,
        "Request.num_output_placeholders": names(Request.__init__, "num_output_placeholders"),
        "AsyncScheduler._update_after_schedule": names(
            AsyncScheduler._update_after_schedule, "num_output_placeholders"
        ),
        "Scheduler.reset_prefix_cache": "reset_running_requests"
        in inspect.signature(Scheduler.reset_prefix_cache).parameters,
        "KVCacheManager.block_pool": names(KVCacheManager.__init__, "block_pool"),
        "BlockPool": names(BlockPool.reset_prefix_cache, "blocks")
        and names(BlockPool.__init__, "cached_block_hash_to_block"),
        "BlockHashToBlockMap": names(BlockHashToBlockMap.__init__, "_cache"),
    }
    return [name for name, fits in needed.items() if not fits]


def names(function: Any, attribute: str) -> bool:
    """Whether a function's own text has this attribute."""
    return attribute in function.__code__.co_names


def swap(core: Any, number: int, keep_kv: bool) -> "Future[Swapped]":
    """The utility; called between two steps."""
    return _between_steps(core, number) if keep_kv else _after_steps(core, number)


def _between_steps(core: Any, number: int) -> "Future[Swapped]":
    began = time.monotonic()
    # Not waited for: an answer would come after those of the steps under way.
    placed = core.model_executor.collective_rpc("place_between_steps", args=(number,), non_block=True)
    if unbegun := without_token(core.scheduler.requests.values()):
        core.abort_requests(unbegun)
    ended = time.monotonic()
    answer: Future[Swapped] = Future()

    def tell() -> Swapped:
        placed.result()
        return _counts(core), unbegun, began, ended

    # The newest is the first; each is a future, and what the step was to do.
    if core.batch_queue:
        core.scheduler.when_processed(core.batch_queue[0][1], lambda: _answer(answer, tell))
    else:
        _answer(answer, tell)
    return answer


def _after_steps(core: Any, number: int) -> "Future[Swapped]":
    # Behind the steps under way, of which none comes after it: nothing has to wait for the copy itself.
    placed = core.model_executor.collective_rpc("place_between_steps", args=(number,), non_block=True)
    answer: Future[Swapped] = Future()

    def put_in() -> Swapped:
        began = time.monotonic()
        placed.result()
        compute_anew(core.scheduler)
        counts = _counts(core)
        core.resume_scheduler()
        _wake(core)
        return counts, [], began, time.monotonic()

    idle: Future[Any] | None = core.pause_scheduler("keep", False)
    if idle is None:
        _answer(answer, put_in)
    else:
        idle.add_done_callback(lambda ended: _answer(answer, lambda: (ended.result(), put_in())[1]))
    return answer


def compute_anew(scheduler: Any) -> None:
    """Forget the KV cache, that of running requests too, in a scheduler of vLLM's that has no step under way.

    vLLM looks at every block that a GPU has room for, tens of thousands, and takes milliseconds for it, in
    which nothing runs. It is shown those alone that a prompt can be found in."""
    pool = scheduler.kv_cache_manager.block_pool
    blocks = pool.blocks
    # Newer versions look watched blocks up by their numbers.
    if not getattr(pool, "_reuse_watchers", None):
        pool.blocks = _found_by_prompts(pool)
    try:
        scheduler.reset_prefix_cache(reset_running_requests=True)
    finally:
        pool.blocks = blocks


def _found_by_prompts(pool: Any) -> list[Any]:
    """The blocks that have a hash, which vLLM keeps by it: one, or several by their numbers."""
    found: list[Any] = []
    for each in pool.cached_block_hash_to_block._cache.values():
        if isinstance(each, dict):
            found.extend(each.values())
        else:
            found.append(each)
    return found


def _wake(core: Any) -> None:
    """A core that is idle waits for a message once it has told so, though it has work by now."""
    from vllm.v1.engine import EngineCoreRequestType

    core.input_queue.put_nowait((EngineCoreRequestType.ABORT, []))


def _counts(core: Any) -> dict[str, int]:
    return {name: each.num_output_tokens for name, each in core.scheduler.requests.items()}


def _answer(answer: "Future[Swapped]", tell: Callable[[], Swapped]) -> None:
    try:
        answer.set_result(tell())
    except Exception as error:  # noqa: BLE001 - the front end is told, whatever went wrong
        answer.set_exception(error)
