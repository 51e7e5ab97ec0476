"""The fake engine's cost model, in virtual time: what is generated when."""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from rljob_runtime.engines.fake import FakeEngine, FakeTiming
from rljob_runtime.engines.protocol import Request, WeightRef
from rljob_runtime.samples import Generation, Span
from rljob_runtime.simulate.virtual_loop import Stalled, run_virtual

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


@pytest.mark.parametrize(
    ("length", "max_tokens", "generated", "tokens", "finish"),
    [
        (100, 60, 0, 60, "length"),
        (20, 60, 0, 60, "length"),
        (20, 60, 30, 60, "length"),
        (20, 60, 5, 60, "length"),
    ],
)
def test_an_exact_request_gets_what_it_asks_for_whatever_its_response_would_have(
    length: int, max_tokens: int, generated: int, tokens: int, finish: str
) -> None:
    async def main() -> Generation:
        engine = await engine_of(STEP)
        prompt = np.arange(10 + generated, dtype=np.int32)
        return await engine.submit(Request("r", prompt, max_tokens, length, generated, exact=True))

    got = run_virtual(main())
    assert (len(got.tokens), got.finish) == (tokens, finish)


def test_progress_is_told_at_each_interval_while_requests_run_and_exact() -> None:
    """Two requests of 60 and 100 tokens at 0.01 s, a pause of 10 s after 0.45 s, told every 0.2 s."""

    async def main() -> list[tuple[float, dict[str, int]]]:
        engine, clock = await engine_of(STEP), asyncio.get_running_loop().time
        told: list[tuple[float, dict[str, int]]] = []
        engine.on_progress(lambda tokens, _: told.append((round(clock(), 3), dict(tokens))), 0.2)
        await asyncio.sleep(5)
        tasks = [asyncio.create_task(engine.submit(asked(f"r{length}", length))) for length in (60, 100)]
        await asyncio.sleep(0.45)
        await engine.pause("keep")
        await asyncio.sleep(10)
        await engine.resume()
        await asyncio.gather(*tasks)
        await asyncio.sleep(5)
        return told

    assert run_virtual(main()) == [
        (5.2, {"r60": 20, "r100": 20}),
        (5.4, {"r60": 40, "r100": 40}),
        (15.65, {"r100": 65}),
        (15.85, {"r100": 85}),
    ]


@pytest.mark.parametrize("end", ["close", "finish"])
def test_nothing_is_told_of_an_engine_that_runs_nothing(end: str) -> None:
    """Also no timer is left: the loop would have something to wait for, and nothing to stall on."""

    async def main() -> None:
        engine = await engine_of(STEP)
        engine.on_progress(lambda tokens, prefilled: None, 0.2)
        task = asyncio.create_task(engine.submit(asked("r", 10 if end == "finish" else 1000)))
        await asyncio.sleep(0.3)
        if end == "close":
            await engine.close()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Stalled):
        run_virtual(main())


def test_slower_timing_is_of_the_same_kind() -> None:
    @dataclass(frozen=True)
    class Drafting(FakeTiming):
        def step(self, running: int) -> float:
            return super().step(running) / 2

    slower = Drafting(step_seconds=0.1, load_seconds=3.0).times(4.0)
    assert (slower.step(1), slower.load_seconds) == (0.2, 3.0)
