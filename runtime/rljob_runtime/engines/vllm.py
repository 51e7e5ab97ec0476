"""The vLLM engine: one AsyncLLM, whose engine core is a process of its own.

Keeps the contract of `protocol.Engine`. Sampling is seeded for the engine as a whole and not for each
request, as seeds of its own for each row would slow down vLLM's sampler.

Where the exactness comes from: requests enter the core only while the entrance is open. `pause` closes it,
waits for those that are half-way in, then stops the core, which stands still until `resume`. `swap` closes it
too, and the core itself tells how many tokens of each request are of the weights before (`vllm_swap`);
responses that end meanwhile wait for that. The version that labels tokens changes only there.
"""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np

from rljob_api.rollout import VllmEngine as VllmOptions
from rljob_runtime.engines.core_life import CoreLife
from rljob_runtime.engines.core_process import CoreProcess
from rljob_runtime.engines.last_words import in_one_line
from rljob_runtime.engines.progress import ProgressReports
from rljob_runtime.engines.protocol import (
    EngineDied,
    FinishedText,
    LoadSnapshot,
    PauseMode,
    ProgressListener,
    Request,
    Sampling,
    WeightRef,
    check_request,
)
from rljob_runtime.engines.spans import SpanRecorder, spans_from_report
from rljob_runtime.engines.vllm_compat import Response, VllmCore
from rljob_runtime.engines.vllm_entrance import Entrance
from rljob_runtime.engines.vllm_shape import Accelerator, LoadedAdapter, VllmShape
from rljob_runtime.engines.vllm_staging import NotStaged, Staging
from rljob_runtime.engines.vllm_teaching import Teaching
from rljob_runtime.engines.vllm_ticket import Ticket, mark, take_out, unbegun
from rljob_runtime.engines.vllm_times import RequestTimes
from rljob_runtime.samples import FinishReason, Generation, Timing
from rljob_runtime.site.own_start import StartPart
from rljob_runtime.weights.contents import Shapes, check_same_model, tensor_shapes
from rljob_runtime.weights.shm import reading

T = TypeVar("T")

_FINISH: dict[str, FinishReason] = {"stop": "stop", "length": "length", "abort": "abort"}


