"""In which number format a tensor of a version is sent and stored."""

import pytest

from rljob_runtime.weights.formats import format_of

CORRECTIONS = [
    "model.layers.1.mlp.gate.e_score_correction_bias",
    "model.layers.1.mlp.experts.e_score_correction_bias",
    "model.layers.1.mlp.moe_statics.e_score_correction_bias",
    "model.layers.1.block_sparse_moe.e_score_correction_bias",
    "model.layers.1.mlp.expert_bias",
    "model.layers.1.feed_forward.expert_bias",
    "model.layers.1.moe.router_bias",
]
OTHERS = [
    "lm_head.weight",
    "model.layers.1.mlp.gate.weight",
    "model.layers.1.mlp.gate.bias",
    "model.layers.1.mlp.experts.0.down_proj.bias",
    "model.e_score_correction_bias.weight",
    "model.not_an_expert_bias",
]


@pytest.mark.parametrize("job", ["bfloat16", "float16", "float32"])
def test_corrections_of_routers_are_float32_and_the_others_what_the_job_says(job: str) -> None:
    assert [format_of(name, job) for name in CORRECTIONS] == ["float32"] * len(CORRECTIONS)
    assert [format_of(name, job) for name in OTHERS] == [job] * len(OTHERS)


def test_nothing_is_narrowed() -> None:
    assert format_of(CORRECTIONS[0], "float64") == "float64"
