"""How a vLLM engine is built: its shape, and what vLLM is given for it. Pure; does not import vLLM."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rljob_api.rollout import VllmEngine as VllmOptions
from rljob_runtime.engines.protocol import Sampling
from rljob_runtime.engines.vllm_drafter import PROPOSER
from rljob_runtime.engines.vllm_extension import HOST_VARIABLE
from rljob_runtime.engines.vllm_warm_up import VARIABLE, as_sampled
from rljob_runtime.routing.gears import capture_sizes

Accelerator = Literal["nvidia", "ascend", "cpu"]

_LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM makes room for; adapters of lower ranks fit."""


_USUAL_TOKENS: dict[Accelerator, int] = {"cpu": 4096, "nvidia": 8192, "ascend": 8192}
"""What vLLM takes at least for the tokens of a step, where it is not told. It makes no engine that runs more
requests than that."""


@dataclass(frozen=True)
class AdapterRoom:
    """How many adapters an engine has room for, and how large they may be."""

    rank: int
    running: int
    """Most of them that requests of one batch may be generated with; requests with others wait."""
    kept: int
    """Most of them in main memory, `running` at least. Another one is read from its folder again."""
    layers: tuple[str, ...] = ()
    """Last parts of the names of those layers that have room for them; none: all layers do."""


@dataclass(frozen=True)
class LoadedAdapter:
    """An adapter as vLLM knows it."""

    number: int
    """From 1 on; no other adapter of the engine has had it."""
    name: str
    """Nor this: by it vLLM tells whose KV cache the beginning of a prompt may be taken from."""
    folder: Path


@dataclass(frozen=True)
class VllmShape:
    """What a vLLM engine is built from."""

    model_folder: Path
    sampling: Sampling
    max_running: int
    max_length: int
    dtype: str
    options: VllmOptions
    accelerator: Accelerator
    tensor_parallel: int
    threads: int
    seed: int
    timed: bool = True
    """Whether it is recorded when requests were scheduled, pre-empted, and got their first token."""
    adapters: AdapterRoom | None = None
    hold_outputs: bool = True
    """Whether tokens and log-probabilities wait in the engine core until they are asked for, where this vLLM
    can do so."""
    device_drafts: bool = True
    """Whether drafts are made on the device, where this vLLM can do so; else always on the CPU."""
    kv_cache_bytes: int | None = None
    """Memory of the KV cache on an accelerator; None: what vLLM finds to be left of the engine's part of the
    memory, for which it must be the only one that takes memory meanwhile."""


def early_environment(accelerator: Accelerator, dtype: str, threads: int, host: int) -> dict[str, str]:
    """Those of `environment` that are known before a model is."""
    variables = {
        HOST_VARIABLE: str(host),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        # The host has threads, so a fork of it may deadlock.
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    }
    if accelerator == "cpu":
        # Several engines share the machine's cores: the system places their threads, vLLM pins none.
        variables |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(threads)}
        # The sampler would be compiled at the first request, for which an image would need a C++ compiler.
        variables["TORCH_COMPILE_DISABLE"] = "1"
    if accelerator == "nvidia" and dtype == "float32":
        # Triton's attention would multiply in TF32: log-probabilities 5e-3 off the trainer's instead of 4e-6.
        variables["TRITON_F32_DEFAULT"] = "ieee"
    if accelerator == "ascend":
        # By default vllm-ascend lays weights out in FRACTAL_NZ, and refuses to update such.
        variables["VLLM_ASCEND_ENABLE_NZ"] = "0"
    return variables


def environment(shape: VllmShape, host: int, sockets: Path) -> dict[str, str]:
    """Environment variables that must be set before vLLM is imported; `host` is this process's id, `sockets`
    the folder for the sockets of its engines."""
    early = early_environment(shape.accelerator, shape.dtype, shape.threads, host)
    warm_up = {VARIABLE: json.dumps(as_sampled(shape.sampling))}
    return early | warm_up | {"VLLM_RPC_BASE_PATH": str(sockets)}


