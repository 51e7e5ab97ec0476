"""Log-probabilities of vLLM engines on Ascend NPUs.

vllm-ascend puts a sampler of its own in the place of vLLM's, and makes it without the mode of
log-probabilities that the engine was asked for. By its default they leave out temperature, top-k and top-p,
and nothing tells so.

Guarantees: on NPUs log-probabilities are of the mode that the engine was asked for, or the engine does not
start; elsewhere nothing is changed.
"""

from functools import wraps
from typing import Any

from rljob_runtime.engines.made_workers import when_made


def keep_log_probs_as_asked() -> None:
    """Have the workers that are made in this process from now on do so."""
    when_made(_keep)


def _keep(worker: Any) -> None:
    if worker.vllm_config.device_config.device_type != "npu":
        return
    original = worker.init_device

    @wraps(original)
    def init_device(*arguments: Any, **options: Any) -> Any:
        answer = original(*arguments, **options)
        set_mode(worker.model_runner, worker.vllm_config.model_config.logprobs_mode)
        return answer

    # On the worker itself, which comes before its class, whichever that is.
    worker.init_device = init_device


def set_mode(runner: Any, mode: str) -> None:
    """Have the sampler of a model runner return log-probabilities of this mode. Raises `RuntimeError` where
    it is no sampler whose mode can be set."""
    sampler: Any = getattr(runner, "sampler", None)
    inner: Any = getattr(sampler, "topk_topp_sampler", None)
    # The inner one draws wherever a request is not greedy; each has the mode for itself.
    for each in (sampler, inner):
        if not hasattr(each, "logprobs_mode"):
            raise RuntimeError(
                f"this version of vllm-ascend is not supported: {type(runner).__name__} has no sampler whose "
                "logprobs_mode can be set, so that log-probabilities would be of another distribution than "
                "tokens are drawn from. Use vllm-ascend 0.23.0, with VLLM_USE_V2_MODEL_RUNNER not set"
            )
        each.logprobs_mode = mode
