"""The processes that this one has started, and theirs, when it ends at once."""

import os
from contextlib import suppress

import psutil


def kill_descendants() -> None:
    """Kill all but those with a session of their own, which see to their end themselves."""
    # Those of Ray's that the kernel does not end with this process take up to a minute to see that it has.
    for each in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getsid(each.pid) == os.getsid(0):
                each.kill()
