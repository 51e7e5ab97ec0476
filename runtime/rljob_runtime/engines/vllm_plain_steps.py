"""Spares vLLM's scheduler the general way of a plain step: one in which every request that runs gets its next
token, whatever begins beside them.

vLLM decides that for each request anew, and copies what it found three times. With hundreds of requests that
is most of what an engine core still computes for a step where outputs are held back, blocks are spared and
plain tokens are taken in at once (`tests/bench/step_scheduling`), in the one thread that bounds an engine of
a small model.

Guarantees:
- what a plain step does, and what it changes of requests and blocks, is what vLLM's own would;
- requests that begin in it are vLLM's, which is told how much room the others leave;
- every other step is vLLM's own: with part of a prompt, with drafts, with fewer free blocks than are needed,
  and where one with another adapter may begin; all are where layers differ in what they keep;
- a version of vLLM whose functions are not, word for word, those that were read is left as it is, and the log
  says so.

Runs in the engine core's process (`vllm_scheduler`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from rljob_runtime.engines.vllm_plain_tokens import PlainTokens
from rljob_runtime.engines.vllm_read import different, digest

_OLDER = "bd64487d34ef0ebd"
"""`Scheduler.schedule` of vLLM 0.22.1."""
_READ = {
    "AsyncScheduler._update_after_schedule": ("c50e31f2be2d1540", "293b2335caea0263"),
    "KVCacheManager.allocate_slots": ("bc8caf68012052be", "58a4f9d510e9bbc1"),
    "Scheduler._make_cached_request_data": ("a07a97a4460ec1aa", "a61ed736a6147fe5"),
    "Scheduler._update_after_schedule": ("014b0d3cb8b899bd", "be8c7c878fd6bf75"),
    "Scheduler.schedule": (_OLDER, "173739b0989f328f"),
}
"""What decides over a step, with digests of the words that were read: of vLLM 0.22.1 and 0.32.0."""
_LIMITS = ("max_num_running_reqs", "max_num_active_reqs")
"""vLLM's names for how many requests may run."""
_FEWEST = 8
"""Requests, below which a step's own way costs nothing that shows."""


class _Step(NamedTuple):
    """A plain one; lists are of its requests, in their order."""

    requests: list[Any]
    names: list[str]
    computed: list[int]
    """Tokens before it."""
    generated: list[int]
    """Tokens of the response, with those that are under way."""
    asking: list[int]
    """The places of those that need a block, or have one that can be found from now on."""


