"""Experts in vLLM engines on CPUs whose adapters are for other layers.

An engine with adapters takes for its experts, by itself, a kernel that could add an adapter to them, whether
one ever will or not. On accelerators that kernel multiplies plain experts as well; on CPUs there is none, and
the first step fails.

Guarantees: on CPUs, where an engine is told which layers its adapters are for, experts are multiplied as in
an engine without adapters.
"""

from typing import Any

from rljob_runtime.engines.made_workers import when_made


def keep_experts_plain() -> None:
    """Have the workers that are made in this process from now on do so."""
    when_made(_keep_plain)


def _keep_plain(worker: Any) -> None:
    adapters = worker.vllm_config.lora_config
    told = adapters is not None and adapters.target_modules is not None
    if told and worker.vllm_config.device_config.device_type == "cpu":
        _without_adapters()


def _without_adapters() -> None:
    from vllm.model_executor.layers.fused_moe import layer

    as_told: Any = layer.FusedMoEConfig

    def plain(**fields: Any) -> Any:
        return as_told(**(fields | {"is_lora_enabled": False}))

    layer.FusedMoEConfig = plain