def arguments(shape: VllmShape, drafts_on_device: bool = False) -> dict[str, Any]:
    """Keyword arguments of `AsyncEngineArgs`; `drafts_on_device`: vLLM is told of no drafts, for its ranks
    make them on the device (`vllm_device_drafts`)."""
    options, cpu = shape.options, shape.accelerator == "cpu"
    additional = dict(options.additional_config)
    if shape.accelerator == "ascend":
        # For versions of vllm-ascend that ask this of the layout of weights; 0.23.0 asks the environment.
        additional.setdefault("rl_config", {"enabled": True})
    chosen: dict[str, Any] = {
        "model": str(shape.model_folder),
        # Tokens go in and come out.
        "skip_tokenizer_init": True,
        "dtype": shape.dtype,
        "seed": shape.seed,
        "max_model_len": shape.max_length,
        "max_num_seqs": shape.max_running,
        "tensor_parallel_size": shape.tensor_parallel,
        "enforce_eager": cpu or options.enforce_eager,
        "enable_prefix_caching": options.prefix_caching,
        # The default, raw_logprobs, leaves out temperature, top-k and top-p. For NPUs see `ascend_log_probs`.
        "logprobs_mode": "processed_logprobs",
        # Not the sampling defaults that the model's generation_config.json may hold.
        "generation_config": "vllm",
        "use_tqdm_on_load": False,
        "disable_log_stats": True,
        "worker_extension_cls": "rljob_runtime.engines.vllm_extension.WeightLoader",
        "additional_config": additional,
    }
    if options.max_batched_tokens is not None:
        chosen["max_num_batched_tokens"] = options.max_batched_tokens
    elif shape.max_running > _USUAL_TOKENS[shape.accelerator]:
        chosen["max_num_batched_tokens"] = shape.max_running
    if shape.adapters is not None:
        chosen |= {
            "enable_lora": True,
            "max_lora_rank": next(rank for rank in _LORA_RANKS if rank >= shape.adapters.rank),
            "max_loras": shape.adapters.running,
            "max_cpu_loras": shape.adapters.kept,
        }
        if shape.adapters.layers:
            chosen["lora_target_modules"] = list(shape.adapters.layers)
    if options.speculation is not None and not drafts_on_device:
        chosen["speculative_config"] = {
            "method": "custom_class",
            "model": PROPOSER,
            "num_speculative_tokens": options.speculation.draft_tokens,
        }
    if (sizes := _capture_sizes(shape, drafts_on_device)) is not None:
        chosen["compilation_config"] = {"cudagraph_capture_sizes": sizes}
    if cpu and shape.tensor_parallel == 1:
        # The model runs in the engine core's process. By its short name "uni" vLLM overrules it on CPUs, to
        # bind threads to cores in a worker process; here nothing is bound, and that process would cost
        # seconds at start and end and a round trip for each step.
        chosen["distributed_executor_backend"] = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
    if cpu:
        chosen["kv_cache_memory_bytes"] = int(options.kv_cache_gi_b * 2**30)
    else:
        chosen["gpu_memory_utilization"] = options.gpu_memory_utilization
        if shape.kv_cache_bytes is not None:
            chosen["kv_cache_memory_bytes"] = shape.kv_cache_bytes
    return chosen


def _capture_sizes(shape: VllmShape, drafts_on_device: bool) -> list[int] | None:
    """Batch sizes with a graph; None: as the platform chooses."""
    options = shape.options
    if options.capture_sizes is not None:
        return options.capture_sizes
    # Graphs take streams, of which an NPU has few: where they run out, the engine's start ends in an error.
    # So vllm-ascend's own sizes, and no longer list.
    if options.enforce_eager or shape.accelerator == "ascend":
        return None
    # On the device they are for steps of few requests, which are not as large as full ones.
    drafts = 0 if options.speculation is None or drafts_on_device else options.speculation.draft_tokens
    most = options.max_batched_tokens
    sizes = capture_sizes(shape.max_running, drafts)
    return [size for size in sizes if most is None or size <= most]