class VllmEngine:
    """See the module's guarantees."""

    def __init__(
        self,
        name: str,
        model_folder: str | Path,
        sampling: Sampling,
        max_running: int,
        max_length: int,
        dtype: str = "float32",
        options: VllmOptions | None = None,
        accelerator: Accelerator = "cpu",
        tensor_parallel: int = 1,
        threads: int = 1,
        seed: int = 0,
        timed: bool = True,
        hold_outputs: bool = True,
        keep_kv: bool = False,
        device_drafts: bool = True,
    ) -> None:
        """`max_length` is the most tokens of prompt and response together; `tensor_parallel` the number of
        accelerators it spans; `threads` counts on CPUs alone; engines of one job take different seeds;
        `timed`: whether generations tell where their time went; `hold_outputs`: whether tokens may wait in
        the engine core until they are asked for; `keep_kv`: see `protocol`; `device_drafts`: whether drafts
        are made on the accelerator where that can be, else always on the CPU."""
        self.name, self.version = name, 0
        self.start_parts: Sequence[StartPart] = ()
        self._shape = VllmShape(
            Path(model_folder), sampling, max_running, max_length, dtype, options or VllmOptions(),
            accelerator, tensor_parallel, threads, seed, timed, hold_outputs=hold_outputs,
            device_drafts=device_drafts,
        )  # fmt: skip
        self._speculation = self._shape.options.speculation
        self.keeps_kv = keep_kv
        self._loads = 0  # versions so far
        self._tensors: Shapes = {}
        self._tickets: dict[str, Ticket] = {}
        self._paused = False
        self._times = RequestTimes(self._tickets)
        self._generated = 0
        self._core: VllmCore | None = None
        self._reports = ProgressReports(self._progress, self._prefilled, self._catch_up)
        self._life = CoreLife(name, self._reports.stop)
        self._process = CoreProcess(self._life)
        self._entrance = Entrance(self._life)
        self._swap: asyncio.Future[None] | None = None
        """What puts a version in without a pause; the last one."""
        self._teaching = Teaching(name, self._life, self._speculation, self._live_core)
        self._staging = Staging(name, self._life, tensor_parallel)

    async def start(self, version: int) -> None:
        """Raises `EngineDied` when vLLM does not start; its own log, on stderr, says why."""
        self._life.begin()
        self._tensors = self._expected_tensors(tensor_shapes(self._shape.model_folder))
        self._core, sockets = await self._process.start(self._shape)
        await self._life.guard(self._live_core().label(version))
        if self._speculation is not None:
            await self._life.guard(self._live_core().start_drafting(self._speculation))
        await self._staging.open(self._live_core(), sockets)
        self.start_parts = await self._life.guard(self._live_core().start_parts())
        self.version = version

    async def kv_cache_bytes(self) -> int:
        """Memory that its KV cache has on its accelerator."""
        return await self._life.guard(self._live_core().kv_cache_bytes())

    def take_kv_cache(self, size: int) -> None:
        """Before `start`: have a KV cache of so many bytes, whatever else is on the accelerator."""
        self._shape = replace(self._shape, kv_cache_bytes=size)

    async def submit(self, request: Request) -> Generation:
        self._live_core()
        check_request(request, self._shape.max_length, request.request_id in self._tickets)
        ticket = self._tickets[request.request_id] = Ticket(request)
        try:
            response = None
            # Once, but for those that a pause takes out of the core before their first token.
            while ticket.spans is None and await self._entrance.wait(ticket):
                response = await self._run(ticket)
                await self._labelled()
            if ticket.spans is None:
                return self._generation(ticket, None)
            got = self._generation(ticket, response)
            await self._teaching.ended_here(request, got, len(self._tickets) - 1)
            return got
        finally:
            if self._core is not None:
                self._core.marks.pop(request.request_id, None)
            del self._tickets[request.request_id]
            self._give_back(ticket.adapter)
            ticket.ended.set_result(None)

    async def abort(self, request_id: str) -> None:
        ticket = self._tickets.get(request_id)
        if ticket is None or self._life.over:
            return
        ticket.aborted = True
        ticket.open_gate()
        # One that is half-way in is aborted by `_run` when it is inside.
        if ticket.spans is not None:
            await self._life.guard(self._live_core().abort(request_id))

    async def pause(self, mode: PauseMode) -> None:
        self._life.check()
        await self._labelled()
        self._paused = True
        await self._entrance.close()
        inside = [ticket.ended for ticket in self._tickets.values() if ticket.spans is not None]
        if mode == "wait" and inside:
            await self._life.guard(asyncio.wait(inside))
        await self._stop_core(mode)
        if mode == "keep" and self.keeps_kv:
            await self._take_out_unbegun()
        if mode == "abort":
            outside = [ticket for ticket in self._tickets.values() if ticket.spans is None]
            for ticket in outside:
                await self.abort(ticket.request.request_id)
            ended = inside + [ticket.ended for ticket in outside]
            if ended:
                await self._life.guard(asyncio.wait(ended))

    @property
    def stages(self) -> bool:
        return self._staging.possible

    async def prepare(self, ref: WeightRef) -> None:
        """Raises `WeightsGone`; `EngineDied`, the engine being gone, where a broadcast failed."""
        await self._labelled()
        try:
            await self._staging.bring(self._live_core(), ref, self._tensors)
        except NotStaged as error:
            await self._give_up(str(error))

    async def load(self, ref: WeightRef) -> None:
        """Raises `WeightsGone`, `ValueError` or `FileNotFoundError`, with the old weights in place, where
        `ref` cannot be right; `EngineDied`, the engine being gone, when it fails half-way."""
        self._life.check()
        if not self._paused:
            raise RuntimeError(f"engine {self.name}: load while not paused")
        core = self._live_core()
        # All these tokens are of the old weights.
        counts = await self._life.guard(core.counts_at_pause())
        if (number := self._staging.take(ref)) is not None:
            await self._replace(ref, core.place_staged(number))
        elif ref.transport == "shm":
            with reading(Path(ref.location)) as folder:
                check_same_model(self._tensors, folder)
                await self._replace(ref, core.load_folder(folder))
        else:
            await self._replace(ref, core.receive(ref.location, self._tensors))
        mark(self._tickets, ref.version, counts)
        self._loads += 1
        self.version = ref.version

    async def swap(self, ref: WeightRef) -> bool:
        """Raises `EngineDied`, the engine being gone, when it fails half-way."""
        core = self._live_core()
        await self._labelled()
        if self._paused:
            raise RuntimeError(f"engine {self.name}: swap while paused")
        if core.swap_obstacle or (number := self._staging.take_staged(ref)) is None:
            return False
        # In a task of its own: where the caller gives up, tokens are labelled all the same.
        self._swap = asyncio.ensure_future(self._put_in_between_steps(core, ref, number))
        await asyncio.shield(self._swap)
        return True

    async def _put_in_between_steps(self, core: VllmCore, ref: WeightRef, number: int) -> None:
        await self._entrance.close()
        done = await self._put_in(ref, core.put_in(number, self.keeps_kv))
        mark(self._tickets, ref.version, done.counts)
        self._loads += 1
        self.version = ref.version
        self._times.stood(*done.stood)
        take_out(self._tickets, done.unbegun)
        if done.unbegun:
            await self._life.guard(core.end_here(*done.unbegun))
        self._entrance.open(self._tickets.values())

    async def _labelled(self) -> None:
        """Wait, where a version is being put in without a pause, until it is known whose tokens are of it."""
        if self._swap is not None and not self._swap.done():
            await self._life.guard(asyncio.wait((self._swap,)))

    def _expected_tensors(self, model: Shapes) -> Shapes:
        """What a version has, from the tensors of the model's folder."""
        return model

    def _take_adapter(self) -> LoadedAdapter | None:
        """What a request that begins now is generated with; `_give_back` says that it has ended."""
        return None

    def _give_back(self, adapter: LoadedAdapter | None) -> None:
        pass

    async def _stop_core(self, mode: PauseMode) -> None:
        """Let no request go on; with "abort" end those in the core."""
        self._times.stops()
        core_mode: PauseMode = "abort" if mode == "abort" else "keep"
        clear = mode != "keep" or not self.keeps_kv
        await self._life.guard(self._live_core().pause(core_mode, clear))

    async def _start_core(self) -> None:
        """The reverse."""
        await self._life.guard(self._live_core().resume())
        self._times.goes_on()

    async def _replace(self, ref: WeightRef, load: Awaitable[None]) -> None:
        """Await `load`, then label; an engine that fails half-way is ended."""
        await self._put_in(ref, load)
        await self._put_in(ref, self._live_core().label(ref.version))

    async def _put_in(self, ref: WeightRef, work: Awaitable[T]) -> T:
        """Await a part of putting in a version; an engine that fails half-way is ended."""
        try:
            return await self._life.guard(work)
        except EngineDied:
            raise
        except Exception as error:  # noqa: BLE001 - whatever went wrong in the core, half-loaded weights must not generate
            cause = in_one_line(error)
            await self._give_up(f"loading version {ref.version} from {ref.location} failed: {cause}")

    async def resume(self) -> None:
        self._life.check()
        # The core first: what the gate lets in is to find it running.
        await self._start_core()
        self._paused = False
        self._reports.wake()
        self._entrance.open(self._tickets.values())

    async def load_snapshot(self) -> LoadSnapshot:
        core = self._live_core()
        if self._tickets:
            await self._life.guard(core.flush())
        count = self._generated + sum(core.token_counts().values())
        return LoadSnapshot(self.version, len(self._tickets), self._paused, count, core.kv_tokens)

    def counters(self) -> Mapping[str, float]:
        """Also preemptions: of requests that have ended. Nothing while it is not up."""
        if self._core is None or not self._shape.timed:
            return {}
        return {**self._core.counters(), "preemptions": self._times.take_preemptions()}

    def learn(self, texts: Sequence[FinishedText]) -> None:
        if self._core is not None:
            self._teaching.ended_elsewhere(texts, len(self._tickets))

    def on_progress(self, listener: ProgressListener, seconds: float) -> None:
        self._reports.listen(listener, seconds)

    async def close(self) -> None:
        await self._shut("it was closed")

    async def _run(self, ticket: Ticket) -> Response:
        """What the core made of the ticket's request."""
        core, name = self._live_core(), ticket.request.request_id
        try:
            added = await self._enter(ticket, core)
            if ticket.aborted:
                await self._life.guard(core.abort(name))
            return await self._life.guard(core.response(name, added))
        except asyncio.CancelledError:
            # vLLM would generate the rest for nobody.
            await core.drop(name)
            raise

    async def _take_out_unbegun(self) -> None:
        """Let requests that have no token enter the core anew after the pause. They wait in it, or their
        prompts are not computed yet: else they would begin upon KV of weights that they have no token of."""
        core = self._live_core()
        counts = await self._life.guard(core.counts_at_pause())
        if names := unbegun(self._tickets, counts):
            take_out(self._tickets, names)
            await self._life.guard(core.abort(*names))

    async def _enter(self, ticket: Ticket, core: VllmCore) -> Any:
        """Hand the ticket's request to the core; who closes the entrance waits for this."""
        with self._entrance.passing():
            ticket.adapter = self._take_adapter()
            # Not the version: after a loss one may come again with other weights.
            salt = f"load {self._loads}" if self.keeps_kv else None
            collector = await self._life.guard(core.add(ticket.request, ticket.adapter, salt))
            # The version cannot change meanwhile: who changes it waits for this.
            ticket.spans = SpanRecorder(self.version)
            self._reports.wake()
            return collector

    async def _catch_up(self) -> None:
        """Let `_progress` know of all tokens that there are; nothing where the engine is dead."""
        if self._core is not None and not self._life.over:
            with suppress(EngineDied):
                await self._life.guard(self._core.flush())

    def _progress(self) -> dict[str, int]:
        """Tokens of each request in the core that are known of, by its id."""
        core = None if self._paused or self._life.over else self._core
        return {} if core is None else core.token_counts()

    def _prefilled(self) -> int:
        return 0 if self._core is None else self._core.prefilled

    def _generation(self, ticket: Ticket, response: Response | None) -> Generation:
        """What a submit returns; `response` is None for one that never was in the core."""
        count = len(response.tokens) if response is not None else 0
        self._generated += count
        reason = response.finish if response is not None else "abort"
        if reason not in _FINISH:
            raise self._life.died(f"request {ticket.request.request_id} ended with {reason!r}")
        if response is None or ticket.spans is None:
            spans = SpanRecorder(self.version).spans(0)
        elif ticket.adapter is None and self._live_core().reports_versions:
            spans = spans_from_report(response.versions, count)
        else:
            spans = ticket.spans.spans(count)
        return Generation(
            request_id=ticket.request.request_id,
            tokens=np.array(response.tokens if response is not None else [], np.int32),
            log_probs=response.log_probs if response is not None else np.empty(0, np.float32),
            spans=spans,
            finish=_FINISH[reason],
            timing=self._timing(ticket),
        )

    def _timing(self, ticket: Ticket) -> Timing | None:
        if not self._shape.timed:
            return None
        return self._times.of(ticket, self._live_core().marks.get(ticket.request.request_id, []))

    async def _give_up(self, reason: str) -> NoReturn:
        await self._shut(reason)
        raise self._life.died(reason)

    async def _shut(self, reason: str) -> None:
        self._life.end(reason)
        await self._staging.close()
        await self._process.end()

    def _live_core(self) -> VllmCore:
        self._life.check()
        if self._core is None:
            raise RuntimeError(f"engine {self.name}: used before start")
        return self._core
