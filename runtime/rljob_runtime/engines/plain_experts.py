"""Experts in vLLM engines on CPUs whose adapters are for other layers.

An engine with adapters takes for its experts, by itself, a kernel that could add an adapter to them, whether
one ever will or not. On accelerators that kernel multiplies plain experts as well; on CPUs there is none, and
the first step fails.

Guarantees: on CPUs, where an engine is told which layers its adapters are for, experts are multiplied as in
an engine without adapters.
"""

from functools import wraps
from typing import Any


def keep_experts_plain() -> None:
    """Have the workers that are made in this process from now on do so."""
    # All workers' base, whatever the device. Here, as vLLM is imported once its environment is set.
    from vllm.v1.worker import worker_base

    base: Any = worker_base.WorkerBase
    original = base.__init__

    @wraps(original)
    def __init__(self: Any, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        adapters = self.vllm_config.lora_config
        told = adapters is not None and adapters.target_modules is not None
        if told and self.vllm_config.device_config.device_type == "cpu":
            _without_adapters()

    base.__init__ = __init__


def _without_adapters() -> None:
    from vllm.model_executor.layers.fused_moe import layer

    as_told: Any = layer.FusedMoEConfig

    def plain(**fields: Any) -> Any:
        return as_told(**(fields | {"is_lora_enabled": False}))

    layer.FusedMoEConfig = plain
