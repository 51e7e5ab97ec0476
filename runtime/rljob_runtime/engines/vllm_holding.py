"""The front end's side of `vllm_scheduler`: whether a vLLM can do it, and the log-probabilities that arrive.

Guarantees: where a version of vLLM is not known to fit, nothing of it is changed, log-probabilities come with
each token as vLLM sends them, and the log says so.
"""

import inspect
import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rljob_runtime.engines.vllm_read import differing

_PLATFORMS = ("nvidia", "cpu")
"""vllm-ascend puts a subclass of its own in the place of vLLM's scheduler; ours was never tried there."""

_log = logging.getLogger(__name__)


def holds(accelerator: str) -> bool:
    """Whether outputs can wait in the engine core; where not, the log says why. Imports vLLM."""
    why = misfit(accelerator)
    if why is not None:
        _log.info(
            "each token leaves the engine core when it is drawn, and the scheduler is vLLM's own, which "
            "takes more CPU: %s",
            why,
        )
    return why is None


def misfit(accelerator: str) -> str | None:
    """Why outputs cannot wait in the engine core; None where they can. Imports vLLM."""
    if accelerator not in _PLATFORMS:
        return f"the scheduler of vLLM on {accelerator} is another"
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
    from vllm.v1.engine.core import EngineCoreProc
    from vllm.v1.engine.core_client import AsyncMPClient
    from vllm.v1.outputs import LogprobsLists

    taken = list(inspect.signature(Scheduler.update_from_output).parameters)
    needed = {
        "Scheduler.update_from_output": taken == ["self", "scheduler_output", "model_runner_output"],
        "Scheduler.finish_requests": hasattr(Scheduler, "finish_requests"),
        "Scheduler.make_stats": hasattr(Scheduler, "make_stats") and hasattr(KVCacheManager, "usage"),
        "LogprobsLists": LogprobsLists._fields
        == ("logprob_token_ids", "logprobs", "sampled_token_ranks", "cu_num_generated_tokens"),
        "EngineCoreOutput": {"request_id", "new_token_ids", "new_logprobs", "finish_reason", "events"}
        <= set(EngineCoreOutput.__struct_fields__),
        "EngineCoreOutputs": {"outputs", "finished_requests", "scheduler_stats"}
        <= set(EngineCoreOutputs.__struct_fields__),
        "EngineCoreProc._invoke_utility_method": hasattr(EngineCoreProc, "_invoke_utility_method"),
        "AsyncMPClient.call_utility_async": hasattr(AsyncMPClient, "call_utility_async"),
    }
    return differing([name for name, fits in needed.items() if not fits]) or None


class ArrivedLogProbs:
    """Log-probabilities of requests that have not been answered yet, taken off vLLM's outputs before it
    unpacks them token by token."""

    def __init__(self, output_processor: Any) -> None:
        """`output_processor`: vLLM's, which knows the requests."""
        self._states: dict[str, Any] = output_processor.request_states
        self._parts: dict[str, list[NDArray[np.float32]]] = {}

    def strip(self, outputs: list[Any]) -> None:
        """Take them off these outputs, which vLLM has not processed yet."""
        for output in outputs:
            packed, output.new_logprobs = output.new_logprobs, None
            # Those of requests that were aborted meanwhile are for nobody.
            state = self._states.get(output.request_id)
            if packed is not None and state is not None:
                self._parts.setdefault(state.external_req_id, []).append(packed.logprobs.reshape(-1))

    def take(self, request_id: str, tokens: int) -> NDArray[np.float32]:
        """Those of a request that ended with so many tokens: shape (tokens,). An abort may come between the
        arrival of tokens and their processing; such tokens are not counted, and theirs are left out."""
        parts = self._parts.pop(request_id, [])
        whole = np.concatenate(parts) if parts else np.empty(0, np.float32)
        return whole[:tokens].astype(np.float32, copy=False)
