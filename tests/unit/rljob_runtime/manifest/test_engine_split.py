"""Accelerators of a rollout worker over which vLLM can split a model, or cannot."""

from pathlib import Path
from typing import Any

import pytest

from rljob_api import RLJob
from rljob_runtime.manifest.checks import check_job
from rljob_runtime.manifest.engine_split import check_engine_split
from tests.support.jobs import job

MODEL = {"num_attention_heads": 24, "num_key_value_heads": 4, "intermediate_size": 96}
FAST, HEAVY = "pools.fastRollout", "pools.heavyRollout"


def told(changes: dict[str, Any], config: dict[str, Any]) -> list[str]:
    document = RLJob.model_validate(job({"accelerator": "nvidia", **changes}))
    return [str(found) for found in check_engine_split(document, config)]


@pytest.mark.parametrize(
    ("accelerators", "more", "what"),
    [
        (1, {}, None),
        (4, {}, None),
        # Each of the 4 shared heads is on two.
        (8, {}, None),
        (5, {}, "num_attention_heads 24"),
        (16, {}, "num_attention_heads 24"),
        (6, {}, "num_key_value_heads 4"),
        (6, {"kv_lora_rank": 512}, None),
        (8, {"intermediate_size": 100}, "intermediate_size 100"),
        (8, {"intermediate_size": 100, "num_experts": 8}, None),
        (5, {"num_attention_heads": None, "num_key_value_heads": 0, "intermediate_size": [7]}, None),
    ],
)  # fmt: skip
def test_one_pool(accelerators: int, more: dict[str, Any], what: str | None) -> None:
    found = told({FAST: {"acceleratorsPerWorker": accelerators}}, {**MODEL, **more})
    if what is None:
        assert found == []
    else:
        (one,) = found
        assert f"pools.fastRollout.acceleratorsPerWorker: is {accelerators}, over which vLLM cannot" in one
        assert f"the model's {what} (config.json): set one of 1, 2, " in one


@pytest.mark.parametrize(
    ("changes", "pools"),
    [
        ({FAST: {"acceleratorsPerWorker": 5}, HEAVY: {"replicas": 1, "acceleratorsPerWorker": 5}}, 2),
        ({HEAVY: {"replicas": 0, "acceleratorsPerWorker": 5}}, 0),
        ({HEAVY: {"replicas": 0, "maxReplicas": 2, "acceleratorsPerWorker": 5}}, 1),
    ],
)
def test_each_pool_that_has_workers_or_may_get_some(changes: dict[str, Any], pools: int) -> None:
    assert len(told(changes, MODEL)) == pools


def test_a_random_model_is_looked_at_too() -> None:
    changes = {"accelerator": "nvidia", FAST: {"acceleratorsPerWorker": 3}}
    errors, _ = check_job(RLJob.model_validate(job(changes)), Path())
    assert [str(error) for error in errors] == [
        "spec.pools.fastRollout.acceleratorsPerWorker: is 3, over which vLLM cannot split the model's "
        "num_attention_heads 4 (config.json): set one of 1, 2, 4."
    ]
