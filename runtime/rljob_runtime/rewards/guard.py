"""The process between a reward worker and the process that starts it.

Guarantees: when the worker ends, this process is asked to end (SIGTERM), or the process that started it is
gone, the worker and all that descends from it are ended, those with a session of their own and those whose
parent has ended too; then this process ends as the worker did. That holds on Linux; elsewhere the end of the
socket ends a worker between two samples.
"""

import ctypes
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

import psutil

# Of <linux/prctl.h>.
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_AWAITED = (signal.SIGCHLD, signal.SIGTERM)
_END_SECONDS = 10.0
"""How long what the worker started may take to end once it is killed. What may not be killed, as a program
that has become another user, is left then."""
_LOOK_SECONDS = 0.05
"""After so long processes are looked for again though none has ended: one may have come while they were."""


def main(descriptor: int, parent: int) -> None:
    """Start a worker that serves the socket `descriptor`, and end with it. In the worker this returns when
    the socket is closed; in this process it does not return."""
    # Before there is anything that a signal could tell of. One that was sent earlier has ended this process.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    die_with(parent, signal.SIGTERM)
    _adopt_orphans()
    guard = os.getpid()
    worker = os.fork()
    if worker:
        # The other end sees the worker's end by it.
        os.close(descriptor)
        ended_by = _wait(worker)
        _end_children()
        _end_like(ended_by)
    # A signal that a function sends to its process group is not for this process.
    os.setsid()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    die_with(guard)
    # Not before: this process needs nothing of it.
    from rljob_runtime.rewards.worker import serve

    serve(descriptor)


def die_with(parent: int, by: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel end this process by a signal when its parent ends (on Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, by)
    # The parent may have ended before the kernel was asked.
    if os.getppid() != parent:
        os._exit(0)


def _adopt_orphans() -> None:
    """Have this process be the parent of each descendant whose own parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _wait(worker: int) -> int:
    """Wait until the worker has ended, which is ended when this process is to. Its exit code, negative for a
    signal."""
    while True:
        if signal.sigwait(_AWAITED) == signal.SIGTERM:
            # One that is about to end keeps its exit code.
            os.kill(worker, signal.SIGKILL)
        for process, code in _reaped():
            if process == worker:
                return code


def _reaped() -> Iterator[tuple[int, int]]:
    """The children that have ended, with their exit codes. Raises `ChildProcessError` where none is left."""
    while (found := os.waitpid(-1, os.WNOHANG))[0]:
        yield found[0], os.waitstatus_to_exitcode(found[1])


def _end_children() -> None:
    """End all descendants. Each becomes a child when its own parent has ended, also one that was started
    while that was killed; and a child's number stands for no other process before it is waited for."""
    deadline = time.monotonic() + _END_SECONDS
    with suppress(ChildProcessError):
        while time.monotonic() < deadline:
            for child in psutil.Process().children():
                with suppress(psutil.Error):
                    child.kill()
            for _ in _reaped():
                pass
            signal.sigtimedwait([signal.SIGCHLD], _LOOK_SECONDS)


def _end_like(code: int) -> None:
    """End this process by the signal, or with the exit code, of another."""
    if code < 0:
        # The other one has left a dump of its memory, where one is wanted.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        number = signal.Signals(-code)
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
        os.kill(os.getpid(), number)
    os._exit(code)