class Continuing:
    """What comes before `Holding`."""

    running: list[Any]
    kv_cache_manager: Any
    lora_config: Any
    max_model_len: int
    max_num_scheduled_tokens: int
    prev_step_scheduled_req_ids: set[str]
    scheduler_config: Any
    use_v2_model_runner: bool
    _plain: PlainTokens | None
    _pause_state: Any

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._serves = self._plain is not None and not steps_misfit() and self._is_simple()
        if not self._serves:
            return
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.request import Request

        counts = Request.__init__.__code__.co_names
        self._ahead = isinstance(self, AsyncScheduler)
        """Whether a step's tokens are counted before it has ended."""
        self._in_flight = "num_in_flight_tokens" in counts
        self._staggered = "next_decode_eligible_step" in counts and self._ahead and self.use_v2_model_runner
        self._tracks = not self.use_v2_model_runner or digest(Scheduler.schedule) == _OLDER
        """Whether vLLM keeps which requests were in the last step."""

    def _is_simple(self) -> bool:
        """Whether any step of this scheduler may be plain."""
        return not (
            getattr(self, "num_spec_tokens", 0)
            or getattr(self, "num_lookahead_tokens", 0)
            or getattr(self, "num_prefill_lookahead", 0)
            or getattr(self, "use_pp", False)
            or getattr(self, "defer_block_free", False)
            or getattr(self, "need_mamba_block_aligned_split", False)
            or getattr(self, "decode_stagger", 1) != 1
            or getattr(self, "num_sampled_tokens_per_step", 1) != 1
            or getattr(self.kv_cache_manager, "watermark_blocks", 0)
            or self.scheduler_config.long_prefill_token_threshold
        )

    def schedule(self, *arguments: Any, **named: Any) -> Any:
        """Called by vLLM before each step."""
        own: Callable[..., Any] = super().schedule  # type: ignore[misc]
        step = None
        if self._serves and not (any(arguments) or any(named.values())) and self._goes_on():
            step = self._plain_step()
        if step is None:
            return own(*arguments, **named)
        blocks = self._blocks(step)
        made = self._of_others(own, len(step.requests))
        self._add(made, step, blocks)
        self._advance(step)
        return made

    def _goes_on(self) -> bool:
        if self._pause_state.name == "PAUSED_ALL":
            return False
        # How many adapters there may be in a step is for vLLM to see.
        return not self.lora_config or not self.get_request_counts()[1]  # type: ignore[attr-defined]

    def _plain_step(self) -> _Step | None:
        """None where it is not plain. Changes nothing."""
        if not _FEWEST <= len(self.running) <= self.max_num_scheduled_tokens or self._plain is None:
            return None
        step, known, look = _Step([], [], [], [], []), self._plain.known, self._plain.look
        keeper, last = self.kv_cache_manager.coordinator.single_type_managers[0], self.max_model_len - 2
        size, blocks_of, cached_of = keeper.block_size, keeper.req_to_blocks, keeper.num_cached_block
        caches, recent = self.kv_cache_manager.enable_caching, self.prev_step_scheduled_req_ids
        tracks, needed = self._tracks, 0
        # Once for each running request, while the accelerator may be waiting: no calls that can be spared.
        for request in self.running:
            name, before = request.request_id, request.num_computed_tokens
            ahead, whole = request.num_output_placeholders, len(request._all_token_ids)
            if ahead and before + 2 - ahead >= request.num_prompt_tokens + request.max_tokens:
                # Its last token is under way.
                continue
            if (
                whole + ahead - before != 1
                or before > last
                or request.spec_token_ids
                or (known[name] if name in known else look(name)) is None
                or (tracks and name not in recent)
            ):
                return None
            lacks = before >= len(blocks_of[name]) * size
            if lacks or (caches and min(before + 1, whole) // size > cached_of.get(name, 0)):
                step.asking.append(len(step.requests))
                needed += lacks
            step.requests.append(request)
            step.names.append(name)
            step.computed.append(before)
            step.generated.append(len(request._output_token_ids) + ahead)
        if not step.requests or needed > self.kv_cache_manager.block_pool.get_num_free_blocks():
            return None
        return step

    def _blocks(self, step: _Step) -> list[Any]:
        """New ones, by request; None for those that need none."""
        blocks: list[Any] = [None] * len(step.requests)
        for place in step.asking:
            found = self.kv_cache_manager.allocate_slots(step.requests[place], 1, num_lookahead_tokens=0)
            if found is None:
                raise RuntimeError("vLLM's KV cache manager has free blocks and gives none")
            blocks[place] = found.get_block_ids(allow_none=True)
        return blocks

    def _of_others(self, own: Callable[..., Any], tokens: int) -> Any:
        """A step of the requests that begin in it, with all else that vLLM has to tell its ranks, where those
        that run are given so many tokens."""
        limits = {name: getattr(self, name) for name in _LIMITS if hasattr(self, name)}
        running = self.running
        for name, most in limits.items():
            setattr(self, name, most - len(running))
        self.max_num_scheduled_tokens -= tokens
        self.running = []
        try:
            return own()
        finally:
            self.running = running + self.running
            self.max_num_scheduled_tokens += tokens
            for name, most in limits.items():
                setattr(self, name, most)

    def _add(self, made: Any, step: _Step, blocks: list[Any]) -> None:
        """To what the step is to do: before the requests that begin, as vLLM has them."""
        made.num_scheduled_tokens = {**dict.fromkeys(step.names, 1), **made.num_scheduled_tokens}
        made.total_num_scheduled_tokens += len(step.names)
        cached = made.scheduled_cached_reqs
        cached.req_ids = step.names + cached.req_ids
        cached.new_block_ids = blocks + cached.new_block_ids
        cached.num_computed_tokens = step.computed + cached.num_computed_tokens
        cached.num_output_tokens = step.generated + cached.num_output_tokens
        if self._tracks:
            self.prev_step_scheduled_req_ids.update(step.names)
        if hasattr(made, "num_common_prefix_blocks"):
            made.num_common_prefix_blocks = self.kv_cache_manager.get_num_common_prefix_blocks(
                self.running[0].request_id
            )

    def _advance(self, step: _Step) -> None:
        """What vLLM notes of each request."""
        ahead, in_flight, staggered = self._ahead, self._in_flight, self._staggered
        none: list[int] = getattr(self, "_spec_token_placeholders", [])
        for request, before in zip(step.requests, step.computed, strict=True):
            request.num_computed_tokens = before + 1
            request.is_prefill_chunk = False
            if in_flight:
                request.num_in_flight_tokens += 1
            if ahead:
                request.num_output_placeholders += 1
                request.spec_token_ids = none
            if staggered:
                request.next_decode_eligible_step = self.current_step + 1  # type: ignore[attr-defined]


def steps_misfit() -> list[str]:
    """What of this vLLM was not read; nothing where all was. Imports vLLM."""
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    functions = (
        AsyncScheduler._update_after_schedule, KVCacheManager.allocate_slots,
        Scheduler._make_cached_request_data, Scheduler._update_after_schedule, Scheduler.schedule,
    )  # fmt: skip
    return different(_READ, functions)
