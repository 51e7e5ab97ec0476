"""A KV cache on CPUs that holds the longest sample, or does not."""

from typing import Any

import pytest

from rljob_api import RLJob
from rljob_runtime.manifest.cache_size import check_cache_size
from tests.support.jobs import job

RANDOM = {"random": {"layers": 2, "keyValueHeads": 2, "headDim": 32, "maxPositionEmbeddings": 4096}}
CONFIG = {
    "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 512,
}  # fmt: skip


def problem(
    gib: float,
    config: dict[str, Any] | None = None,
    dtype: str = "float32",
    engine: str = "vllm",
    **spec: str,
) -> str | None:
    """A sample has at most 1024 tokens."""
    model = {**(RANDOM if config is None else {"path": "m"}), "dtype": dtype}
    changes = {
        "training.model": model,
        "training.data": {"generated": {"task": "copy"}, "maxPromptTokens": 24},
        "training.rollout": {
            "engine": {"vllm": {"kvCacheGiB": gib}} if engine == "vllm" else {"torch": {}},
            "maxResponseTokens": 1000,
        },
        **spec,
    }
    found = check_cache_size(RLJob.model_validate(job(changes)), config or {})
    return None if found is None else str(found)


# 1024 tokens of 2 * 2 * 2 * 32 numbers of 4 bytes: 1 MiB.
MIB = 2**-10


@pytest.mark.parametrize(
    ("gib", "more", "enough"),
    [
        (MIB, {}, True),
        (0.99 * MIB, {}, False),
        (0.99 * MIB, {"dtype": "bfloat16"}, True),
        (0.49 * MIB, {"dtype": "bfloat16"}, False),
        (0.01 * MIB, {"engine": "torch"}, True),
        (0.01 * MIB, {"accelerator": "nvidia"}, True),
        (4 * MIB, {"config": CONFIG}, True),
        (3.9 * MIB, {"config": CONFIG}, False),
        (3.9 * MIB, {"config": {**CONFIG, "head_dim": 32}}, True),
        (3.9 * MIB, {"config": {**CONFIG, "layer_types": ["full_attention"] * 4}}, False),
        (0.01 * MIB, {"config": {**CONFIG, "layer_types": ["sliding_attention"] * 4}}, True),
        (0.01 * MIB, {"config": {**CONFIG, "kv_lora_rank": 16}}, True),
        (0.01 * MIB, {"config": {"model_type": "other"}}, True),
    ],
)
def test_the_longest_sample_must_fit(gib: float, more: dict[str, Any], enough: bool) -> None:
    assert (problem(gib, **more) is None) == enough


def test_the_message_names_the_field_and_what_it_takes() -> None:
    assert problem(0.5 * MIB) == (
        "spec.training.rollout.engine.vllm.kvCacheGiB: 0.000488281 is below what the longest sample takes, "
        "0.00098 GiB for data.maxPromptTokens + rollout.maxResponseTokens = 1024 tokens: raise it, or lower "
        "those."
    )
