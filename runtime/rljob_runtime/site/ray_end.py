"""The end of Ray's own processes on one machine, seen when it comes.

Guarantees: who waits learns of it at once, and by what they were ended. Ray itself tells no driver: whoever
waits for an actor would wait until a deadline.
"""

import asyncio
import os
import select
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from signal import SIGKILL, Signals

import psutil

_NAMES = ("gcs_server", "raylet")
"""Of the processes without which no actor of a job goes on."""


class RayEnded(RuntimeError):
    """Ray's own processes are gone; the message is for people."""


def ray_processes() -> list[psutil.Process]:
    """Those that this process has started; none where this release of Ray calls them something else."""
    return [each for each in psutil.Process().children() if _name(each) in _NAMES]


def check_ray(processes: Sequence[psutil.Process]) -> None:
    """Raises `RayEnded` where any of them has ended: what is asked of Ray then may not return."""
    for process in processes:
        if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
            raise RayEnded(_told(process))


def wait_for_end(processes: Sequence[psutil.Process], stop: int) -> RayEnded | None:
    """Wait in this thread for the end of any of them: what is to be told of it; None once the descriptor
    `stop` is at its end. Waits for that alone where processes cannot be waited for."""
    with ExitStack() as stack:
        watched: dict[int, psutil.Process] = {}
        for process in processes:
            try:
                watched[descriptor := os.pidfd_open(process.pid)] = process
            except ProcessLookupError:
                return RayEnded(_told(process))
            except (AttributeError, OSError):
                continue
            stack.callback(os.close, descriptor)
        # Not `select`, which takes no descriptor above 1,023: a driver has more where it has many workers.
        poll = select.poll()
        for each in (stop, *watched):
            poll.register(each, select.POLLIN)
        # No deadline: they run for as long as they are needed.
        readable = [each for each, _ in poll.poll()]
        ended = next((watched[each] for each in readable if each != stop), None)
        return None if stop in readable or ended is None else RayEnded(_told(ended))


async def ray_ends(processes: Sequence[psutil.Process]) -> None:
    """Wait for the end of any of them, which is raised as `RayEnded`. Waits for ever where the kernel, or
    the container, does not let processes be waited for."""
    # No deadline: they run for as long as the job does.
    ended: asyncio.Future[psutil.Process] = asyncio.get_running_loop().create_future()
    with ExitStack() as stack:
        for process in processes:
            _watch(process, ended, stack)
        raise RayEnded(_told(await ended))


def _watch(process: psutil.Process, ended: "asyncio.Future[psutil.Process]", stack: ExitStack) -> None:
    """Have `ended` get the process when it ends, until the stack is left."""

    def tell() -> None:
        if not ended.done():
            ended.set_result(process)

    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        tell()
    except (AttributeError, OSError):
        return
    else:
        stack.callback(os.close, descriptor)
        loop = asyncio.get_running_loop()
        loop.add_reader(descriptor, tell)
        stack.callback(loop.remove_reader, descriptor)


def _told(process: psutil.Process) -> str:
    name = next((name for name in _NAMES if name == _name(process)), "server")
    signal = _signal(process.pid)
    how = f"was ended by {signal.name}" if signal is not None else "has ended"
    why = ", as the kernel does where memory runs out" if signal is SIGKILL else ""
    return f"Ray is gone: its {name} {how}{why}"


def _name(process: psutil.Process) -> str:
    name = ""
    with suppress(psutil.NoSuchProcess):
        name = process.name()
    return name


def _signal(child: int) -> Signals | None:
    """What ended a child of this process; None where that is not known, or nothing did. Whoever started it
    can still wait for it."""
    with suppress(ChildProcessError, ValueError):
        state = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if state is not None and state.si_code in (os.CLD_KILLED, os.CLD_DUMPED):
            return Signals(state.si_status)
    return None
