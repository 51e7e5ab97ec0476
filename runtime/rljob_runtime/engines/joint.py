"""Several engines that are one to everybody else: they share an accelerator, its memory and the requests.

A vLLM engine core computes one step after the other in one thread, which with many running requests and a
small model keeps the accelerator waiting. Several cores take turns at it.

Keeps the contract of `protocol.Engine`, and so do the engines inside. Also:
- all have the same version whenever one of them generates: where one loads a version and another does not,
  all are ended;
- a request runs on the one that runs the fewest, from its submit to its end;
- what one has finished the others may draft from;
- when one dies all are ended, so that what they ran goes elsewhere, and all tell the first cause.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from rljob_runtime.engines.finished_texts import finished_text
from rljob_runtime.engines.joint_progress import JointProgress
from rljob_runtime.engines.protocol import (
    Engine,
    EngineDied,
    FinishedText,
    LoadSnapshot,
    PauseMode,
    ProgressListener,
    Request,
    WeightRef,
)
from rljob_runtime.samples import Generation
from rljob_runtime.site.own_start import StartPart
from rljob_runtime.weights.shm import reading

T = TypeVar("T")


class JointEngine:
    """See the module's guarantees."""

    def __init__(
        self,
        name: str,
        engines: Sequence[Engine],
        before_others: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """The first of `engines` is started alone, then `before_others` is awaited, then the others start."""
        self.name = name
        self.engines = tuple(engines)
        self._before_others = before_others
        self._running: dict[str, int] = {}
        """By request, the number of the engine that runs it."""
        self._counts = [0] * len(self.engines)
        """Requests that each runs."""
        self._paused = False
        self._cause: EngineDied | None = None
        self._closing: asyncio.Future[list[None]] | None = None

    @property
    def stages(self) -> bool:
        return all(each.stages for each in self.engines)

    @property
    def start_parts(self) -> Sequence[StartPart]:
        """Those of all: the engines after the first start at once."""
        return [part for each in self.engines for part in each.start_parts]

    async def start(self, version: int) -> None:
        await self._all(lambda each: each.start(version), self.engines[:1])
        if self._before_others is not None:
            await self._before_others()
        await self._all(lambda each: each.start(version), self.engines[1:])

    async def submit(self, request: Request) -> Generation:
        self._check()
        name = request.request_id
        if name in self._running:
            # The one that runs it refuses it.
            return await self.engines[self._running[name]].submit(request)
        place = self._running[name] = self._counts.index(min(self._counts))
        self._counts[place] += 1
        try:
            [got] = await self._all(lambda each: each.submit(request), [self.engines[place]])
            if (text := finished_text(request, got)) is not None:
                for other in self.engines[:place] + self.engines[place + 1 :]:
                    other.learn([text])
            return got
        finally:
            self._counts[place] -= 1
            del self._running[name]

    async def abort(self, request_id: str) -> None:
        place = self._running.get(request_id)
        if place is not None and self._cause is None:
            await self._all(lambda each: each.abort(request_id), [self.engines[place]])

    async def pause(self, mode: PauseMode) -> None:
        self._check()
        self._paused = True
        await self._all(lambda each: each.pause(mode), self.engines)

    async def prepare(self, ref: WeightRef) -> None:
        """Raises `ValueError` as `load` does."""
        self._refuse_unless_folder(ref)
        await self._all(lambda each: each.prepare(ref), self.engines)

    async def load(self, ref: WeightRef) -> None:
        """Raises `ValueError` also for weights that come in no folder: each engine would be a member of the
        group that they are sent to, and such a group has no two members on one accelerator."""
        self._check()
        if not self._paused:
            raise RuntimeError(f"engine {self.name}: load while not paused")
        self._refuse_unless_folder(ref)
        # It stays for all of them, or is gone for all.
        with reading(Path(ref.location)):
            loads = await asyncio.gather(*(each.load(ref) for each in self.engines), return_exceptions=True)
        errors = [each for each in loads if each is not None]
        if not errors:
            return
        if len(errors) < len(loads) or isinstance(errors[0], EngineDied):
            self._end(EngineDied(f"engine {self.name}: version {ref.version} was not loaded: {errors[0]}"))
            self._check()
        raise errors[0]

    async def swap(self, ref: WeightRef) -> bool:
        """Never: its engines would generate with different versions for the time between their steps."""
        return False

    async def resume(self) -> None:
        await self._all(lambda each: each.resume(), self.engines)
        self._paused = False

    async def load_snapshot(self) -> LoadSnapshot:
        return joined(await self._all(lambda each: each.load_snapshot(), self.engines))

    def learn(self, texts: Sequence[FinishedText]) -> None:
        for each in self.engines:
            each.learn(texts)

    def counters(self) -> Mapping[str, float]:
        """The sums; of the KV cache in use, the share of the engine that used most of its own."""
        whole: dict[str, float] = {}
        for each in self.engines:
            for name, value in each.counters().items():
                before = whole.get(name, 0.0)
                whole[name] = max(before, value) if name == "kv_use" else before + value
        return whole

    def on_progress(self, listener: ProgressListener, seconds: float) -> None:
        progress = JointProgress(self._running, listener)
        for number, each in enumerate(self.engines):
            each.on_progress(partial(progress.reported, number), seconds)

    async def close(self) -> None:
        await asyncio.shield(self._end(EngineDied(f"engine {self.name}: it was closed")))

    def _refuse_unless_folder(self, ref: WeightRef) -> None:
        if ref.transport != "shm":
            raise ValueError(
                f"engine {self.name}: engines that share an accelerator load from a folder, and not through "
                f"{ref.transport}"
            )

    async def _all(self, call: Callable[[Engine], Awaitable[T]], engines: Iterable[Engine]) -> list[T]:
        """Call these engines and await it; what kills one ends all."""
        self._check()
        try:
            return await asyncio.gather(*map(call, engines))
        except EngineDied as error:
            self._end(error)
            self._check()
            raise

    def _end(self, cause: EngineDied) -> "asyncio.Future[list[None]]":
        """Begin to end all engines, the first time; done when they have ended."""
        if self._closing is None:
            self._cause = cause
            self._closing = asyncio.gather(*(each.close() for each in self.engines))
        return self._closing

    def _check(self) -> None:
        """Raises `EngineDied` where they have ended."""
        if self._cause is not None:
            raise EngineDied(str(self._cause))


def joined(parts: Sequence[LoadSnapshot]) -> LoadSnapshot:
    """What several engines of one version are together."""
    kv_tokens = [each.kv_tokens for each in parts if each.kv_tokens is not None]
    return LoadSnapshot(
        version=parts[0].version,
        running=sum(each.running for each in parts),
        paused=parts[0].paused,
        generated_tokens=sum(each.generated_tokens for each in parts),
        kv_tokens=sum(kv_tokens) if len(kv_tokens) == len(parts) else None,
    )
