"""vLLM's scheduler, with outputs that wait in the engine core until a response ends or somebody asks.

By itself vLLM sends every token to its front end when it is drawn: it cuts the token's log-probability out of
those of the step, packs both with a token id and a rank, and unpacks them on the other side. With hundreds of
running requests that takes more than half as long as the step itself. Here the scheduler keeps both, and they
leave together: with a request's last token, with the token that tells when the request was scheduled or
pre-empted, or when the front end calls a utility that is added here.

What is kept is what vLLM's scheduler itself would have sent, after its own account of discarded, rejected and
superfluous tokens. So tokens and log-probabilities are those that it sends otherwise: under pauses,
pre-emption, asynchronous scheduling, drafts and tensor parallelism alike.

Runs in the engine core's process, where vLLM makes its scheduler by `FACTORY`.
"""

import copy
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rljob_runtime.engines import vllm_drafting
from rljob_runtime.engines.held_outputs import HeldOutputs
from rljob_runtime.engines.vllm_blocks import Sparing
from rljob_runtime.engines.vllm_plain_steps import Continuing
from rljob_runtime.engines.vllm_plain_tokens import plain_tokens
from rljob_runtime.engines.vllm_sending import copy_what_is_sent
from rljob_runtime.engines.vllm_swap import SWAP, swap

FACTORY = f"{__name__}.scheduler"
"""For vLLM's `scheduler_cls`: what it calls to make the scheduler."""
FLUSH = "flush_outputs"
"""Name of the engine core's utility that sends what is kept of the running requests, and then ends those that
it is given. Between the two nothing is generated."""
PAUSE_AND_COUNT = "pause_and_count_tokens"
"""Name of the one that pauses in a mode that it is given, and is told whether to clear the KV cache. It
answers when the engine core is idle, with the number of tokens that each request in it has generated, by the
core's name of the request. What is kept stays, so that nobody waits for it."""


def scheduler(**arguments: Any) -> Any:
    """The scheduler that vLLM would make from these arguments, with outputs that wait."""
    return made_of((Sparing, vllm_drafting.Drafting, Continuing, Holding), arguments)


def made_of(parts: tuple[type, ...], arguments: dict[str, Any]) -> Any:
    """The same, with these classes before vLLM's own."""
    from vllm.v1.engine.core import EngineCoreProc

    # Utilities are methods of the engine core, looked up by name.
    setattr(EngineCoreProc, FLUSH, _flush)
    setattr(EngineCoreProc, PAUSE_AND_COUNT, _pause_and_count)
    setattr(EngineCoreProc, SWAP, swap)
    setattr(EngineCoreProc, vllm_drafting.START, vllm_drafting.start)
    setattr(EngineCoreProc, vllm_drafting.COUNTS, vllm_drafting.counts)
    # Before vLLM makes the sockets, and with the scheduler by which messages become large.
    copy_what_is_sent(EngineCoreProc)
    config = copy.copy(arguments["vllm_config"].scheduler_config)
    config.scheduler_cls = None
    base = config.get_scheduler_cls()
    name = "".join(part.__name__ for part in (*parts, base))
    return type(name, (*parts, base), {})(**arguments)


