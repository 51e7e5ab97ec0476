"""vLLM's engine cores of a process of tests, forked from one process that has imported vLLM.

By itself each core is a new Python that imports vLLM, which takes most of its start: 8 s of a core. What it
does then is the same. On CPUs alone: a process that has asked for an accelerator must not be forked. Cores
that start as in a job are those of whole runs, and of the tests of an engine's host.
"""

import os
from functools import partial
from multiprocessing import context, forkserver, popen_forkserver
from multiprocessing.process import BaseProcess
from threading import Lock
from typing import Any

from rljob_runtime.engines import early_core
from rljob_runtime.engines.early_core import EarlyCore

_IMPORTED = [
    "vllm.v1.engine.core",
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.models.qwen3",
    "vllm.lora",
]


class _Server(forkserver.ForkServer):
    """Of its own: the one that Python keeps for a process forks ranks of trainers, which know no vLLM."""

    def __init__(self) -> None:
        super().__init__()
        self.set_forkserver_preload(_IMPORTED)
        self._taking = Lock()

    def popen(self, process: BaseProcess) -> popen_forkserver.Popen:
        with self._taking:
            kept = forkserver.connect_to_new_process
            forkserver.connect_to_new_process = self.connect_to_new_process
            try:
                return popen_forkserver.Popen(process)
            finally:
                forkserver.connect_to_new_process = kept


_SERVER = _Server()


class _Core(context.ForkServerProcess):
    """Has the environment that this process has now; the server that forks it has an earlier one."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._environment = dict(os.environ)

    @staticmethod
    def _Popen(process: BaseProcess) -> popen_forkserver.Popen:
        return _SERVER.popen(process)

    def run(self) -> None:
        os.environ.clear()
        os.environ.update(self._environment)
        super().run()


class _Context(context.ForkServerContext):
    Process = _Core


def fork_cores() -> None:
    """From now on engine cores of this process are forked."""
    early_core.EarlyCore = partial(EarlyCore, context=_Context())  # type: ignore[assignment, misc]
