"""Where `kubectl-rljob` begins.

Guarantees: Ctrl-C ends it without a traceback also while it imports what it needs, which takes most of the
time of a short command.
"""

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells count."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code. argparse itself exits with 2 for wrong arguments."""
    with _ended_by_interrupt():
        from rljob_operator.kubectl.command import main as run_command

    return run_command(arguments)


@contextmanager
def _ended_by_interrupt() -> Iterator[None]:
    """In the body Ctrl-C ends this process; where somebody else sees to the signal, or has it ignored,
    it stays so. Not by an exception: an import may lose it, or have it printed."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


if __name__ == "__main__":
    sys.exit(main())
