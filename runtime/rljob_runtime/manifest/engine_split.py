"""Can vLLM split a model's layers over the accelerators of a rollout worker? Pure.

Guarantees: what is refused is what vLLM ends with at its start; what is not known of a model is left to it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from rljob_api import RLJob
from rljob_api.errors import Problem
from rljob_api.pools import RolloutPool
from rljob_runtime.parallel.rank_layout import experts_of

_HEADS, _KEY_VALUE_HEADS, _WIDTH = "num_attention_heads", "num_key_value_heads", "intermediate_size"
_MOST = 16
"""Accelerators of a worker (`acceleratorsPerWorker`)."""


def check_engine_split(job: RLJob, config: Mapping[str, Any]) -> Iterator[Problem]:
    """What is wrong with the accelerators of each rollout pool. `config`: what config.json says, or will say,
    of the model's part for text."""
    spec = job.spec
    if spec.accelerator == "cpu":
        # An engine there has no accelerators to split anything over.
        return
    for name, pool in (("fastRollout", spec.pools.fast_rollout), ("heavyRollout", spec.pools.heavy_rollout)):
        each = pool.accelerators_per_worker
        if _used(pool) and (why := _indivisible(each, config)) is not None:
            allowed = [str(n) for n in range(1, _MOST + 1) if _indivisible(n, config) is None]
            yield Problem(
                ("spec", "pools", name, "acceleratorsPerWorker"),
                f"is {each}, over which vLLM cannot split the model's {why} (config.json): set one of "
                f"{', '.join(allowed)}",
            )


def _used(pool: RolloutPool) -> bool:
    """Whether a pool has workers, or may get some."""
    return bool(pool.replicas or pool.max_replicas)


def _indivisible(accelerators: int, config: Mapping[str, Any]) -> str | None:
    """What of a model so many accelerators cannot have equal parts of, with its size; None where there is
    nothing."""
    heads, shared, width = (_number(config, name) for name in (_HEADS, _KEY_VALUE_HEADS, _WIDTH))
    if heads is not None and heads % accelerators:
        return f"{_HEADS} {heads}"
    # Where there are fewer of them than accelerators, each is on several. Compressed ones are on all.
    several = shared is not None and (shared % accelerators and accelerators % shared)
    if several and "kv_lora_rank" not in config:
        return f"{_KEY_VALUE_HEADS} {shared}"
    # Of a model with experts it may be the width of each, or of no layer.
    if width is not None and width % accelerators and not experts_of(config):
        return f"{_WIDTH} {width}"
    return None


def _number(config: Mapping[str, Any], name: str) -> int | None:
    value = config.get(name)
    return value if isinstance(value, int) and value > 0 else None
