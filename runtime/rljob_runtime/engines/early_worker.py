"""A rollout worker that is begun before it is known what it is to run: it imports vLLM meanwhile, and begins
the process of its engine core.

Guarantees: told what it is (`begin`), it is what a worker is that was started with that; what cannot be
imported is told where it is needed.
"""

import importlib
import os
from contextlib import suppress
from typing import Any

from rljob_runtime.devices import Accelerator
from rljob_runtime.engines import early_core, rollout_worker
from rljob_runtime.site.large_imports import large_imports
from rljob_runtime.site.own_start import PROCESS, OwnStart, created

_IMPORTED = (
    "rljob_runtime.engines.vllm", "vllm.engine.arg_utils", "vllm.lora.request", "vllm.v1.engine.async_llm"
)  # fmt: skip
"""What the host of a vLLM engine imports in any case."""


class RolloutWorker(rollout_worker.RolloutWorker):
    """See the module's guarantees; `start_early_worker` makes a Ray actor of it, whose process is called as
    that of any other worker."""

    def __init__(self, accelerator: Accelerator, dtype: str, threads: int) -> None:
        """`dtype`: of the model; `threads` of an engine on CPUs."""
        self._early = OwnStart()
        self._early.process(PROCESS, created())
        # Whatever keeps vLLM from being imported: it is to stand in the worker's log, which is not known yet.
        with self._early.part("imports"), suppress(Exception), large_imports():
            from rljob_runtime.engines.vllm_shape import early_environment

            os.environ.update(early_environment(accelerator, dtype, threads, os.getpid()))
            early_core.begin(accelerator)
            for module in _IMPORTED:
                importlib.import_module(module)

    def begin(self, *what: Any) -> None:
        """Be the worker that `rollout_worker.RolloutWorker` makes of these; once, before anything else is
        asked."""
        super().__init__(*what)
        # To the worker its process ends here; what was imported in it before is told apart.
        self._early.add(each for each in self._start.parts if each.part != PROCESS)
        self._start = self._early


def start_early_worker(accelerator: Accelerator, dtype: str, threads: int, **options: Any) -> Any:
    """A handle of an actor with such a worker; `options` are Ray's for actors (resources, ...)."""
    import ray

    return ray.remote(**options)(RolloutWorker).remote(accelerator, dtype, threads)
