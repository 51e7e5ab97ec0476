"""What a vLLM engine core's steps are like, and whether its new prompts wait for one another: one told,
the other changed at run time, for `engine_refill`.

Patched in the place of `vllm_compat.DELAYING`. Times are of the monotonic clock, which all processes of a
machine share. A request's wait is that in the core, until the outputs of the step that computed its prompt.
"""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from rljob_runtime.engines.vllm_blocks import Sparing
from rljob_runtime.engines.vllm_plain_steps import Continuing
from rljob_runtime.engines.vllm_prefills import Delaying
from rljob_runtime.engines.vllm_scheduler import Holding, made_of
from tests.support.runtime.vllm_schedulers import ByToken

SPARED = ("all", "blocks", "nothing")
"""What vLLM's scheduler is spared: all, as engines run; its KV cache manager's way through its layers alone;
nothing but sending each token."""
GATE = "let_prompts_wait"
"""Name of the engine core's utility that is told whether new prompts wait for one another from now on."""
TAKE = "take_steps"
"""Name of the one that gives a `Taken` of what was recorded since it was called last."""


class Step(NamedTuple):
    """One whose outputs have come."""

    ended: float
    tokens: int
    """That it drew."""
    prompt_tokens: int
    """That it computed beside one for each request."""


class Taken(NamedTuple):
    """What was recorded."""

    steps: Sequence[Step]
    waits: Sequence[tuple[float, float]]
    """Of each request whose prompt was computed: when its step ended, and the seconds since it came."""
    costs: tuple[float, float] | None
    """Seconds of a step that only decodes, and what a prompt costs beyond that, as the gate sees it now."""


def factory(spared: str) -> str:
    """For vLLM's `scheduler_cls`."""
    return f"{__name__}.spared_{spared}"


def spared_all(**arguments: Any) -> Any:
    return _told((_Clocked, Delaying, Sparing, Continuing, Holding), arguments)


def spared_blocks(**arguments: Any) -> Any:
    return _told((_Clocked, Delaying, Sparing, ByToken), arguments)


def spared_nothing(**arguments: Any) -> Any:
    return _told((_Clocked, Delaying, ByToken), arguments)


def _told(parts: tuple[type, ...], arguments: dict[str, Any]) -> Any:
    from vllm.v1.engine.core import EngineCoreProc

    setattr(EngineCoreProc, GATE, _gate)
    setattr(EngineCoreProc, TAKE, _take)
    return made_of(parts, arguments)


def _gate(core: Any, waits: bool) -> None:
    core.scheduler.gated = waits


def _take(core: Any) -> Taken:
    taken: Taken = core.scheduler.take()
    return taken


class _Clocked:
    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.gated = False
        self._steps: list[Step] = []
        self._waits: list[tuple[float, float]] = []
        self._came: dict[str, float] = {}

    def add_request(self, request: Any) -> None:
        self._came[request.request_id] = time.monotonic()
        super().add_request(request)  # type: ignore[misc]

    def prompts_wait(self, now: float) -> bool:
        return self.gated and super().prompts_wait(now)  # type: ignore[misc]

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        asked, now = scheduler_output, time.monotonic()
        if asked.total_num_scheduled_tokens:
            drawn = sum(map(len, model_runner_output.sampled_token_ids))
            prompt_tokens = asked.total_num_scheduled_tokens - len(asked.num_scheduled_tokens)
            self._steps.append(Step(now, drawn, prompt_tokens))
            for new in asked.scheduled_new_reqs:
                self._waits.append((now, now - self._came.pop(new.req_id, now)))
        return super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]

    def take(self) -> Taken:
        known = self.gate._times.costs()  # type: ignore[attr-defined]
        taken = Taken(self._steps, self._waits, None if known is None else (known.pure, known.extra))
        self._steps, self._waits = [], []
        return taken


def taken(answer: Sequence[Any]) -> Taken:
    """As the core gave it: tuples are lists on the way."""
    steps, waits, costs = answer
    return Taken(
        [Step(*each) for each in steps],
        [(when, wait) for when, wait in waits],
        costs and (costs[0], costs[1]),
    )
