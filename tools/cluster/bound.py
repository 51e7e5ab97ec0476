"""Runs a command that ends with the process that started it, also when that one is killed.

Arguments: the pid of the process to be bound to, then the command. The command keeps this process's pid.
Run as a script by `processes`; it imports only the standard library, so that it costs a few milliseconds.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    parent, command = int(sys.argv[1]), sys.argv[2:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    # It may have ended before the kernel was asked.
    if os.getppid() != parent:
        sys.exit("the process that started this one has ended")
    # The setting outlives an exec, unless the program is set-user-ID.
    os.execv(command[0], command)
