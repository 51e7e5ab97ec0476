"""Builds the engine that an RLJob asks for, in the process that hosts it."""

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rljob_api import RLJob
from rljob_runtime.engines.protocol import Engine, Sampling

if TYPE_CHECKING:
    from rljob_runtime.engines.vllm_compat import Accelerator


class EngineSpec(msgspec.Struct, frozen=True):
    """What an engine is built from, in MessagePack on its way to the process."""

    job: str
    """The RLJob as JSON."""
    pool: str
    """Attribute of `spec.pools`: "fast_rollout" or "heavy_rollout"."""
    model_folder: str
    sampling: Sampling
    seed: int
    """Differs between the engines of a job, so that no two draw the same responses."""


def make(name: str, spec: bytes) -> Engine:
    """The engine of `spec`, not started."""
    built = msgspec.msgpack.decode(spec, type=EngineSpec)
    job = RLJob.model_validate_json(built.job)
    training = job.spec.training
    pool = getattr(job.spec.pools, built.pool)
    max_length = training.data.max_prompt_tokens + training.rollout.max_response_tokens
    folder = Path(built.model_folder)
    limit = training.rollout.max_running_requests
    options = training.rollout.engine
    if options.torch is not None:
        from rljob_runtime.engines.torch import TorchEngine

        return TorchEngine(
            name, folder, built.sampling, limit, max_length, pool.cpus_per_worker, training.model.dtype
        )
    from rljob_runtime.engines.vllm import VllmEngine

    accelerator: Accelerator = job.spec.accelerator
    return VllmEngine(
        name,
        folder,
        built.sampling,
        limit,
        max_length,
        dtype=training.model.dtype,
        options=options.vllm,
        accelerator=accelerator,
        tensor_parallel=1 if accelerator == "cpu" else pool.accelerators_per_worker,
        threads=pool.cpus_per_worker,
        seed=built.seed,
        timed=training.profiling.events,
    )
