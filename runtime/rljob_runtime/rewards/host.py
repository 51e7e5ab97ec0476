"""Starts reward workers for a driver that is another user: `rljob host-rewards`.

Guarantees: a worker has of the driver the two descriptors that it is given, its socket and its log; it is
killed, with what it started, as soon as the driver closes the connection or this process ends; its exit code
is told.
"""

import array
import json
import os
import select
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from rljob_runtime.rewards.launch import command, environment

_REQUEST_SECONDS = 10.0
"""How long a driver that has connected may take to say what it wants."""
_LARGEST_REQUEST = 1 << 20
_DESCRIPTORS = 2


def serve(path: Path) -> NoReturn:
    """Listen at `path` until the process is ended. Who may open the folder may connect."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        # Moved to its name once it can be connected to, by any user.
        new = path.with_name(f"{path.name}.{os.getpid()}")
        listener.bind(str(new))
        new.chmod(0o666)
        listener.listen()
        new.replace(path)
        print(f"reward workers are started for who connects to {path}", flush=True)
        while True:
            connection, _ = listener.accept()
            # A worker ends with the thread that started it, which therefore stays until the worker has ended.
            threading.Thread(target=_host, args=(connection,), daemon=True).start()


def _host(connection: socket.socket) -> None:
    """One worker, from the request to its exit code."""
    with connection:
        try:
            search_path, descriptors = _receive(connection)
        except (OSError, ValueError) as error:
            print(f"a request was not understood: {error}", file=sys.stderr, flush=True)
            return
        process = _start(search_path, descriptors)
        ended = os.pidfd_open(process.pid)
        try:
            # Not `select`, which takes no descriptor above 1,023: each worker has some here.
            poll = select.poll()
            poll.register(ended, select.POLLIN)
            # The driver sends nothing more: what can be read is the end of the connection.
            poll.register(connection, select.POLLIN)
            poll.poll()
        finally:
            os.close(ended)
            # Its guard, which has ended what it started where it has ended itself.
            process.terminate()
        code = process.wait()
        with suppress(OSError):
            connection.sendall(f"{code}\n".encode())


def _receive(connection: socket.socket) -> tuple[list[str], list[int]]:
    """The search path of modules, as a line of JSON, and the descriptors that came with it. Raises OSError,
    ValueError."""
    connection.settimeout(_REQUEST_SECONDS)
    text, descriptors = b"", array.array("i")
    try:
        while not text.endswith(b"\n"):
            part, received, _, _ = socket.recv_fds(connection, 1 << 16, _DESCRIPTORS)
            descriptors.extend(received)
            text += part
            if not part or len(text) > _LARGEST_REQUEST:
                raise ValueError(f"{len(text)} bytes without an end")
        path = json.loads(text)
        if not isinstance(path, list) or not 1 <= len(descriptors) <= _DESCRIPTORS:
            raise ValueError(f"a {type(path).__name__} and {len(descriptors)} descriptors")
        connection.settimeout(None)
    except BaseException:
        for each in descriptors:
            os.close(each)
        raise
    return [str(each) for each in path], list(descriptors)


def _start(search_path: list[str], descriptors: list[int]) -> subprocess.Popen[bytes]:
    """The worker. This process keeps none of the descriptors: the driver sees the worker's end by them."""
    served, *log = descriptors
    try:
        return subprocess.Popen(
            command(served, os.getpid(), search_path),
            pass_fds=(served,),
            stdin=subprocess.DEVNULL,
            stdout=log[0] if log else None,
            stderr=subprocess.STDOUT if log else None,
            env=environment(os.environ),
            start_new_session=True,
        )
    finally:
        for each in descriptors:
            os.close(each)
