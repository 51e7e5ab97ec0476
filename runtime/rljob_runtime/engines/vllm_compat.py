"""The one place that imports vLLM in the host process, and that knows how its versions differ.

Works with 0.22.1 (CUDA) and 0.32.0 (CPU); differences are found by what the objects offer. `VllmCore` wraps
an `AsyncLLM` and its engine core process and offers the few verbs that the engine needs.
"""

import asyncio
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rljob_api.rollout import Speculation
from rljob_runtime.engines.core_start import over_ranks
from rljob_runtime.engines.early_core import EarlyCore
from rljob_runtime.engines.finished_texts import Siblings
from rljob_runtime.engines.protocol import PauseMode, Request
from rljob_runtime.engines.stays import Mark
from rljob_runtime.engines.vllm_configured import configured
from rljob_runtime.engines.vllm_counters import SchedulerCounters
from rljob_runtime.engines.vllm_drafter import PROMPT_TOKENS
from rljob_runtime.engines.vllm_drafting import COUNTS, START
from rljob_runtime.engines.vllm_holding import ArrivedLogProbs, holds
from rljob_runtime.engines.vllm_inspection import inspect_here
from rljob_runtime.engines.vllm_misfits import tell_misfits
from rljob_runtime.engines.vllm_prefills import FACTORY as DELAYING
from rljob_runtime.engines.vllm_prefills import delays
from rljob_runtime.engines.vllm_scheduler import FACTORY, FLUSH, PAUSE_AND_COUNT
from rljob_runtime.engines.vllm_shape import LoadedAdapter, VllmShape
from rljob_runtime.engines.vllm_silent_logger import silent_logger
from rljob_runtime.engines.vllm_staging_verbs import StagingVerbs, swap_obstacle
from rljob_runtime.engines.vllm_warm_up import as_sampled
from rljob_runtime.site.large_imports import large_imports
from rljob_runtime.site.own_start import OwnStart, StartPart
from rljob_runtime.weights.collective import Rendezvous
from rljob_runtime.weights.contents import Shapes
from rljob_runtime.weights.formats import format_of

_SHUTDOWN_SECONDS = 3.0

_MARKS: dict[str, Literal["scheduled", "preempted"]] = {
    "SCHEDULED": "scheduled",
    "PREEMPTED": "preempted",
}
"""vLLM's `EngineCoreEventType` by name, of those that count. Their times are of the monotonic clock, which
all processes of a machine share."""

_COLLECTIVE = {"nvidia": "nccl", "ascend": "hccl"}
"""By accelerator, the name of vLLM's backend for weights that are broadcast."""


@dataclass(frozen=True)
class Response:
    """What vLLM made of a request, whole or, after an abort, in part."""

    tokens: list[int]
    log_probs: NDArray[np.float32]
    """Shape (tokens,)."""
    finish: str
    versions: Any
    """vLLM's report of weight versions; None where it has none."""


