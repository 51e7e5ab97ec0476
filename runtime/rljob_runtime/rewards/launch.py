"""How the process of a reward worker is started and ended: as a child of this process, or by a host.

Guarantees: a process that is ended takes with it what it started (`guard.py`); whoever ends first, this
process or the host, neither the worker nor what it started outlives it.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Protocol

_BOOTSTRAP = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[3]); "
    "from rljob_runtime.rewards.guard import main; main(int(sys.argv[1]), int(sys.argv[2]))"
)
HOST_GONE = -signal.SIGKILL
"""Exit code of a worker whose host is gone: the kernel kills it then."""
_CONNECT_SECONDS = 60.0
"""How long a host may take to come up; it is a container that starts beside this process's."""
_CONNECT_PAUSE_SECONDS = 0.1


class HostAway(ConnectionError):
    """No host of reward workers answers."""


class Launched(Protocol):
    """A worker's process."""

    async def wait(self) -> int:
        """Wait until it has ended; its exit code, negative for a signal. May be called again."""
        ...

    def kill(self) -> None:
        """End it and what it started, if it has not ended."""
        ...


async def launch(descriptor: int, log: Path | None, host: Path | None) -> Launched:
    """Start a worker that serves the socket `descriptor`. What it prints is appended to `log` (None: it goes
    where the one that starts it writes). `host`: the socket of the host that starts it; None: this process
    does. Raises `HostAway`."""
    output = log.open("ab") if log is not None else None
    try:
        if host is not None:
            return await _by_host(descriptor, output, host)
        return await _as_child(descriptor, output)
    finally:
        if output is not None:
            output.close()


def command(descriptor: int, parent: int, search_path: Sequence[str]) -> list[str]:
    """Command line of the guard of a worker that serves a socket it inherits; both end with the parent."""
    # -P: without the current folder in front, whose modules could be taken for Python's own.
    return [
        sys.executable,
        "-P",
        "-c",
        _BOOTSTRAP,
        str(descriptor),
        str(parent),
        json.dumps(list(search_path)),
    ]


def environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Environment of a worker: the pool's workers are the parallelism. torch does not load torch_npu there by
    itself, as in the head's pod: that takes each worker long, and may fail without the driver."""
    return {"OMP_NUM_THREADS": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", **inherited}


async def _as_child(descriptor: int, output: IO[bytes] | None) -> Launched:
    """A process of its own session, so that Ctrl-C in the terminal reaches the driver alone."""
    return _Child(
        await asyncio.create_subprocess_exec(
            *command(descriptor, os.getpid(), sys.path),
            pass_fds=(descriptor,),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT if output is not None else None,
            env=environment(os.environ),
            start_new_session=True,
        )
    )


class _Child:
    """A child of this process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def wait(self) -> int:
        return await self._process.wait()

    def kill(self) -> None:
        # The guard, which ends the worker and what it started.
        with suppress(ProcessLookupError):
            self._process.terminate()


async def _by_host(descriptor: int, output: IO[bytes] | None, host: Path) -> Launched:
    connection = await _connect(host)
    descriptors = [descriptor] if output is None else [descriptor, output.fileno()]
    # Sent whole: the buffer of a new socket is larger than a search path.
    socket.send_fds(connection, [json.dumps(sys.path).encode() + b"\n"], descriptors)
    return _Hosted(connection)


async def _connect(host: Path) -> socket.socket:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _CONNECT_SECONDS
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            await loop.sock_connect(connection, str(host))
        except OSError as error:
            connection.close()
            # A host's socket is there when it listens: one that refuses is that of a host that has ended.
            if not isinstance(error, FileNotFoundError) or loop.time() > deadline:
                raise HostAway(
                    f"no host of reward workers answers at {host} ({error.strerror}): in a cluster, look at "
                    "the log of the head pod's container `rewards`"
                ) from error
            # Nothing in this process is told of a socket that another container makes.
            await asyncio.sleep(_CONNECT_PAUSE_SECONDS)
        except BaseException:
            connection.close()
            raise
        else:
            return connection


class _Hosted:
    """A process of the host at the other end of a connection, which the host closes with its exit code."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._code = asyncio.ensure_future(self._read())

    async def wait(self) -> int:
        # Shielded: who waits may be cancelled, and others wait too.
        return await asyncio.shield(self._code)

    def kill(self) -> None:
        if not self._code.done():
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_WR)

    async def _read(self) -> int:
        loop, told = asyncio.get_running_loop(), b""
        with self._connection:
            try:
                while not told.endswith(b"\n") and (more := await loop.sock_recv(self._connection, 64)):
                    told += more
            except ConnectionError:
                return HOST_GONE
        return int(told) if told.endswith(b"\n") else HOST_GONE
