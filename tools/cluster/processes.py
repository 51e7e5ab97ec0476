"""Processes that are known to be ready, are watched while one waits for them, and never outlive this one."""

import http.client
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

BOUND = Path(__file__).parent / "bound.py"
POLL_SECONDS = 0.05
READY_SECONDS = 300.0
LOG_LINES = 20

# The kernel ends a bound process with the *thread* that started it: one thread starts all, and it lives as
# long as the interpreter.
_STARTER = ThreadPoolExecutor(1, "process-starter")


class ProcessFailed(Exception):
    """A process ended by itself, or was not ready in time; the text has the end of its log."""


class Process:
    """A program that can be started and stopped again and again.

    `arguments` and `environment` may be changed between two starts. `ready()` says whether the running
    program serves; it may raise OSError or HTTPException, which count as no. The output goes to `log`, one
    start after the other.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        log: Path,
        ready: Callable[[], bool],
        environment: Mapping[str, str] | None = None,
        stop_seconds: float = 10.0,
    ):
        self.name, self.arguments, self.log, self.ready = name, list(arguments), log, ready
        self.environment, self._stop_seconds = dict(environment or {}), stop_seconds
        self._popen: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def wanted(self) -> bool:
        """Started, and not stopped since."""
        return self._popen is not None

    @property
    def pid(self) -> int:
        if self._popen is None:
            raise RuntimeError(f"{self.name} is stopped")
        return self._popen.pid

    def start(self) -> None:
        """Starts the program and waits until it is ready. ProcessFailed, after which it does not run."""
        self.launch()
        self.wait_ready()

    def launch(self) -> None:
        """Starts the program and does not wait."""
        if self._popen is not None:
            raise RuntimeError(f"{self.name} already runs as process {self._popen.pid}")
        # The log goes on where an earlier start ended; `tail` shows this start's lines alone.
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        # -I and -S: `bound` needs none of the user's settings and packages, and so starts faster.
        command = [sys.executable, "-I", "-S", str(BOUND), str(os.getpid()), *self.arguments]
        with self.log.open("ab") as output:
            self._popen = _STARTER.submit(
                subprocess.Popen,
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Nothing else: a variable of the user's shell could change what the program does.
                env={"PATH": os.environ.get("PATH", os.defpath), **self.environment},
                start_new_session=True,
            ).result()

    def wait_ready(self) -> None:
        """Waits until `ready()`. ProcessFailed if the program ends first or READY_SECONDS pass."""
        deadline = time.monotonic() + READY_SECONDS
        while not self._serves():
            if self._ended_within(POLL_SECONDS):
                self.check()
            if time.monotonic() > deadline:
                tail = self.tail()
                self.stop()
                raise ProcessFailed(f"{self.name} was not ready after {READY_SECONDS:.0f} s:\n{tail}")

    def check(self) -> None:
        """ProcessFailed if the program was started and has ended by itself."""
        if self._popen is not None and (code := self._popen.poll()) is not None:
            self._popen = None
            raise ProcessFailed(f"{self.name} ended by itself with exit code {code}:\n{self.tail()}")

    def stop(self, kill: bool = False) -> None:
        """Ends the program, if it runs: by SIGTERM; by SIGKILL after `stop_seconds` or with `kill`."""
        if self._popen is None:
            return
        if not kill and self._popen.poll() is None:
            self._popen.send_signal(signal.SIGTERM)
        if kill or not self._ended_within(self._stop_seconds):
            self._popen.kill()
        self._popen.wait()
        self._popen = None

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the program, which then is expected to run on, or to end by `stop`."""
        os.kill(self.pid, number)

    def tail(self) -> str:
        """The last lines that the program wrote since it was started."""
        with self.log.open("rb") as log:
            log.seek(max(self._log_start, self.log.stat().st_size - 32_768))
            lines = log.read().decode(errors="replace").splitlines()
        return "\n".join([f"{self.log}:", *lines[-LOG_LINES:]])

    def _serves(self) -> bool:
        try:
            return self.ready()
        except (OSError, http.client.HTTPException):  # of a server that is just starting, or ending
            return False

    def _ended_within(self, seconds: float) -> bool:
        if self._popen is None or self._popen.poll() is not None:
            return True
        return ended_within(self._popen.pid, seconds) and self._popen.poll() is not None


def ended_within(pid: int, seconds: float) -> bool:
    """Waits until a process ends: whether it did within `seconds`. The kernel wakes the wait."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        waiter = select.poll()
        waiter.register(descriptor, select.POLLIN)
        return bool(waiter.poll(seconds * 1000))
    finally:
        os.close(descriptor)
