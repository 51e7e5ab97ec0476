"""Rotary embeddings that depend on the longest sample of a pass."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from rljob_runtime.job_errors import UnsupportedModel
from rljob_runtime.manifest.rotations import check_rotations
from rljob_runtime.trainer.model import load_policy
from rljob_runtime.trainer.packing import pack
from rljob_runtime.trainer.sampling_distribution import Distribution

LIMIT = 16
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 10_000.0, "factor": 4.0,
    "original_max_position_embeddings": LIMIT, "short_factor": [1.0] * 8, "long_factor": [4.0] * 8,
}  # fmt: skip
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 4.0}


def config(parameters: dict[str, Any], longest: int) -> transformers.LlamaConfig:
    return transformers.LlamaConfig(
        vocab_size=32, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=longest, initializer_range=0.5, rope_parameters=parameters,
    )  # fmt: skip


CASES = {"longrope": config(LONGROPE, 4 * LIMIT), "dynamic": config(DYNAMIC, LIMIT)}


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("length", [LIMIT, LIMIT + 1])
def test_a_sample_beside_a_longer_one(tmp_path: Path, kind: str, length: int) -> None:
    """Refused exactly where it is computed otherwise than alone."""
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(CASES[kind]).save_pretrained(tmp_path)
    policy = load_policy(tmp_path, Distribution(), torch.float32)
    tokens = torch.randint(32, (length + 10,), dtype=torch.int32).numpy()
    prompts, responses = [tokens[:2], tokens[10:12]], [tokens[2:10], tokens[12 : length + 10]]
    with torch.no_grad():
        alone = policy(pack(prompts[:1], responses[:1], torch.device("cpu"))).log_probs
        beside = policy(pack(prompts, responses, torch.device("cpu"))).log_probs[:8]
    text = policy.model.config.get_text_config()
    if length <= LIMIT:
        torch.testing.assert_close(beside, alone, rtol=1e-4, atol=1e-4)
        check_rotations(text, length)
    else:
        assert (beside - alone).abs().max() > 0.01
        with pytest.raises(
            UnsupportedModel, match=rf"rope_type {kind} in config.json .* more than {LIMIT} t"
        ):
            check_rotations(text, length)


def test_types_of_layers_with_rotations_of_their_own() -> None:
    mixed = config({"rope_type": "default", "rope_theta": 10_000.0}, 64)
    mixed.rope_parameters = {"sliding_attention": {"rope_type": "default"}, "full_attention": LONGROPE}
    check_rotations(mixed, LIMIT)
    with pytest.raises(UnsupportedModel, match="rope_type longrope in"):
        check_rotations(mixed, LIMIT + 1)


def test_other_rotations_have_no_limit() -> None:
    for parameters in ({"rope_type": "default", "rope_theta": 1e4}, {"rope_type": "linear", "factor": 2.0}):
        check_rotations(config(parameters, 8), 1000)
