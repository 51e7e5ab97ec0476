"""The memory of an engine's second set of weights is counted before vLLM makes its KV cache, however early
the engine's process imports what runs in it. The platform is told to be CUDA; nothing is computed."""

import os
import subprocess
import sys

import pytest

from rljob_runtime.engines.vllm_extension import HOST_VARIABLE

pytestmark = pytest.mark.timeout(300)

EARLY = """
from vllm.platforms import current_platform
type(current_platform).is_cuda_alike = lambda self: True
import rljob_runtime.engines.vllm_extension
from vllm.v1.worker.gpu_worker import Worker
print(Worker.determine_available_memory.__code__.co_filename.rpartition("/")[2])
"""


def test_a_process_that_imports_the_extension_before_vllm_has_chosen_its_worker_counts_it() -> None:
    environment = os.environ | {HOST_VARIABLE: str(os.getpid()), "VLLM_LOGGING_LEVEL": "ERROR"}
    said = subprocess.run(
        [sys.executable, "-c", EARLY],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    assert said.stdout.splitlines()[-1] == "staging_worker.py"
