"""When the steps of a vLLM engine begin and end, as its engine core sees it.

Patched in the place of `vllm_scheduler.FACTORY`. A step begins when it was scheduled, right before its work
is given to the ranks, and has ended when its outputs are there. Times are of the monotonic clock, which all
processes of a machine share.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from rljob_runtime.engines.vllm_scheduler import scheduler as holding

FACTORY = f"{__name__}.scheduler"
TAKE = "take_step_times"
"""Name of the engine core's utility that gives what was recorded since it was called last."""

Step = tuple[float, bool, int]
"""When, whether a step ended (else: began), and the tokens that it gave."""


def scheduler(**arguments: Any) -> Any:
    from vllm.v1.engine.core import EngineCoreProc

    setattr(EngineCoreProc, TAKE, _take)
    made = holding(**arguments)
    made.__class__ = type(f"Timed{type(made).__name__}", (_Timed, type(made)), {})
    made.step_times = []
    return made


def _take(core: Any) -> list[Step]:
    taken: list[Step] = core.scheduler.step_times
    core.scheduler.step_times = []
    return taken


class _Timed:
    step_times: list[Step]

    def schedule(self, *arguments: Any, **named: Any) -> Any:
        made = super().schedule(*arguments, **named)  # type: ignore[misc]
        if made.total_num_scheduled_tokens:
            self.step_times.append((time.monotonic(), False, 0))
        return made

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        if scheduler_output.total_num_scheduled_tokens:
            tokens = sum(map(len, model_runner_output.sampled_token_ids))
            self.step_times.append((time.monotonic(), True, tokens))
        return super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]


@dataclass(frozen=True)
class Flow:
    """What an update did to an engine's steps, in milliseconds."""

    usual: float
    """Between two steps that give tokens, before the update: median."""
    longest: float
    """The longest time between two such from the update on."""
    idle: float
    """The longest time from then on in which no step was under way."""


def flow(steps: Sequence[Step], since: float) -> Flow:
    """`steps` in their order, from before the update, which began at `since`, to some steps after it."""
    gave = [when for when, ended, tokens in steps if ended and tokens]
    between = list(pairwise(gave))
    before = [end - begin for begin, end in between if end <= since]
    after = [end - begin for begin, end in between if end > since]
    under_way, ended_at, idle = 0, None, [0.0]
    for when, ended, _ in steps:
        if not ended and under_way == 0 and ended_at is not None and when > since:
            idle.append(when - ended_at)
        # Those that had begun before the first record are not known.
        under_way = max(0, under_way + (-1 if ended else 1))
        ended_at = when if ended else ended_at
    return Flow(1e3 * statistics.median(before), 1e3 * max(after), 1e3 * max(idle))
