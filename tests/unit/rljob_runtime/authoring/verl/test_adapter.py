"""LoRA of a verl launch."""

import pytest

from tests.support.runtime.verl_launch import ACTOR, converted, fields, told

LORA = "actor_rollout_ref.model.lora_rank=32"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ((LORA,), {"rank": 32, "alpha": 16}),
        (
            (
                LORA,
                "actor_rollout_ref.model.lora_alpha=64",
                "actor_rollout_ref.model.target_modules=all-linear",
            ),
            {"rank": 32, "alpha": 64},
        ),
        (
            (LORA, "actor_rollout_ref.model.target_modules=[q_proj,v_proj]"),
            {"rank": 32, "alpha": 16, "targetModules": ["q_proj", "v_proj"]},
        ),
        (("actor_rollout_ref.model.lora_rank=0",), {}),
        ((LORA, "trainer.device=npu"), {}),
    ],
)
def test_lora_becomes_an_adapter(overrides: tuple[str, ...], expected: dict[str, object]) -> None:
    conversion = converted(*overrides)
    start = "training.adapter."
    found = {
        path.removeprefix(start): it for path, it in fields(conversion).items() if path.startswith(start)
    }
    assert found == expected
    lost = "there is no LoRA on NPUs" in told(conversion).get(LORA, "")
    assert lost is ("trainer.device=npu" in overrides)


def test_lora_on_gpus_is_in_bfloat16() -> None:
    conversion = converted(LORA, f"{ACTOR}.fsdp_config.dtype=float32")
    assert fields(conversion)["training.model.dtype"] == "bfloat16"
    assert "in 16 bits on GPUs" in told(conversion)[LORA]
    alone = converted(LORA, f"{ACTOR}.fsdp_config.dtype=float32", "trainer.device=cpu")
    assert fields(alone)["training.model.dtype"] == "float32"