class VllmCore(StagingVerbs):
    """An `AsyncLLM` and its processes. All methods but the constructor and `shutdown` belong to one loop."""

    def __init__(self, shape: VllmShape, early: EarlyCore) -> None:
        """Starts the engine core in the process `early` and loads the model; blocks for many seconds.
        `environment` must be set."""
        self._start = OwnStart()
        self._asked = early.begun
        self.last_words = early.last_words
        """What ended the engine core, where something was raised in it; see there."""
        with self._start.part("imports"), large_imports():
            from vllm.config.weight_transfer import WeightTransferConfig
            from vllm.lora.request import LoRARequest
            from vllm.sampling_params import RequestOutputKind, SamplingParams
            from vllm.usage.usage_lib import UsageContext
            from vllm.v1.engine.async_llm import AsyncLLM
            from vllm.v1.engine.exceptions import EngineDeadError

            inspect_here()

        collective = _COLLECTIVE.get(shape.accelerator)
        transfer = WeightTransferConfig(backend=collective) if collective else None
        self.holds_outputs = shape.hold_outputs and holds(shape.accelerator)
        """Whether tokens wait in the engine core; see `flush`."""
        factory = FACTORY if self.holds_outputs else None
        if self.holds_outputs:
            tell_misfits()
        if shape.options.delay_prefills and delays(shape.accelerator, self.holds_outputs):
            factory = DELAYING
        with self._start.part("core"), early.offered():
            configuration, self.drafts_on_device = configured(shape, transfer, factory)
            self._llm: Any = AsyncLLM.from_engine_args(
                configuration,
                # Of this depends how many tokens a step takes where that is not given: as many as vLLM takes
                # for batches of prompts. For servers it takes fewer, so that answers begin sooner.
                usage_context=UsageContext.LLM_CLASS,
                stat_loggers=[silent_logger()] if shape.timed else None,
            )
        # The engine core records and counts now. Here it is read as it arrives (`_note`): vLLM's own sums for
        # each output, and its Prometheus metrics, would take time of the loop that all requests share.
        self._llm.log_stats, self._llm.logger_manager = False, None
        self._counters = SchedulerCounters()
        self.marks: dict[str, list[Mark]] = {}
        """What has happened to running requests, by id; whoever takes a request's generation removes them."""
        self.prefilled = 0
        """Tokens that were prefilled, and not found in the cache, of requests that have a token; 0 where the
        shape is not `timed`, for then nothing tells it."""
        self.dead_error: type[Exception] = EngineDeadError
        self.reports_versions = not self.holds_outputs and hasattr(self._llm, "update_weight_version")
        """Whether outputs say which version each token came from; else see `counts_at_pause`. Where outputs
        wait they would name the version that there is when they leave."""
        self.swap_obstacle = swap_obstacle(shape, self._llm.vllm_config, self.holds_outputs)
        """Why versions that have arrived are put in only in a pause; "" where `put_in` does without."""
        self._client: Any = self._llm.engine_core
        self.processes: list[Any] = list(self._client.resources.engine_manager.processes)
        """The engine core's `multiprocessing` processes."""
        cache: Any = self._llm.vllm_config.cache_config
        # Of models whose layers differ in what they keep, blocks do not tell it; newer versions of vLLM do.
        size = getattr(cache, "kv_cache_size_tokens", None) or (cache.num_gpu_blocks or 0) * cache.block_size
        self.kv_tokens: int | None = size or None
        """Tokens that the KV cache holds; None where vLLM does not say."""
        self._shape = shape
        self._parameters = SamplingParams
        self._adapter = LoRARequest
        self._final_only = RequestOutputKind.FINAL_ONLY
        self._joined: str | None = None
        self._paused_at: dict[str, int] | None = None
        self._log_probs = ArrivedLogProbs(self._llm.output_processor)
        self._watch_outputs()

    async def add(
        self, request: Request, adapter: LoadedAdapter | None = None, salt: str | None = None
    ) -> Any:
        """Hand a request to the engine core, to be generated with `adapter`; the result is for `response`. It
        shares the KV cache of prompts with requests of the same `salt` alone."""
        sampling = request.sampling or self._shape.sampling
        parameters = self._parameters(
            **as_sampled(sampling),
            max_tokens=request.max_tokens,
            stop_token_ids=[] if request.exact else list(sampling.stop_token_ids),
            # The stop tokens above are all that end a response, not those that the model's files name.
            ignore_eos=True,
            # Without a dict for each token.
            flat_logprobs=True,
            detokenize=False,
            output_kind=self._final_only,
            extra_args=self._extra_arguments(request),
        )
        prompt: dict[str, Any] = {"prompt_token_ids": request.tokens.tolist()}
        if salt is not None:
            prompt["cache_salt"] = salt
        return await self._llm.add_request(
            request.request_id, prompt, parameters, lora_request=self._lora(adapter)
        )

    def _extra_arguments(self, request: Request) -> dict[str, int] | None:
        if self._shape.options.speculation is None:
            return None
        return {PROMPT_TOKENS: len(request.tokens) - request.generated}

    async def response(self, request_id: str, added: Any) -> Response:
        """What became of a request, once it has ended; `added` is what `add` returned."""
        output = (await added.get()).outputs[0]
        count = len(output.token_ids)
        if self.holds_outputs:
            log_probs = self._log_probs.take(request_id, count)
        else:
            log_probs = np.array(output.logprobs.logprobs[:count], np.float32)
        return Response(
            list(output.token_ids), log_probs, output.finish_reason, getattr(output, "weight_versions", None)
        )

    async def abort(self, *request_ids: str) -> None:
        """End requests; their responses have what they generated so far."""
        if self.holds_outputs:
            inside = self._llm.output_processor.external_req_ids
            names = [name for each in request_ids for name in inside.get(each, [])]
            await self._client.call_utility_async(FLUSH, names)
            await self.outputs_processed()
        await self._llm.abort(request_ids)

    async def drop(self, request_id: str) -> None:
        """End a request whose response nobody waits for."""
        await self._llm.abort(request_id)
        self._log_probs.take(request_id, 0)

    async def flush(self) -> None:
        """Return when `token_counts` has every token that was generated before this call, at least."""
        if self.holds_outputs:
            await self._client.call_utility_async(FLUSH, [])
            await self.outputs_processed()

    async def pause(self, mode: PauseMode, clear: bool = True) -> None:
        """Stop the scheduler and, with `clear`, drop the KV cache; returns when the engine core is idle: what
        is generated afterwards may be of other weights.

        Asks the core itself: `AsyncLLM.pause_generation` adds a sleep of 20 ms so that the last outputs
        are likely to have arrived, which `outputs_processed` makes certain. (It also clears the cache of
        image inputs, of which there are none.)
        """
        if self.holds_outputs:
            counts = await self._client.call_utility_async(PAUSE_AND_COUNT, mode, clear)
            self._paused_at = self._by_name(counts)
        else:
            await self._client.pause_scheduler_async(mode=mode, clear_cache=clear)
            self._paused_at = None

    async def counts_at_pause(self) -> dict[str, int]:
        """Tokens that each running request has generated, exactly; only while paused.

        Told by the engine core where it keeps tokens, so that nobody waits here until what it has sent is
        processed: with hundreds of requests that takes as long as a step.
        """
        if self._paused_at is None:
            await self.outputs_processed()
            self._paused_at = self.token_counts()
        return self._paused_at

    def _by_name(self, counts: Mapping[str, int]) -> dict[str, int]:
        """By the names that requests were added with, in place of the core's."""
        states = self._llm.output_processor.request_states
        return {states[name].external_req_id: count for name, count in counts.items() if name in states}

    async def resume(self) -> None:
        await self._client.resume_scheduler_async()

    async def start_drafting(self, options: Speculation) -> None:
        """Draft from now on; once, before the first request."""
        await self._llm.collective_rpc("start_drafting", args=(options.model_dump(by_alias=True),))
        if self.drafts_on_device:
            await self._client.call_utility_async(
                START, options.draft_tokens, options.minimum_chance, options.at_most_running
            )

    async def learn(self, texts: list[Siblings]) -> None:
        """Draft from these responses."""
        await self._llm.collective_rpc("learn", args=(texts,))

    async def drafting_counts(self) -> tuple[int, int]:
        """Drafted tokens that were checked, and tokens of these that were kept, since the start."""
        if self.drafts_on_device:
            drafted, accepted = await self._client.call_utility_async(COUNTS)
            return drafted, accepted
        [drafted, accepted], *_ = await self._llm.collective_rpc("drafting_counts")
        return drafted, accepted

    async def start_parts(self) -> tuple[StartPart, ...]:
        """Where the time of its start went; to be asked once."""
        self._start.add(over_ranks(await self._llm.collective_rpc("start_parts"), self._asked))
        return self._start.parts

    async def kv_cache_bytes(self) -> int:
        """Memory that the KV cache has on each accelerator."""
        sizes: list[int] = await self._llm.collective_rpc("kv_cache_bytes")
        return min(sizes)

    async def load_folder(self, folder: Path) -> None:
        await self._llm.collective_rpc("load_folder", args=(str(folder),))

    async def load_adapter(self, adapter: LoadedAdapter) -> int:
        """Bring an adapter to all ranks, while they generate; how many of its tensors reached a layer on the
        rank that has the fewest."""
        # In one call: each waits for the step that the engine is at.
        arguments = (adapter.name, adapter.number, str(adapter.folder))
        arrived: list[int] = await self._llm.collective_rpc("load_adapter", args=arguments)
        return min(arrived)

    def _lora(self, adapter: LoadedAdapter | None) -> Any:
        if adapter is None:
            return None
        return self._adapter(adapter.name, adapter.number, str(adapter.folder))

    async def receive(self, location: str, shapes: Shapes) -> None:
        """Take part in a broadcast of the weights; joins the sender's group the first time."""
        from vllm.distributed.weight_transfer.base import (
            WeightTransferInitRequest,
            WeightTransferUpdateRequest,
        )

        # The location names the group: a new group meets at a new address.
        if self._joined != location:
            meeting = Rendezvous.parse(location)
            info = {
                "master_address": meeting.host,
                "master_port": meeting.port,
                "world_size": meeting.world_size,
                "rank_offset": meeting.rank_offset,
            }
            await self._llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info=info))
            await self._llm.collective_rpc("check_group")
            self._joined = location
        # All three in the order in which the trainer sends: by name, ascending.
        update = {
            "names": list(shapes),
            "dtype_names": [format_of(name, self._shape.dtype) for name in shapes],
            "shapes": [list(shape) for shape in shapes.values()],
        }
        await self._llm.start_weight_update()
        await self._llm.update_weights(WeightTransferUpdateRequest(update_info=update))
        await self._llm.finish_weight_update()

    async def label(self, version: int) -> None:
        """Tokens are sampled from `version` from here on; only while paused or idle."""
        if self.reports_versions:
            await self._llm.update_weight_version(str(version))

    def counters(self) -> Mapping[str, float]:
        """What its scheduler has counted since the last call."""
        return self._counters.take()

    async def outputs_processed(self) -> None:
        """Return when every output that the engine core has sent reached the requests' collectors.

        While the core is paused, and keeps no outputs, that makes `token_counts` exact: its answer to `pause`
        follows its last outputs on the same socket, so those are in the client's queue by now.
        """
        while self._client.outputs_queue is not None and self._client.outputs_queue.qsize():
            self._outputs_idle.clear()
            await self._outputs_idle.wait()
        await self._outputs_idle.wait()

    def token_counts(self) -> dict[str, int]:
        """Tokens received so far for each running request."""
        states = self._llm.output_processor.request_states.values()
        return {state.external_req_id: state.detokenizer.num_output_tokens() for state in states}

    def stop_outputs(self) -> None:
        """Before `shutdown`: end the task that reads outputs, which would log the core's end as an error."""
        if self._llm.output_handler is not None:
            self._llm.output_handler.cancel()

    def shutdown(self) -> None:
        """End the processes; blocks for some seconds. They keep nothing, so they get little time for it."""
        self._llm.shutdown(timeout=_SHUTDOWN_SECONDS)
        for process in self.processes:
            process.join(timeout=_SHUTDOWN_SECONDS)
            if process.is_alive():
                process.kill()
                process.join()

    def _watch_outputs(self) -> None:
        """Know when the task that processes outputs has none left: it asks for more from an empty queue."""
        self._outputs_idle = asyncio.Event()
        self._outputs_idle.set()
        receive = self._client.get_output_async
        if not inspect.iscoroutinefunction(receive):
            raise TypeError(
                "this version of vLLM is not supported: AsyncMPClient.get_output_async is no coroutine"
            )

        async def get_output_async() -> Any:
            queue = self._client.outputs_queue
            if queue is None or queue.empty():
                self._outputs_idle.set()
            outputs = await receive()
            self._outputs_idle.clear()
            self._note(outputs)
            if self.holds_outputs:
                self._log_probs.strip(outputs.outputs)
            return outputs

        self._client.get_output_async = get_output_async

    def _note(self, outputs: Any) -> None:
        """Keep what the engine core tells of its requests: it tells it with the next token."""
        if outputs.scheduler_stats is not None:
            self._counters.observe(outputs.scheduler_stats)
        states = self._llm.output_processor.request_states
        for output in outputs.outputs:
            # None for nearly all.
            if output.events is None or (state := states.get(output.request_id)) is None:
                continue
            marks = self.marks.setdefault(state.external_req_id, [])
            if not marks:
                self.prefilled += _computed(output, state.prompt_len)
            for event in output.events:
                if (what := _MARKS.get(event.type.name)) is not None:
                    marks.append((what, event.timestamp))
            if output.new_token_ids:
                marks.append(("token", outputs.timestamp))


def _computed(output: Any, prompt_tokens: int) -> int:
    """How many of a request's tokens were computed, and not found in the cache, for its first output."""
    stats = getattr(output, "prefill_stats", None)
    # vLLM before 0.23 says so with each output.
    cached: int = getattr(output, "num_cached_tokens", 0) if stats is None else stats.num_cached_tokens
    return max(0, prompt_tokens - cached)
