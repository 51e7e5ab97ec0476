"""The fake engine's cost model, in virtual time: what is generated when."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import numpy as np
import pytest

from rljob_runtime.engines.fake import FakeEngine, FakeTiming
from rljob_runtime.engines.protocol import Request, WeightRef
from rljob_runtime.samples import Generation, Span
from rljob_runtime.simulate.virtual_loop import run_virtual

STEP = FakeTiming(step_seconds=0.01)
FULL = FakeTiming(step_seconds=0.01, sequence_seconds=0.005, prefill_seconds=0.001)


def asked(name: str, length: int, prompt: int = 10) -> Request:
    """A request whose response has `length` tokens."""
    return Request(name, np.arange(prompt, dtype=np.int32), 1000, seed=length)


async def engine_of(timing: FakeTiming, max_running: int = 64) -> FakeEngine:
    engine = FakeEngine("fake", lambda request: request.seed, max_running, timing)
    await engine.start(0)
    return engine


async def ends(engine: FakeEngine, requests: Sequence[Request]) -> list[float]:
    """When each of the requests, submitted together, ends; in seconds."""

    async def end(request: Request) -> float:
        await engine.submit(request)
        return asyncio.get_running_loop().time()

    return list(await asyncio.gather(*[end(request) for request in requests]))


@pytest.mark.parametrize(
    ("timing", "slots", "lengths", "expected"),
    [
        (STEP, 64, [1, 7, 30], [0.01, 0.07, 0.30]),
        (STEP, 1, [10, 5, 0, 5], [0.10, 0.15, 0.15, 0.20]),
        (STEP, 2, [10, 4, 6], [0.10, 0.04, 0.10]),
        # 10 prompt tokens take 0.01 s; then a step takes 0.02 s for two and 0.015 s for one.
        (FULL, 64, [10, 20], [0.21, 0.36]),
        (FULL, 1, [10, 10], [0.16, 0.32]),
        (FakeTiming(step_seconds=0.0), 1, [10, 20], [0.0, 0.0]),
    ],
)
def test_requests_end_when_the_cost_model_says(
    timing: FakeTiming, slots: int, lengths: list[int], expected: list[float]
) -> None:
    async def main() -> list[float]:
        engine = await engine_of(timing, slots)
        return await ends(engine, [asked(f"r{index}", length) for index, length in enumerate(lengths)])

    assert run_virtual(main()) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("seconds", "tokens"), [(0.0, 0), (0.009, 0), (0.01, 3), (0.255, 75), (0.5, 150), (2.0, 300)]
)
def test_progress_is_exact_between_two_events(seconds: float, tokens: int) -> None:
    async def main() -> int:
        engine = await engine_of(STEP)
        tasks = [asyncio.create_task(engine.submit(asked(f"r{index}", 100))) for index in range(3)]
        await asyncio.sleep(seconds)
        generated = (await engine.load_snapshot()).generated_tokens
        assert {got.finish for got in await asyncio.gather(*tasks)} == {"stop"}
        return generated

    assert run_virtual(main()) == tokens


def interrupted(act: Any) -> tuple[Generation, float]:
    """A response of 100 tokens at 0.01 s, `act` called on the engine after 0.255 s; and when it ended."""

    async def main() -> tuple[Generation, float]:
        engine = await engine_of(STEP)
        task = asyncio.create_task(engine.submit(asked("r", 100)))
        await asyncio.sleep(0.255)
        await act(engine)
        return await task, asyncio.get_running_loop().time()

    return run_virtual(main())


def test_an_abort_returns_what_was_generated_up_to_then() -> None:
    def abort(engine: FakeEngine) -> Coroutine[Any, Any, None]:
        return engine.abort("r")

    got, ended = interrupted(abort)
    assert (got.finish, len(got.tokens), ended) == ("abort", 25, pytest.approx(0.255))


def test_a_load_labels_what_comes_after_it_and_time_stands_still_in_a_pause() -> None:
    async def update(engine: FakeEngine) -> None:
        await engine.pause("keep")
        await asyncio.sleep(10)
        await engine.load(WeightRef(1, "shm", "anywhere"))
        await engine.resume()

    got, ended = interrupted(update)
    assert got.spans == (Span(0, 0, 25), Span(1, 25, 100))
    assert ended == pytest.approx(11.0)
