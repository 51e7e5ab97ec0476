"""Spares vLLM's scheduler the general way of a step's token through it, where the token is a plain one: drawn
for a running request, neither its last nor one that fills a block of the KV cache.

With hundreds of requests nearly all of a step's tokens are plain, and what vLLM does for each (a way through
six functions, and an output that nobody is sent) is half of what an engine core computes for a step
(`tests/bench/step_scheduling`), in the one thread that bounds an engine of a small model.

Guarantees:
- a plain token changes of its request what vLLM's scheduler changes, and is kept with its log-probability;
- every other token goes vLLM's way: one that may end its response, that fills a block, or that comes with
  anything to tell; and all tokens of a step with drafts, transfers of KV, or anything else that is not known;
- a version of vLLM whose functions are not, word for word, those that were read is left as it is, and the log
  says so.

Runs in the engine core's process (`vllm_scheduler`).
"""

from operator import attrgetter
from typing import Any, NamedTuple

from rljob_runtime.engines.held_outputs import HeldOutputs
from rljob_runtime.engines.vllm_blocks import SPARED
from rljob_runtime.engines.vllm_read import different

_READ = {
    "AsyncScheduler._update_request_with_output": ("1d88f22dacb7d681", "bdc6706fc63399e9"),
    "Request.append_output_token_ids": ("133cccbed0813720",),
    "Request.update_block_hashes": ("45e473a998172353",),
    "Scheduler._update_request_with_output": ("2c4f8d39f9d41af0", "143311ff35e1a411"),
    "Scheduler.update_from_output": ("afc5972c30053364", "00efb15a0276a223"),
    "check_stop": ("cebda040e4ab4660", "80832b6a460ab2c3"),
}
"""What decides over a token, with digests of the words that were read: of vLLM 0.22.1 and 0.32.0."""
_PARTS = ("connector", "ec_connector", "perf_metrics", "aux_output_connector")
_KINDS = ("enable_return_routed_experts", "return_sampling_mask")
"""Of a scheduler that has one, each token tells more."""
_BESIDE = (
    "prompt_logprobs_dict", "prompt_token_id_logprobs_dict", "pooler_output", "kv_connector_output",
    "ec_connector_output", "num_nans_in_logits", "routed_experts", "aux_output_connector_output",
    "sampling_masks",
)  # fmt: skip
"""What may come of a step besides tokens and their log-probabilities."""
_IN_FLIGHT = "num_in_flight_tokens"
"""Where vLLM counts tokens of steps that are under way."""
_STALE = ("num_stale_output_tokens", "async_tokens_to_discard")
"""vLLM's names for how many tokens of a request that was pre-empted are still to come."""
_ENDED = 64
"""Of so many requests that have ended something may be kept."""


class _Request(NamedTuple):
    """One whose tokens may be plain."""

    request: Any
    """vLLM's."""
    ends: frozenset[int | None]
    """Tokens after which a response may end."""
    most: int
    """Tokens with the prompt's, at which it ends."""


