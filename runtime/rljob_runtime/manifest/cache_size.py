"""Does the KV cache of an engine on CPUs hold the longest sample? Pure.

On accelerators it is what their memory leaves, and known only where they are.
"""

from collections.abc import Mapping
from typing import Any

from rljob_api import RLJob
from rljob_api.errors import Problem

_GIB = 2**30


def check_cache_size(job: RLJob, config: Mapping[str, Any]) -> Problem | None:
    """What is wrong with `kvCacheGiB`; None where it suffices or cannot be told. `config`: the config.json of
    a model folder."""
    training = job.spec.training
    vllm = training.rollout.engine.vllm
    token = _token_elements(job, config)
    if vllm is None or job.spec.accelerator != "cpu" or token is None:
        return None
    longest = training.longest_sample_tokens
    needed = longest * token * (4 if training.model.dtype == "float32" else 2)
    if needed <= vllm.kv_cache_gi_b * _GIB:
        return None
    return Problem(
        ("spec", "training", "rollout", "engine", "vllm", "kvCacheGiB"),
        f"{vllm.kv_cache_gi_b:g} is below what the longest sample takes, {needed / _GIB:.2g} GiB for "
        f"data.maxPromptTokens + rollout.maxResponseTokens = {longest} tokens: raise it, or lower those",
    )


def _token_elements(job: RLJob, config: Mapping[str, Any]) -> int | None:
    """Numbers in the keys and values of one token; None for attention of another kind than the plain one."""
    random = job.spec.training.model.random
    if random is not None:
        return 2 * random.layers * random.key_value_heads * random.head_dim
    layers, heads = config.get("num_hidden_layers"), config.get("num_attention_heads")
    key_value_heads, hidden = config.get("num_key_value_heads", heads), config.get("hidden_size")
    # Compressed keys and values, or layers that see a part of the tokens alone, take less.
    kinds = config.get("layer_types") or []
    if "kv_lora_rank" in config or config.get("sliding_window") or set(kinds) - {"full_attention"}:
        return None
    if not (isinstance(layers, int) and isinstance(heads, int) and isinstance(key_value_heads, int)):
        return None
    width = config.get("head_dim") or (hidden // heads if isinstance(hidden, int) and heads else None)
    return 2 * layers * key_value_heads * width if isinstance(width, int) else None
