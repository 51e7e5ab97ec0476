"""Number formats that vLLM on NPUs computes in."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from rljob_api import RLJob
from rljob_runtime.manifest.ascend_formats import check_format
from rljob_runtime.manifest.checks import check
from rljob_runtime.manifest.load import read
from tests.support.jobs import job

NPU, DTYPE = {"accelerator": "ascend"}, "training.model.dtype"
WORDS = "and vLLM's attention on Ascend computes in 16 bits alone: set bfloat16. The trainer keeps float32"


@pytest.mark.parametrize(
    ("changes", "begins"),
    [
        ({}, None),
        ({"accelerator": "nvidia"}, None),
        (NPU, f"spec.training.model.dtype: is float32, its default, {WORDS}"),
        ({**NPU, DTYPE: "float32"}, f"spec.training.model.dtype: is float32, {WORDS}"),
        ({**NPU, "training.rollout.engine": {"vllm": {}}}, "spec.training.model.dtype: is float32, its"),
        ({**NPU, DTYPE: "bfloat16"}, None),
    ],
)
def test_formats(changes: dict[str, Any], begins: str | None) -> None:
    found = check_format(RLJob.model_validate(job(changes)))
    assert (None if found is None else str(found)[: len(begins or "")]) == begins


def test_a_job_that_its_engines_cannot_compute_is_refused(tmp_path: Path) -> None:
    manifest = tmp_path / "job.yaml"
    manifest.write_text(yaml.safe_dump(job(NPU), sort_keys=False))
    errors, _ = check(read(manifest))
    assert [each.problem.path[-1] for each in errors] == ["dtype"]
