"""Processes of a job that have imported their packages when they start: they are forked from one that has.

By itself a short job spends two thirds of its CPU time on imports: the driver, each trainer rank and each
rollout worker import torch, transformers and Ray. What they do then is the same. Jobs whose processes start
as a user's do are those with vLLM, and all of tests/node.
"""

import itertools
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO

from tests.support.runtime import forking

ROOT = Path(__file__).parents[3]
_NUMBERS = itertools.count()
_FOLDER = tempfile.TemporaryDirectory(prefix="rljob-forking-")


class Prepared:
    """A module that runs as a process of its own: of `subprocess.Popen` what the tests use."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        output: IO[str],
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        """`python -m module arguments`; `output` is where it prints. `environment`, `folder`: in place of
        this process's own."""
        self._asked = forking.Asked("module", [module, *arguments])
        self.returncode: int | None = None
        environment = dict(os.environ if environment is None else environment)
        with open(os.devnull) as nothing:
            files = [nothing.fileno(), output.fileno(), output.fileno()]
            self._connection, self.pid = forking.ask(
                _server(), self._asked, environment, str(folder or Path.cwd()), files
            )

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = forking.exit_code(self._connection, 0.0)
        return self.returncode

    def wait(self, seconds: float) -> int:
        """TimeoutExpired."""
        if self.returncode is None:
            self.returncode = forking.exit_code(self._connection, seconds)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self._asked.arguments, seconds)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@contextmanager
def prepared_workers() -> Iterator[None]:
    """Workers of the Ray that this process starts meanwhile have imported their packages, too."""
    from ray._private import ray_constants

    address = str(Path(_server()).with_name(f"workers-{next(_NUMBERS)}"))
    with open(os.devnull) as nothing:
        files = [nothing.fileno(), nothing.fileno(), 2]
        asked = forking.Asked("workers", [address])
        connection, _ = forking.ask(_server(), asked, dict(os.environ), str(Path.cwd()), files)
    kept = ray_constants.SETUP_WORKER_FILENAME
    os.environ[forking.ADDRESS] = address
    ray_constants.SETUP_WORKER_FILENAME = str(Path(__file__).with_name("prepared_worker.py"))
    try:
        yield
    finally:
        ray_constants.SETUP_WORKER_FILENAME = kept
        del os.environ[forking.ADDRESS]
        connection.close()  # which ends the server


@cache
def _server() -> str:
    """Where the server of this process listens; it is started now, and ends with this process."""
    address = str(Path(_FOLDER.name) / "server")
    command = [sys.executable, "-m", "tests.support.runtime.prepared_python", address, str(os.getpid())]
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert server.stdout
    assert server.stdout.readline() == b"ready\n", f"{' '.join(command)} ended with {server.wait()}"
    return address
