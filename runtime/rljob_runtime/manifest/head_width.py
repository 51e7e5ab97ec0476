"""Does vLLM on CPUs have attention for the heads of a model's folder? Pure.

A random model's are looked at by a rule of the RLJob.
"""

from collections.abc import Mapping
from typing import Any

from rljob_api import RLJob
from rljob_api.accelerators import CPU_HEAD_DIMS
from rljob_api.errors import Problem


def check_head_width(job: RLJob, config: Mapping[str, Any]) -> Problem | None:
    """What is wrong with the width of a head; None where the engine takes it or it cannot be told. `config`:
    the config.json of a model folder, empty for a random model."""
    if job.spec.accelerator != "cpu" or job.spec.training.rollout.engine.vllm is None:
        return None
    width = _width(config)
    if width is None or width in CPU_HEAD_DIMS:
        return None
    return Problem(
        ("spec", "training", "model", "path"),
        f"its attention heads are {width} wide (head_dim, or hidden_size / num_attention_heads, in its "
        f"config.json), and vLLM on CPUs has attention for {', '.join(map(str, CPU_HEAD_DIMS))} alone: take "
        "another model, or rollout.engine.torch",
    )


def _width(config: Mapping[str, Any]) -> int | None:
    """None for attention of another kind than the plain one."""
    if "kv_lora_rank" in config:
        return None
    width, hidden, heads = (config.get(name) for name in ("head_dim", "hidden_size", "num_attention_heads"))
    if isinstance(width, int):
        return width
    return hidden // heads if isinstance(hidden, int) and isinstance(heads, int) and heads > 0 else None
