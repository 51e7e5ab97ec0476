"""How a job's settings become vLLM's."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rljob_api.rollout import Speculation, VllmEngine
from rljob_runtime.engines.protocol import Sampling
from rljob_runtime.engines.vllm_shape import (
    Accelerator,
    AdapterRoom,
    VllmShape,
    arguments,
    early_environment,
    environment,
)
from rljob_runtime.routing.gears import capture_sizes

SOCKETS = Path("/tmp/rljob-vllm-42")


def shape(accelerator: Accelerator = "cpu", tensor_parallel: int = 1, **options: Any) -> VllmShape:
    return VllmShape(
        Path("/model"),
        Sampling(),
        64,
        256,
        "float32",
        VllmEngine(**options),
        accelerator,
        tensor_parallel,
        2,
        7,
    )


@pytest.mark.parametrize(
    ("built", "expected"),
    [
        (
            shape(),
            {"max_num_seqs": 64, "max_model_len": 256, "seed": 7, "logprobs_mode": "processed_logprobs"},
        ),
        (shape(), {"enforce_eager": True, "kv_cache_memory_bytes": 2**30, "gpu_memory_utilization": None}),
        (shape(kvCacheGiB=0.5), {"kv_cache_memory_bytes": 2**29}),
        (
            shape("nvidia"),
            {"enforce_eager": False, "gpu_memory_utilization": 0.85, "kv_cache_memory_bytes": None},
        ),
        (
            replace(shape("nvidia"), kv_cache_bytes=2**31),
            {"gpu_memory_utilization": 0.85, "kv_cache_memory_bytes": 2**31},
        ),
        (shape("nvidia", enforceEager=True), {"enforce_eager": True}),
        (shape("nvidia"), {"additional_config": {}, "distributed_executor_backend": None}),
        (shape("nvidia"), {"compilation_config": {"cudagraph_capture_sizes": list(capture_sizes(64))}}),
        (shape(), {"compilation_config": {"cudagraph_capture_sizes": list(capture_sizes(64))}}),
        (
            shape("nvidia", speculation=Speculation.model_validate({"ngram": {}, "draftTokens": 3})),
            {"compilation_config": {"cudagraph_capture_sizes": list(capture_sizes(64, 3))}},
        ),
        (
            shape("nvidia", captureSizes=[2, 9, 64]),
            {"compilation_config": {"cudagraph_capture_sizes": [2, 9, 64]}},
        ),
        (
            shape("nvidia", maxBatchedTokens=100),
            {"compilation_config": {"cudagraph_capture_sizes": [n for n in capture_sizes(64) if n <= 100]}},
        ),
        (shape("nvidia", enforceEager=True), {"compilation_config": None}),
        (shape("ascend"), {"compilation_config": None}),
        (
            shape("ascend", captureSizes=[1, 8]),
            {"compilation_config": {"cudagraph_capture_sizes": [1, 8]}},
        ),
        (shape("nvidia", 4), {"tensor_parallel_size": 4}),
        (shape(tensor_parallel=2), {"tensor_parallel_size": 2, "distributed_executor_backend": None}),
        (shape("ascend"), {"additional_config": {"rl_config": {"enabled": True}}}),
        (
            shape("ascend", additionalConfig={"x": 1}),
            {"additional_config": {"x": 1, "rl_config": {"enabled": True}}},
        ),
        (shape("ascend", additionalConfig={"rl_config": {}}), {"additional_config": {"rl_config": {}}}),
        (shape(), {"max_num_batched_tokens": None, "enable_prefix_caching": True}),
        (replace(shape(), max_running=4096), {"max_num_batched_tokens": None}),
        (replace(shape(), max_running=4097), {"max_num_batched_tokens": 4097}),
        (replace(shape("nvidia"), max_running=8192), {"max_num_batched_tokens": None}),
        (replace(shape("nvidia"), max_running=9000), {"max_num_batched_tokens": 9000}),
        (replace(shape(maxBatchedTokens=8192), max_running=5000), {"max_num_batched_tokens": 8192}),
        (shape(maxBatchedTokens=2048, prefixCaching=False), {"max_num_batched_tokens": 2048}),
        (shape(prefixCaching=False), {"enable_prefix_caching": False}),
        (shape(), {"speculative_config": None}),
        (shape(), {"enable_lora": None, "max_loras": None}),
        (
            replace(shape(), adapters=AdapterRoom(12, running=3, kept=16)),
            {
                "enable_lora": True,
                "max_lora_rank": 16,
                "max_loras": 3,
                "max_cpu_loras": 16,
                "lora_target_modules": None,
            },
        ),
        (
            replace(shape(), adapters=AdapterRoom(12, running=3, kept=16, layers=("q_proj",))),
            {"lora_target_modules": ["q_proj"]},
        ),
        (replace(shape(), adapters=AdapterRoom(512, running=3, kept=16)), {"max_lora_rank": 512}),
        (replace(shape(), adapters=AdapterRoom(1, running=3, kept=16)), {"max_lora_rank": 8}),
        (
            shape("nvidia", speculation=Speculation.model_validate({"suffix": {}, "draftTokens": 5})),
            {
                "speculative_config": {
                    "method": "custom_class",
                    "model": "rljob_runtime.engines.vllm_drafter.Proposer",
                    "num_speculative_tokens": 5,
                }
            },
        ),
    ],
)
def test_arguments(built: VllmShape, expected: dict[str, object]) -> None:
    chosen = arguments(built)
    assert {name: chosen.get(name) for name in expected} == expected


def test_vllm_is_told_nothing_of_drafts_that_ranks_make_on_their_devices() -> None:
    drafting = shape("nvidia", speculation=Speculation.model_validate({"suffix": {}, "draftTokens": 5}))
    assert arguments(drafting, drafts_on_device=True) == arguments(shape("nvidia"))


def test_environment_on_cpus_binds_threads_and_compiles_nothing() -> None:
    on_cpu, on_gpu = environment(shape("cpu"), 42, SOCKETS), environment(shape("nvidia"), 42, SOCKETS)
    assert on_cpu.items() - on_gpu.items() == {
        ("VLLM_CPU_OMP_THREADS_BIND", "nobind"),
        ("OMP_NUM_THREADS", "2"),
        ("TORCH_COMPILE_DISABLE", "1"),
    }
    assert on_gpu["RLJOB_ENGINE_HOST"] == "42"
    assert on_gpu["VLLM_RPC_BASE_PATH"] == str(SOCKETS)


def test_weights_on_ascend_are_in_a_layout_that_can_be_updated() -> None:
    on_npu, on_gpu = environment(shape("ascend"), 42, SOCKETS), environment(shape("nvidia"), 42, SOCKETS)
    assert on_npu.items() - on_gpu.items() == {("VLLM_ASCEND_ENABLE_NZ", "0")}
    assert early_environment("ascend", "bfloat16", 2, 42)["VLLM_ASCEND_ENABLE_NZ"] == "0"


def test_float32_attention_on_nvidia_does_not_multiply_in_tf32() -> None:
    halves = replace(shape("nvidia"), dtype="bfloat16")
    assert environment(shape("nvidia"), 42, SOCKETS)["TRITON_F32_DEFAULT"] == "ieee"
    assert "TRITON_F32_DEFAULT" not in environment(halves, 42, SOCKETS) | environment(
        shape("cpu"), 42, SOCKETS
    )
