"""A server that forks Python processes, and how it is asked for one. It imports nothing that takes time.

Guarantees: a process has the arguments, environment, folder and open files that it was asked for with; it is
killed when who asked for it ends, and the server when the thread that started it does.
"""

import ctypes
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass

ADDRESS = "RLJOB_TESTS_FORKING"
"""Variable: where the server listens that forks Ray's workers."""
_LARGEST = 1 << 17
"""Bytes of a request, which is arguments and environment."""
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Asked:
    """What a forked process is to do: `kind` says how `arguments` are read."""

    kind: str
    arguments: list[str]


def end_with(parent: int) -> None:
    """This process is killed when the thread of `parent` ends that started it."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended before
        os.kill(os.getpid(), signal.SIGKILL)


def listen(address: str) -> socket.socket:
    """The socket of a server."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(address)
    listener.listen(64)
    return listener


def ask(
    address: str, asked: Asked, environment: dict[str, str], folder: str, files: list[int]
) -> tuple[socket.socket, int]:
    """Asks a server for a process with `files` as its input, output and error output. What keeps it alive and
    brings its exit code, and its number."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(address)
    request = [asked.kind, asked.arguments, environment, folder]
    socket.send_fds(connection, [json.dumps(request).encode()], files)
    return connection, int(connection.recv(32))


def exit_code(connection: socket.socket, seconds: float | None) -> int | None:
    """The exit code, as `subprocess` gives it, once the process has ended; None if it has not after so many
    seconds. `seconds` None: however long that takes."""
    if not select.select([connection], [], [], seconds)[0]:
        return None
    return int(connection.recv(32))


def serve(listener: socket.socket) -> Asked:
    """Forks a process for each request. It returns in each of these, and never in the server."""
    woken, wake = socket.socketpair()
    wake.setblocking(False)
    signal.set_wakeup_fd(wake.fileno())
    # Nothing wakes without a handler in Python.
    signal.signal(signal.SIGCHLD, lambda *_: None)
    # A terminal's Ctrl-C comes to the server, too, whose processes decide for themselves.
    on_interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    running: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([listener, woken, *running.values()], [], [])
        if woken in ready:
            woken.recv(1024)
            _tell_ended(running)
        for pid in [pid for pid, connection in running.items() if connection in ready]:
            # Nothing is sent on it: who asked has ended.
            os.kill(pid, signal.SIGKILL)
            running.pop(pid).close()
        if listener not in ready:
            continue
        connection, _ = listener.accept()
        request, files, _, _ = socket.recv_fds(connection, _LARGEST, 3)
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, on_interrupt)
            for each in (listener, woken, wake, connection, *running.values()):
                each.close()
            return _become(files, *json.loads(request))
        for file in files:
            os.close(file)
        connection.send(str(pid).encode())
        running[pid] = connection


def _tell_ended(running: dict[int, socket.socket]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if connection := running.pop(pid, None):
            connection.send(str(os.waitstatus_to_exitcode(status)).encode(), socket.MSG_NOSIGNAL)
            connection.close()


def _become(
    files: list[int], kind: str, arguments: list[str], environment: dict[str, str], folder: str
) -> Asked:
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    before = _python_path()
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = search_path(folder, sys.path, before)
    return Asked(kind, arguments)


def search_path(first: str, before: Sequence[str], left_out: Sequence[str] = ()) -> list[str]:
    """`sys.path` as a new Python has it in this environment: the folder of its script, or its own, and what
    PYTHONPATH names go before all others. `before`: as this Python has it, where the first is its own folder;
    `left_out` of that: what another PYTHONPATH named."""
    named = _python_path()
    return [first, *named, *(each for each in before[1:] if each not in (*named, *left_out))]


def _python_path() -> list[str]:
    return [each for each in os.environ.get("PYTHONPATH", "").split(":") if each]
