"""vLLM's scheduler, with new prompts that wait for one another (`prefill_gate`).

Guarantees:
- a step in which prompts wait is one that vLLM schedules as while it is paused for new requests: those that
  run go on, with prompts that have begun, and nothing is taken off its queues;
- pauses, and whatever else vLLM is told, are as they are without: its state of pausing is its own again when
  the step is scheduled;
- a version of vLLM that is not known to schedule so is left as it is, and the log says so.

Runs in the engine core's process, where vLLM makes its scheduler by `FACTORY`; `obstacle` in the host's.
"""

import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from rljob_runtime.engines.prefill_gate import PrefillGate, Queue
from rljob_runtime.engines.vllm_blocks import Sparing
from rljob_runtime.engines.vllm_drafting import Drafting
from rljob_runtime.engines.vllm_plain_steps import Continuing
from rljob_runtime.engines.vllm_read import differing
from rljob_runtime.engines.vllm_scheduler import Holding, made_of
from rljob_runtime.engines.vllm_swap import names

FACTORY = f"{__name__}.scheduler"
"""For vLLM's `scheduler_cls`."""

_log = logging.getLogger(__name__)


def scheduler(**arguments: Any) -> Any:
    """As `vllm_scheduler.scheduler`, with prompts that wait."""
    return made_of((Delaying, Sparing, Drafting, Continuing, Holding), arguments)


class Delaying:
    """What comes before a scheduler class of vLLM."""

    running: list[Any]
    waiting: Any
    kv_cache_manager: Any
    block_size: int
    """Tokens."""
    max_num_running_reqs: int
    max_num_scheduled_tokens: int
    _pause_state: Any

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.gate = PrefillGate()
        self._full = False
        """Whether the last step had as many tokens as a step may have: prompts go on in the next one."""
        self._under_way: deque[tuple[Any, float, int]] = deque()
        """Steps that have begun: each with when it did, and how many tokens of prompts it computes."""
        self._last_end = 0.0

    def schedule(self, *arguments: Any, **named: Any) -> Any:
        """Called by vLLM before each step."""
        began, running = time.monotonic(), len(self.running)
        if self.prompts_wait(began):
            made = self._schedule_running(*arguments, **named)
        else:
            made = super().schedule(*arguments, **named)  # type: ignore[misc]
        if len(self.running) > running:
            self.gate.began()
        if tokens := made.total_num_scheduled_tokens:
            drafted = sum(map(len, made.scheduled_spec_decode_tokens.values()))
            self._under_way.append((made, began, tokens - len(made.num_scheduled_tokens) - drafted))
            self._full = tokens >= self.max_num_scheduled_tokens
        return made

    def prompts_wait(self, now: float) -> bool:
        """Whether no prompt begins in the step that is about to."""
        if self._pause_state.name != "UNPAUSED":
            return False
        running, waiting = self.get_request_counts()  # type: ignore[attr-defined]
        admissible = min(waiting, self.max_num_running_reqs - running)
        at_once, room = False, None
        if admissible > 0:
            at_once = self._full or self._preempted() or not any(map(_goes_on, self.running))
            room = self._room()
        return not self.gate.admits(Queue(running, max(0, admissible), at_once, room), now)

    def _room(self) -> int | None:
        """How many the KV cache has free blocks for, if all are like the first that waits and none is found
        there. None where it is vLLM that lets all of them wait."""
        if not self.waiting:
            return None
        blocks: int = -(-self.waiting.peek_request().num_tokens // self.block_size)
        free: int = self.kv_cache_manager.block_pool.get_num_free_blocks()
        return free // blocks

    def _schedule_running(self, *arguments: Any, **named: Any) -> Any:
        own = self._pause_state
        self._pause_state = type(own).PAUSED_NEW
        try:
            return super().schedule(*arguments, **named)  # type: ignore[misc]
        finally:
            self._pause_state = own

    def _preempted(self) -> bool:
        """Whether the first that waits was pre-empted: vLLM puts those before all others."""
        # Older versions have a queue of its own for what they passed over.
        queues = (self.waiting, getattr(self, "skipped_waiting", None))
        return any(queue and queue.peek_request().status.name == "PREEMPTED" for queue in queues)

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Called by vLLM after each step."""
        if scheduler_output.total_num_scheduled_tokens:
            self._ended(scheduler_output, time.monotonic())
        return super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]

    def _ended(self, step: Any, now: float) -> None:
        # In their order; one that failed has no outputs.
        while self._under_way:
            made, began, prompt_tokens = self._under_way.popleft()
            if made is step:
                # Steps that were under way with it, and times without any, are not its own.
                self.gate.ended(prompt_tokens, now - max(began, self._last_end))
                break
        self._last_end = now


def _goes_on(request: Any) -> bool:
    """Whether a running request gets more tokens than by the steps under way."""
    more: bool = request.num_output_tokens + request.num_output_placeholders < request.max_tokens
    return more


def delays(accelerator: str, holds_outputs: bool) -> bool:
    """Whether prompts can wait in this vLLM; where not, the log says why. Imports vLLM."""
    own = f"its scheduler on {accelerator} is vLLM's own"
    why = differing(prefills_misfit()) if holds_outputs else own
    if why:
        _log.warning("delayPrefills does nothing, and new prompts begin as vLLM has it: %s", why)
    return not why


def prefills_misfit() -> Sequence[str]:
    """What of this vLLM is not as `Delaying` needs it; nothing where all is. Imports vLLM."""
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.sched.interface import PauseState
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.core.sched.request_queue import RequestQueue
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.request import Request, RequestStatus

    kept = ("_pause_state", "running", "waiting", "max_num_running_reqs", "max_num_scheduled_tokens")
    counted = ("kv_cache_manager", "block_size")
    told = {"num_scheduled_tokens", "total_num_scheduled_tokens", "scheduled_spec_decode_tokens"}
    needed = {
        "Scheduler.schedule": names(Scheduler.schedule, "_pause_state"),
        "Scheduler": all(names(Scheduler.__init__, each) for each in (*kept, *counted)),
        "Scheduler.get_request_counts": hasattr(Scheduler, "get_request_counts"),
        "KVCacheManager": names(KVCacheManager.__init__, "block_pool")
        and hasattr(BlockPool, "get_num_free_blocks"),
        "PauseState": {"UNPAUSED", "PAUSED_NEW"} <= set(PauseState.__members__),
        "SchedulerOutput": told <= {each.name for each in fields(SchedulerOutput)},
        "RequestQueue.peek_request": hasattr(RequestQueue, "peek_request"),
        "RequestStatus": "PREEMPTED" in RequestStatus.__members__,
        "Request": names(Request.__init__, "num_output_placeholders")
        and names(Request.__init__, "max_tokens")
        and hasattr(Request, "num_output_tokens")
        and hasattr(Request, "num_tokens"),
    }
    return [name for name, fits in needed.items() if not fits]
