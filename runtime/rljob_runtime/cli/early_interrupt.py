"""Ctrl-C while `rljob` imports what it needs, before there is anything that could be left behind.

Guarantees: this process ends at once with the exit code of a command that was interrupted, and no traceback.
What it imports itself takes milliseconds.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from rljob_runtime.exit_codes import ExitCode

INTERRUPTED = "rljob: interrupted."
"""What Ctrl-C is answered with, where there is nothing more to say."""


@contextmanager
def ended_by_interrupt() -> Iterator[None]:
    """In the body Ctrl-C ends this process. For the main thread; where somebody else sees to the signal, or
    has it ignored, it stays so.

    Not by an exception: an import may lose it, or have it printed."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end(*_: object) -> None:
    try:
        os.write(2, f"{INTERRUPTED}\n".encode())
    finally:
        os._exit(ExitCode.STOPPED)
