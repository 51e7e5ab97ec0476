"""Runs a kubeconfig's credential command.

Guarantees: it ends within its time limit, and with this process; what it started ends with it, but for a
command that has the terminal. That it has where this process has one, so that it can ask somebody to log in.
"""

import atexit
import errno
import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rljob_client.exec_config import ExecConfig

_STANDARD_INPUT = 0
_SECONDS = 60.0
"""For a command that works alone."""
_PERSON_SECONDS = 120.0
"""For one that may ask somebody to log in."""
_LONGEST_WORDS = 1_000
"""Characters of what a command says, in an error."""
_EXTENSION = "client.authentication.k8s.io/exec"
"""Name of the cluster's extension that is meant for the command."""


def run_command(config: ExecConfig, folder: Path, cluster: Mapping[str, Any]) -> bytes:
    """What the command prints. `folder`: that of the kubeconfig; `cluster`: as the kubeconfig has it. Raises
    `OSError` where it cannot be run, and `ValueError` where it fails or takes too long."""
    interactive = config.interactive and os.isatty(_STANDARD_INPUT)
    limit = _PERSON_SECONDS if interactive else _SECONDS
    asked = json.dumps(_asked(config, cluster, interactive), default=str)

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            config.words,
            stdin=None if interactive else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=None if interactive else subprocess.PIPE,
            cwd=folder,
            env={**os.environ, **config.environment, "KUBERNETES_EXEC_INFO": asked},
            # A terminal listens to the groups of its own session alone.
            start_new_session=not interactive,
        )

    with _RUNNING.begun(start, interactive) as process:
        try:
            printed, said = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired as error:
            raise ValueError(_too_long(config.program, limit, error.stderr)) from None
        finally:
            _RUNNING.stop(process)
    if process.returncode:
        raise ValueError(f"it ended with exit code {process.returncode}{_told(said)}")
    return printed


class _Running:
    """Commands that run now, of all threads: one that nobody waits for any more would be left when this
    process ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._interactive: dict[subprocess.Popen[bytes], bool] = {}
        self._closed = False
        atexit.register(self.close)

    def begun(
        self, start: Callable[[], subprocess.Popen[bytes]], interactive: bool
    ) -> subprocess.Popen[bytes]:
        """A new one. Raises `OSError` where there is to be none."""
        # Under the lock, so that it is known here before this process can end.
        with self._lock:
            if self._closed:
                raise OSError(errno.ECANCELED, "this process ends")
            process = start()
            self._interactive[process] = interactive
            return process

    def stop(self, process: subprocess.Popen[bytes]) -> None:
        """End it where it runs, and forget it."""
        with self._lock:
            interactive = self._interactive.pop(process, False)
            # One that has been waited for is no more; its number may be another's.
            if process.returncode is not None:
                return
            with suppress(ProcessLookupError):
                if interactive:
                    process.kill()
                else:
                    os.killpg(process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End all; none begins any more."""
        with self._lock:
            self._closed = True
            left = list(self._interactive)
        for process in left:
            self.stop(process)


_RUNNING = _Running()


def _too_long(program: str, limit: float, said: bytes | None) -> str:
    return (
        f"it was stopped, since it had not ended within {limit:g} s: run {program} by hand to see what it"
        f" waits for; where it asks for a login, log in first{_told(said)}"
    )


def _asked(config: ExecConfig, cluster: Mapping[str, Any], interactive: bool) -> dict[str, Any]:
    """The ExecCredential that tells the command what is wanted."""
    wanted: dict[str, Any] = {"interactive": interactive}
    if config.tells_cluster:
        wanted["cluster"] = dict(cluster)
        for extension in cluster.get("extensions") or ():
            if isinstance(extension, Mapping) and extension.get("name") == _EXTENSION:
                wanted["cluster"]["config"] = extension.get("extension")
    return {"apiVersion": config.api_version, "kind": "ExecCredential", "spec": wanted}


def _told(said: bytes | None) -> str:
    """The command's own words, of many the last ones, which say why; none where they went to a terminal."""
    words = (said or b"").decode(errors="replace").strip()
    if len(words) > _LONGEST_WORDS:
        words = "..." + words[-_LONGEST_WORDS:]
    return f": {words}" if words else ""