class PlainTokens:
    """Of one scheduler."""

    def __init__(self, scheduler: Any) -> None:
        """For a scheduler for which `plain_tokens` has one."""
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler
        from vllm.v1.request import Request, RequestStatus

        keeper = scheduler.kv_cache_manager.coordinator.single_type_managers[0]
        self._requests: dict[str, Any] = scheduler.requests
        self.known: dict[str, _Request | None] = {}
        """By request; None where its tokens are not plain."""
        self._size: int = keeper.block_size
        self._cached: dict[str, int] = keeper.num_cached_block
        """Full blocks that prompts can find, by request."""
        self._longest: int = scheduler.max_model_len
        self._asynchronous = isinstance(scheduler, AsyncScheduler)
        self._running = RequestStatus.RUNNING
        known = Request.__init__.__code__.co_names
        self._stale = attrgetter(next(each for each in _STALE if each in known))
        self._in_flight = _IN_FLIGHT in known

    def keep(self, asked: Any, answered: Any, drawn: list[float], kept: HeldOutputs) -> dict[str, int]:
        """Take a step's plain tokens in, and into `kept`. `asked` and `answered`: what the step was to do,
        and what came of it; `drawn`: of each row the log-probability of its token. Returns what is left to
        vLLM, in the form of the step's `num_scheduled_tokens`."""
        scheduled = asked.num_scheduled_tokens
        if not _is_plain(asked, answered):
            return scheduled  # type: ignore[no-any-return]
        if len(self.known) > len(self._requests) + _ENDED:
            self.known = {name: each for name, each in self.known.items() if name in self._requests}
        known = self.known
        rows, sampled, running, stale = (
            answered.req_id_to_index, answered.sampled_token_ids, self._running, self._stale,
        )  # fmt: skip
        size, cached, asynchronous, in_flight = self._size, self._cached, self._asynchronous, self._in_flight
        left: dict[str, int] = {}
        # Once for each running request, while the accelerator may be waiting: no calls that can be spared.
        for name, count in scheduled.items():
            each = known[name] if name in known else self.look(name)
            if each is None or count != 1 or len(tokens := sampled[row := rows[name]]) != 1:
                left[name] = count
                continue
            request, ends, most = each
            whole, token = request._all_token_ids, tokens[0]
            length = len(whole) + 1
            if (
                token in ends
                or length >= most
                or not length % size
                or request.status is not running
                or request.events
                or request.prefill_stats is not None
                or stale(request)
            ):
                left[name] = count
                continue
            if asynchronous:
                ahead = request.num_output_placeholders - 1
                if ahead < 0 or (request.num_computed_tokens - ahead) // size > cached.get(name, 0):
                    left[name] = count
                    continue
                request.num_output_placeholders = ahead
            if in_flight:
                request.num_in_flight_tokens -= 1
            request._output_token_ids.append(token)
            whole.append(token)
            held = kept[name]
            held.tokens.append(token)
            held.log_probs.append(drawn[row])
        return left

    def look(self, name: str) -> _Request | None:
        """What is known of a request from now on."""
        request = self._requests.get(name)
        if request is None:
            return None
        asked = request.sampling_params
        plain = (
            asked is not None
            and request.pooling_params is None
            and request.structured_output_request is None
            and asked.repetition_detection is None
            and not (request.mm_features or request.resumable)
        )
        found = None
        if plain:
            ends = frozenset((asked.eos_token_id, *(asked.stop_token_ids or ())))
            found = _Request(
                request, ends, min(self._longest, request.num_prompt_tokens + request.max_tokens)
            )
        self.known[name] = found
        return found


def _is_plain(asked: Any, answered: Any) -> bool:
    """Whether a step has nothing to tell but tokens, one of each request, with their log-probabilities."""
    if asked.scheduled_spec_decode_tokens or not answered.sampled_token_ids:
        return False
    return not any(getattr(answered, each, None) for each in _BESIDE)


def plain_tokens(scheduler: Any) -> PlainTokens | None:
    """For a scheduler of vLLM's; None for one whose tokens are never plain, or of a version that differs."""
    keepers = scheduler.kv_cache_manager.coordinator.single_type_managers
    parts = [getattr(scheduler, each, None) for each in _PARTS]
    kinds = [getattr(scheduler, each, False) for each in _KINDS]
    if (
        any(part is not None for part in parts)
        or any(kinds)
        or len(keepers) != 1
        or type(keepers[0]).__name__ != SPARED
        or keepers[0].block_size != scheduler.kv_cache_manager.block_pool.hash_block_size
        or tokens_misfit()
    ):
        return None
    return PlainTokens(scheduler)


def tokens_misfit() -> list[str]:
    """What of this vLLM was not read; nothing where all was. Imports vLLM."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.core.sched.utils import check_stop
    from vllm.v1.request import Request

    functions = (
        AsyncScheduler._update_request_with_output, Request.append_output_token_ids,
        Request.update_block_hashes, Scheduler._update_request_with_output, Scheduler.update_from_output,
        check_stop,
    )  # fmt: skip
    return different(_READ, functions)
