"""A real vLLM server with a tiny model, as a user would start it."""

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from tools.cluster.ports import Ports

START_SECONDS = 240.0


@contextmanager
def vllm_server(model: Path, log: Path, name: str, longest: int, *more: str) -> Iterator[str]:
    """The address of a server that has the model of a folder as `name`, for samples of `longest` tokens."""
    ports = Ports()
    port = ports.take()
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server",
        "--host", "127.0.0.1", "--port", str(port), "--model", str(model), "--served-model-name", name,
        "--max-model-len", str(longest), "--dtype", "float32", "--enforce-eager", "--max-num-seqs", "4",
        *(("--gpu-memory-utilization", "0.1") if torch.cuda.is_available() else ()), *more,
    ]  # fmt: skip
    # A user's shell has nothing of the engines that this process has had.
    own = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
    environment = own | {
        "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1", "TORCH_COMPILE_DISABLE": "1",
    }  # fmt: skip
    with log.open("wb") as out:
        # In a group of its own: its engine core ends with it.
        process = subprocess.Popen(
            command, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            _until_healthy(process, f"http://127.0.0.1:{port}", log)
            yield f"http://127.0.0.1:{port}"
        finally:
            try:
                _signal(process, signal.SIGTERM)
                process.wait(30)
            except subprocess.TimeoutExpired:
                _signal(process, signal.SIGKILL)
                process.wait(30)
            ports.give_back()


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError):  # it may have ended by itself
        os.killpg(process.pid, number)


def _until_healthy(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()[-4000:]
        try:
            urllib.request.urlopen(f"{address}/health", timeout=5).close()
            return
        except OSError:
            time.sleep(0.5)
    raise TimeoutError(log.read_text()[-4000:])