class Holding:
    """What comes before a scheduler class of vLLM."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._outputs = HeldOutputs()
        self._plain = plain_tokens(self)
        self._asked = False
        self._most_kv_use = 0.0
        self._awaited: tuple[Any, Callable[[], None]] | None = None
        """A step under way, and what is to be called when its outputs were processed."""

    def when_processed(self, scheduler_output: Any, call: Callable[[], None]) -> None:
        """Call `call` when the outputs of this step, which is under way, were processed, and none of a later
        one. One step at a time is waited for."""
        if self._awaited is not None:
            raise RuntimeError("another step is waited for")
        self._awaited = scheduler_output, call

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Called by vLLM after each step. Returns what is to be sent, by front end."""
        logprobs, model_runner_output.logprobs = model_runner_output.logprobs, None
        if logprobs is None:
            drawn, begins = [], None
        else:
            # Of the drawn tokens, row by row; where rows may have several, `begins` has their first ones.
            drawn, begins = logprobs.logprobs[:, 0].tolist(), logprobs.cu_num_generated_tokens
        scheduled = scheduler_output.num_scheduled_tokens
        if self._plain is not None and drawn and begins is None:
            scheduler_output.num_scheduled_tokens = self._plain.keep(
                scheduler_output, model_runner_output, drawn, self._outputs
            )
        steps = super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        scheduler_output.num_scheduled_tokens = scheduled
        if self._awaited is not None and self._awaited[0] is scheduler_output:
            call, self._awaited = self._awaited[1], None
            call()
        rows = model_runner_output.req_id_to_index
        for client, step in list(steps.items()):
            step.outputs = self._keep(step.outputs, rows, drawn, begins)
            if not step.outputs and step.finished_requests is None and step.scheduler_stats is None:
                del steps[client]
        return steps

    def _keep(
        self, outputs: list[Any], rows: dict[str, int], drawn: list[float], begins: list[int] | None
    ) -> list[Any]:
        """Keep a step's tokens; returns the outputs that leave now, which get all there is: of requests that
        end, and of those of which there is more to tell than tokens, such as when they were scheduled."""
        kept, leaving = self._outputs, []
        # Once for each running request, while the accelerator may be waiting: no calls that can be spared.
        for output in outputs:
            name, tokens = output.request_id, output.new_token_ids
            if tokens:
                held = kept[name]
                held.tokens += tokens
                if begins is None:
                    held.log_probs.append(drawn[rows[name]])
                else:
                    begin = begins[rows[name]]
                    held.log_probs.extend(drawn[begin : begin + len(tokens)])
            if output.finish_reason is not None or output.events:
                output.new_token_ids, log_probs = kept.take(name)
                output.new_logprobs = _packed(log_probs)
                leaving.append(output)
        return leaving

    def make_stats(self, *arguments: Any, **named: Any) -> Any:
        """Called by vLLM after each step. Its counts are sent when a request ends, and in the first step
        after a flush. Till then vLLM sums them up, but for the KV cache in use, of which the most is told."""
        cache, ended = self.kv_cache_manager, self.finished_req_ids  # type: ignore[attr-defined]
        self._most_kv_use = max(self._most_kv_use, cache.usage)
        if not ended and not self._asked:
            return None
        stats = super().make_stats(*arguments, **named)  # type: ignore[misc]
        if stats is not None:
            stats.kv_cache_usage = self._most_kv_use
        self._asked, self._most_kv_use = False, 0.0
        return stats

    def finish_requests(self, *arguments: Any, **named: Any) -> Any:
        """Called by vLLM for requests that are aborted."""
        finished = super().finish_requests(*arguments, **named)  # type: ignore[misc]
        running: dict[str, Any] = self.requests  # type: ignore[attr-defined]
        self._outputs.forget_all_but(running)
        return finished

    def flush(self) -> list[Any]:
        """What is kept of the running requests, as outputs to send; it is kept no longer."""
        from vllm.v1.engine import EngineCoreOutput

        self._asked, outputs = True, []
        for name in self._outputs.waiting():
            tokens, log_probs = self._outputs.take(name)
            outputs.append(EngineCoreOutput(name, tokens, new_logprobs=_packed(log_probs)))
        return outputs


def _flush(core: Any, ended: list[str]) -> None:
    """A utility. What it sends comes before its answer, on the same socket."""
    from vllm.v1.engine import EngineCoreOutputs

    if outputs := core.scheduler.flush():
        core.output_queue.put_nowait((0, EngineCoreOutputs(outputs=outputs)))
    if ended:
        core.abort_requests(ended)


def _pause_and_count(core: Any, mode: str, clear: bool) -> Any:
    """A utility. With `clear` it clears the KV cache, as `pause_scheduler` does when it is asked to."""
    if mode == "abort":
        # What waits of those that it aborts would be gone.
        _flush(core, [])

    def counted() -> dict[str, int]:
        return {name: each.num_output_tokens for name, each in core.scheduler.requests.items()}

    idle: Future[Any] | None = core.pause_scheduler(mode, clear)
    if idle is None:
        return counted()
    answer: Future[dict[str, int]] = Future()

    def when_idle(ended: Future[Any]) -> None:
        try:
            ended.result()
            answer.set_result(counted())
        except Exception as error:  # noqa: BLE001 - the front end is told, whatever went wrong
            answer.set_exception(error)

    idle.add_done_callback(when_idle)
    return answer


def _packed(log_probs: NDArray[np.float32]) -> Any:
    """As vLLM sends log-probabilities. Whose they are goes without saying, and ranks are of no use here."""
    from vllm.v1.outputs import LogprobsLists

    return LogprobsLists(np.empty((0, 1), np.int32), log_probs.reshape(-1, 1), np.empty(0, np.int32), None)
