"""What is told of a trainer whose accelerator has no memory left."""

from typing import Any

import pytest
from pydantic import ValidationError

from rljob_api import RLJob
from rljob_runtime.driver.device_memory import no_memory_left
from tests.support.jobs import job

NVIDIA = (
    "CUDA out of memory. Tried to allocate 62.00 MiB. GPU 0 has a total capacity of 79.18 GiB of which 9.62 "
)
NVIDIA += "MiB is free. Process 1107 has 3.40 GiB memory in use."
ASCEND = "NPU out of memory. Tried to allocate 2.00 GiB (NPU 3; 61.00 GiB total capacity; 57.00 GiB already "
ASCEND += (
    "allocated; 57.00 GiB current active; 1.00 GiB free; 58.00 GiB reserved in total by PyTorch) If reserved"
)
LOWER = "lower spec.training.parallel.maxTokensPerMicroBatch (16384; at least 96)"
KEEP_LESS = "set spec.training.model.activationCheckpointing: full"
ENGINE = "lower spec.training.rollout.engine.vllm.gpuMemoryUtilization (0.85)"
OFFLOAD = "set spec.training.parallel.cpuOffload: true, with which steps take many times as long"
LENGTHS = {
    "accelerator": "nvidia",
    "training.data.maxPromptTokens": 32,
    "training.rollout.maxResponseTokens": 64,
}
SMALL: dict[str, Any] = LENGTHS | {"training.parallel": {"maxTokensPerMicroBatch": 96, "cpuOffload": True}}


@pytest.mark.parametrize(
    ("words", "sizes"),
    [
        (NVIDIA, " (62.00 MiB more of 79.18 GiB, of which 9.62 MiB are free)"),
        (ASCEND, " (2.00 GiB more of 61.00 GiB, of which 1.00 GiB are free)"),
        ("out of memory", ""),
    ],
)
def test_how_much_there_was(words: str, sizes: str) -> None:
    told = no_memory_left(RLJob.model_validate(job(LENGTHS)), words, shared=False)
    assert told.startswith(f"its accelerator has no memory left{sizes}: lower ")


@pytest.mark.parametrize(
    ("changes", "shared", "advice"),
    [
        (LENGTHS, False, [LOWER, KEEP_LESS, OFFLOAD]),
        (LENGTHS | {"training.rollout.engine": {"vllm": {}}}, True, [LOWER, KEEP_LESS, ENGINE, OFFLOAD]),
        (LENGTHS | {"training.rollout.engine": {"vllm": {}}}, False, [LOWER, KEEP_LESS, OFFLOAD]),
        (
            LENGTHS | {"training.model": {"random": {}, "gradientCheckpointing": True}},
            False,
            [LOWER, OFFLOAD],
        ),
        (
            LENGTHS
            | {"training.adapter": {"rank": 4}, "training.model": {"random": {}, "dtype": "bfloat16"}},
            False,
            [LOWER, KEEP_LESS, OFFLOAD],
        ),
        (SMALL, False, [KEEP_LESS]),
        (
            SMALL | {"training.model": {"random": {}, "activationCheckpointing": "full"}},
            False,
            ["give the trainer more accelerators, or a smaller model"],
        ),
    ],
)
def test_what_would_help(changes: dict[str, Any], shared: bool, advice: list[str]) -> None:
    told = no_memory_left(RLJob.model_validate(job(changes)), "out of memory", shared)
    assert told == f"its accelerator has no memory left: {', or '.join(advice)}"


@pytest.mark.parametrize(
    ("ranks", "parallel", "least"),
    [
        (1, {}, 96),
        (2, {}, 48),
        (3, {}, 48),
        (8, {}, 12),
        (8, {"contextParallel": {"none": {}}}, 96),
        (8, {"contextParallel": {"fixed": {"degree": 4}}}, 24),
        (8, {"contextParallel": {"hybrid": {"largestDegree": 2}}}, 48),
        (2, {"tensorParallel": 2}, 96),
        (6, {"tensorParallel": 2}, 48),
        (8, {"tensorParallel": 2}, 24),
        (8, {"tensorParallel": 2, "contextParallel": {"none": {}}}, 96),
        (8, {"tensorParallel": 2, "contextParallel": {"fixed": {"degree": 2}}}, 48),
    ],
)
def test_the_least_that_it_may_be_lowered_to(ranks: int, parallel: dict[str, Any], least: int) -> None:
    changes = LENGTHS | {"pools.trainer": {"acceleratorsPerWorker": ranks}}
    if "tensorParallel" in parallel:
        changes |= {"training.compute": {"compile": False}}

    def with_cap(cap: int) -> RLJob:
        described = changes | {"training.parallel": {"maxTokensPerMicroBatch": cap, **parallel}}
        return RLJob.model_validate(job(described))

    told = no_memory_left(with_cap(1000), "out of memory", shared=False)
    assert f"lower spec.training.parallel.maxTokensPerMicroBatch (1000; at least {least})" in told
    assert "maxTokensPerMicroBatch" not in no_memory_left(with_cap(least), "out of memory", shared=False)
    with pytest.raises(ValidationError, match="must hold the longest sample"):
        with_cap(least - 1)
