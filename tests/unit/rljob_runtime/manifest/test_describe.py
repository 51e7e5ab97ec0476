"""What the head of the view says of a job's model."""

from pathlib import Path
from typing import Any

import pytest

from rljob_api import RLJob
from rljob_runtime.manifest.describe import header_of
from tests.support.jobs import job


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "random Qwen3 (0.13 M)"),
        ({"training.adapter": {"rank": 1}}, "random Qwen3 (0.13 M, adapter 2.8 k)"),
        (
            {"training.algorithm.distillation": {"teacher": {"server": {"url": "http://t", "model": "big"}}}},
            "random Qwen3 (0.13 M, teacher big)",
        ),
        ({"training.adapter": {"rank": 64}}, "random Qwen3 (0.13 M, adapter 0.18 M)"),
    ],
)
def test_a_model_and_its_adapter(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    assert header_of(RLJob.model_validate(job(changes)), tmp_path).model == said
