"""Requests that are in flight all the time, for `weight_staging`."""

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from rljob_runtime.engines.protocol import Request
from rljob_runtime.engines.vllm import VllmEngine
from rljob_runtime.samples import Generation

PROMPT = 128
T = TypeVar("T")


@dataclass
class Streams:
    """Requests one after the other, so many at a time, and what came of them."""

    engine: VllmEngine
    vocabulary: int
    response: int
    ended: list[tuple[Request, Generation]] = field(default_factory=list)
    count: int = 0
    stopping: bool = False

    async def run(self, in_flight: int) -> None:
        await asyncio.gather(*(self._stream(index) for index in range(in_flight)))

    async def _stream(self, index: int) -> None:
        while not self.stopping:
            self.count += 1
            tokens = np.random.default_rng([self.count]).integers(0, self.vocabulary, PROMPT)
            # The first ones end at different times, so that later ones begin at different times.
            most = self.response if self.ended else max(16, index * 37 % self.response)
            asked = Request(f"s{self.count}", tokens.astype(np.int32), most, self.count, exact=True)
            self.ended.append((asked, await self.engine.submit(asked)))

    async def tokens(self) -> int:
        return (await self.engine.load_snapshot()).generated_tokens

    async def more(self, count: int) -> None:
        """Wait until so many more tokens were generated."""
        goal = await self.tokens() + count
        async with asyncio.timeout(60):
            while await self.tokens() < goal:  # noqa: ASYNC110 - progress is told when asked
                await asyncio.sleep(0.001)


async def timed(call: Awaitable[T]) -> float:
    """Milliseconds that `call` takes."""
    began = time.perf_counter()
    await call
    return 1e3 * (time.perf_counter() - began)
