"""Builds the engine that an RLJob asks for, in the process that hosts it."""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rljob_api import RLJob
from rljob_api.rollout import VllmEngine as VllmOptions
from rljob_runtime.engines.protocol import Engine, Sampling
from rljob_runtime.groups.responses import response_seed
from rljob_runtime.site.large_imports import large_imports

if TYPE_CHECKING:
    from rljob_runtime.engines.vllm import VllmEngine
    from rljob_runtime.engines.vllm_shape import Accelerator, AdapterRoom

_MOST_ADAPTERS = 8
"""That one batch may be generated with: each takes a part of an accelerator's memory. Requests with others
wait for a place."""


class EngineSpec(msgspec.Struct, frozen=True):
    """What an engine is built from, in MessagePack on its way to the process."""

    job: str
    """The RLJob as JSON."""
    pool: str
    """Attribute of `spec.pools`: "fast_rollout" or "heavy_rollout"."""
    model_folder: str
    sampling: Sampling
    seed: int
    """Differs between the engines of a job, so that no two draw the same responses. Those of a resumed job
    have the seeds of the first attempt again, which doubles no sample that is trained: what a prompt got is
    trained or kept and the prompt not served again, or dropped; and samples of any seed are as good."""


def make(name: str, spec: bytes) -> Engine:
    """The engine of `spec`, not started."""
    built = msgspec.msgpack.decode(spec, type=EngineSpec)
    job = RLJob.model_validate_json(built.job)
    training = job.spec.training
    pool = getattr(job.spec.pools, built.pool)
    max_length = training.data.max_prompt_tokens + training.rollout.max_response_tokens
    folder = Path(built.model_folder)
    limit = training.rollout.max_running_requests
    options, push = training.rollout.engine, training.async_.weight_sync.push
    keep_kv = push is not None and push.kv_after_update == "keep"
    if options.torch is not None:
        from rljob_runtime.engines.torch import TorchEngine

        return TorchEngine(
            name,
            folder,
            built.sampling,
            limit,
            max_length,
            pool.threads,
            training.model.dtype,
            keep_kv,
        )
    with large_imports():
        from rljob_runtime.engines.joint import JointEngine
        from rljob_runtime.engines.vllm import VllmEngine
        from rljob_runtime.engines.vllm_adapter import AdapterEngine

    accelerator: Accelerator = job.spec.accelerator
    adapter, count = training.adapter, 1
    if built.pool == "fast_rollout":
        count = job.spec.pools.fast_rollout.engines_per_accelerator
    vllm = options.vllm or VllmOptions()
    part = vllm.model_copy(update={"gpu_memory_utilization": vllm.gpu_memory_utilization / count})
    build = VllmEngine if adapter is None else partial(AdapterEngine, adapter, adapter_room(job))

    def one(name: str, seed: int) -> VllmEngine:
        return build(
            name,
            folder,
            built.sampling,
            math.ceil(limit / count),
            max_length,
            dtype=training.model.dtype,
            options=part,
            accelerator=accelerator,
            tensor_parallel=1 if accelerator == "cpu" else pool.accelerators_per_worker,
            threads=pool.threads,
            seed=seed,
            timed=training.profiling.events,
            keep_kv=keep_kv,
        )

    if count == 1:
        return one(name, built.seed)
    engines = [one(f"{name}/{place}", response_seed(built.seed, place, 0)) for place in range(count)]
    return JointEngine(name, engines, partial(as_the_first, engines))


async def as_the_first(engines: "Sequence[VllmEngine]") -> None:
    """Give the others as much KV cache as the first one, which is up, has found room for: those that start
    together would mistake each other's memory for their own."""
    first, *others = engines
    size = await first.kv_cache_bytes()
    for each in others:
        each.take_kv_cache(size)


def adapter_room(job: RLJob) -> "AdapterRoom":
    """Room for the adapters of a job that has one."""
    from rljob_runtime.engines.vllm_shape import AdapterRoom

    training = job.spec.training
    if training.adapter is None:
        raise ValueError("the job has no adapter")
    # Responses of so many versions may be under way, and those of the newest one beside them.
    running = min(_MOST_ADAPTERS, math.ceil(training.async_.max_staleness) + 2)
    # What is not kept is read again from its folder, which a trainer that is started again removes.
    return AdapterRoom(training.adapter.rank, running, kept=2 * _MOST_ADAPTERS)
