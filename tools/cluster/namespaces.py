"""Linux namespaces as a machine of their own: what runs there, mounts and listens there ends with them.

    namespaces.py new PID_FILE             makes them and holds them; PID_FILE gets the pid of their process 1
    namespaces.py enter PID COMMAND...     runs a command in the namespaces of process PID, until it ends

`new` ends them on SIGTERM, and has ended when nothing runs in them any more. Killed, it takes them along: the
kernel ends every process in a PID namespace with its process 1, and with the last process mounts, network
interfaces and packet filter rules of the namespaces are gone. Run as a script by `node`; it imports only the
standard library. Needs root.
"""

import ctypes
import os
import signal
import sys
from pathlib import Path

CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWNET = 0x00020000, 0x20000000, 0x40000000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
PR_SET_PDEATHSIG = 1
ENDING = (signal.SIGTERM, signal.SIGINT)
OWN_FOLDERS = ("/run", "/var/log")
"""Where the programs of a node keep sockets, locks and links at fixed paths."""
SETTINGS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
"""Settings of the whole machine, below /proc/sys, that a kubelet changes: it gets copies."""

libc = ctypes.CDLL(None, use_errno=True)


def new(pid_file: Path) -> int:
    """Makes the namespaces, holds them until SIGTERM. The exit code."""
    # The caller stays in its PID namespace: its children are in the new one, the first as process 1.
    _call("unshare", libc.unshare(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET))
    # A signal waits until there is a process 1 to pass it to.
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    ready, say_ready = os.pipe()
    first = os.fork()
    if first == 0:
        _end_with_parent()
        _own_mounts()
        os.write(say_ready, b".")
        os.close(say_ready)
        _reap()
    os.close(say_ready)
    # SIGKILL: the first process of a PID namespace ignores every signal that it has no handler for.
    for number in ENDING:
        signal.signal(number, lambda *_: os.kill(first, signal.SIGKILL))
    if not os.read(ready, 1):  # it ended before its mounts were made
        return 1
    new_file = pid_file.with_suffix(".new")
    new_file.write_text(str(first))
    new_file.rename(pid_file)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    os.waitpid(first, 0)
    return 0


def enter(pid: int, command: list[str]) -> int:
    """Runs a command in the namespaces of a process and passes on what tells it to end. Its exit code."""
    namespaces = [os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY) for kind in ("net", "pid", "mnt")]
    for namespace in namespaces:
        _call("setns", libc.setns(namespace, 0))
        os.close(namespace)
    os.chdir("/")
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    child = os.fork()  # only a new process is in the PID namespace
    if child == 0:
        _end_with_parent()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        os.execvp(command[0], command)
    for number in ENDING:
        signal.signal(number, lambda received, _: os.kill(child, received))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _own_mounts() -> None:
    # Private: what is mounted here does not appear on the machine.
    _mount("none", "/", "", MS_REC | MS_PRIVATE)
    # A /proc of the new PID namespace: the machine's names its processes by other numbers.
    _mount("proc", "/proc", "proc", 0)
    for folder in OWN_FOLDERS:
        _mount("tmpfs", folder, "tmpfs", 0)
    for setting in SETTINGS:
        copy = Path("/run") / setting.replace("/", "-")
        copy.write_text(Path("/proc/sys", setting).read_text())
        _mount(str(copy), f"/proc/sys/{setting}", "", MS_BIND)


def _reap() -> None:
    """What process 1 does: wait for those whose parent has ended."""
    # Blocked, a SIGCHLD between the two calls below is kept for `sigwait`.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            signal.sigwait({signal.SIGCHLD})


def _end_with_parent() -> None:
    _call("prctl(PR_SET_PDEATHSIG)", libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL))


def _mount(source: str, target: str, kind: str, flags: int) -> None:
    done = libc.mount(source.encode(), target.encode(), kind.encode(), flags, None)
    _call(f"mount {target}", done)


def _call(what: str, result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


if __name__ == "__main__":
    if sys.argv[1] == "new":
        sys.exit(new(Path(sys.argv[2])))
    sys.exit(enter(int(sys.argv[2]), sys.argv[3:]))
