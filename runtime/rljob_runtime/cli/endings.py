"""How a command of `rljob` ends that did not succeed.

Guarantees: one message on standard error, and the exit code that says whether to try again.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rljob_runtime.exit_codes import ExitCode
from rljob_runtime.site.descendants import kill_descendants

INTERRUPTED = "rljob: interrupted."
"""What Ctrl-C is answered with, where there is nothing more to say."""
_ENDING = (signal.SIGINT, signal.SIGTERM)


def refuse(message: str) -> int:
    """What was asked for does not fit; trying again would not help."""
    print(message, file=sys.stderr)
    return ExitCode.REFUSED


def fail(message: str) -> int:
    """Something went wrong that may go well another time."""
    print(message, file=sys.stderr)
    return ExitCode.FAILED


@contextmanager
def ended_by_signals(clean_up: Callable[[], None]) -> Iterator[None]:
    """In the body Ctrl-C and SIGTERM end this process, after `clean_up`, and its descendants but those with a
    session of their own, which must see to that themselves. For the main thread.

    Not by an exception in that thread: it waits for seconds in code that looks at no signals, and an import
    or a fork may lose the exception, or leave a lock behind."""
    signals, told = os.pipe()
    os.set_blocking(told, False)
    thread = threading.Thread(target=_end_when_told, args=(signals, clean_up), name="signals", daemon=True)
    thread.start()
    before = {number: signal.signal(number, lambda *_: None) for number in _ENDING}
    earlier = signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(earlier)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(told)
        # Does not return where a signal has come.
        thread.join()
        os.close(signals)


def _end_when_told(signals: int, clean_up: Callable[[], None]) -> None:
    """End this process when the number of a signal comes from the pipe; return when it is closed."""
    while number := os.read(signals, 1):
        if number[0] in _ENDING:
            try:
                clean_up()
                kill_descendants()
                print(INTERRUPTED, file=sys.stderr, flush=True)
            finally:
                os._exit(ExitCode.STOPPED)
