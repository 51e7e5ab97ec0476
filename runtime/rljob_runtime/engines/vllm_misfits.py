"""What a vLLM that differs from those that were read does itself, and the log says so."""

import logging

from rljob_runtime.engines.vllm_blocks import blocks_misfit
from rljob_runtime.engines.vllm_plain_steps import steps_misfit
from rljob_runtime.engines.vllm_plain_tokens import tokens_misfit
from rljob_runtime.engines.vllm_read import differing

_log = logging.getLogger(__name__)

_ITSELF = (
    ("asks its KV cache manager for each token", blocks_misfit),
    ("takes each token of a step in", tokens_misfit),
    ("decides each step", steps_misfit),
)
"""What vLLM does itself, and what of it is not as what stands in its place needs it."""


def tell_misfits() -> None:
    """A line for each. Imports vLLM."""
    for what, misfit in _ITSELF:
        if why := differing(misfit()):
            _log.info("vLLM %s itself, which takes more of an engine core's CPU: %s", what, why)
