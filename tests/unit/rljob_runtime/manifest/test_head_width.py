"""Heads that vLLM on CPUs has attention for, or has not."""

from typing import Any

import pytest

from rljob_api import RLJob
from rljob_runtime.manifest.head_width import check_head_width
from tests.support.jobs import job

CPU = {"training.model": {"path": "m"}, "training.rollout.engine": {"vllm": {}}}


@pytest.mark.parametrize(
    ("config", "changes", "right"),
    [
        ({"head_dim": 64}, {}, True),
        ({"head_dim": 16}, {}, False),
        ({"hidden_size": 128, "num_attention_heads": 4}, {}, True),
        ({"hidden_size": 64, "num_attention_heads": 4}, {}, False),
        ({"head_dim": None, "hidden_size": 64, "num_attention_heads": 4}, {}, False),
        ({"head_dim": 32, "hidden_size": 64, "num_attention_heads": 4}, {}, True),
        ({"head_dim": 16}, {"training.rollout.engine": {"torch": {}}}, True),
        ({"head_dim": 16}, {"accelerator": "nvidia"}, True),
        ({"head_dim": 16, "kv_lora_rank": 8}, {}, True),
        ({"hidden_size": 64, "num_attention_heads": 0}, {}, True),
        ({"model_type": "other"}, {}, True),
        ({}, {}, True),
    ],
)
def test_heads_must_be_of_a_width_that_vllm_has(
    config: dict[str, Any], changes: dict[str, Any], right: bool
) -> None:
    found = check_head_width(RLJob.model_validate(job({**CPU, **changes})), config)
    assert (found is None) == right


def test_the_message_says_which_there_are_and_what_to_do() -> None:
    assert str(check_head_width(RLJob.model_validate(job(CPU)), {"head_dim": 16})) == (
        "spec.training.model.path: its attention heads are 16 wide (head_dim, or hidden_size / "
        "num_attention_heads, in its config.json), and vLLM on CPUs has attention for 32, 64, 80, 96, 112, "
        "128, 160, 192, 224, 256, 512 alone: take another model, or rollout.engine.torch."
    )
