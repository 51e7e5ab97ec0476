"""A job of three engines whose steps take long beside its responses, and go on while something is wrong with
one of the engines: in virtual time."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from rljob_runtime.engines.fake import FakeTiming
from rljob_runtime.engines.protocol import PauseMode
from tests.support.simulated.scaled_job import ScaledJob
from tests.support.simulated.simulated_job import Scenario, SimulatedJob

TRAIN_SECONDS = 250.0
STALL_SECONDS = 600.0
SHORTEST, LONGEST = 3000, 3499
"""Tokens of responses, of which an engine generates 50 a second."""


def long_steps(
    script: Callable[[ScaledJob], Coroutine[Any, Any, None]],
    steps: int,
    max_staleness: float,
    masks: bool = False,
    in_flight: PauseMode | None = "keep",
) -> Scenario:
    """Of a `ScaledJob`, beside which `script` runs."""

    def beside(job: SimulatedJob) -> "asyncio.Task[None]":
        assert isinstance(job, ScaledJob)
        return job.shepherd(script(job))

    return Scenario(
        steps=steps, groups_per_step=6, samples_per_prompt=2, max_staleness=max_staleness, masks=masks,
        engines=3, in_flight=in_flight, max_running=4, stall_seconds=STALL_SECONDS,
        train_seconds=TRAIN_SECONDS,
        length_of=lambda request: SHORTEST + request.seed % (LONGEST + 1 - SHORTEST),
        max_response_tokens=4000, timing=FakeTiming(step_seconds=0.02, load_seconds=0.02),
        faults=beside,
    )  # fmt: skip
