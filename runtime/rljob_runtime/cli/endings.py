"""How a command of `rljob` ends that did not succeed.

Guarantees: one message on standard error, and the exit code that says whether to try again.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

import psutil

from rljob_runtime.cli.early_interrupt import INTERRUPTED
from rljob_runtime.exit_codes import ExitCode
from rljob_runtime.site.descendants import kill_descendants
from rljob_runtime.site.ray_end import wait_for_end
from rljob_runtime.site.stop_signals import stop_signals


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
    """In the body the signals that ask it to stop end this process, after `clean_up`, and its descendants but
    those with a session of their own, which must see to that themselves. For the main thread.

    Not by an exception in that thread: it waits for seconds in code that looks at no signals, and an import
    or a fork may lose the exception, or leave a lock behind."""
    numbers = stop_signals()
    signals, told = os.pipe()
    os.set_blocking(told, False)
    thread = threading.Thread(
        target=_end_when_told, args=(signals, numbers, clean_up), name="signals", daemon=True
    )
    thread.start()
    before = {number: signal.signal(number, lambda *_: None) for number in numbers}
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


def _end_when_told(signals: int, numbers: Sequence[int], clean_up: Callable[[], None]) -> None:
    """End this process when one of the numbers comes from the pipe; return when it is closed."""
    while number := os.read(signals, 1):
        if number[0] in numbers:
            _end(clean_up, INTERRUPTED, ExitCode.STOPPED)


@contextmanager
def ended_with_ray(processes: Sequence[psutil.Process], clean_up: Callable[[], None]) -> Iterator[None]:
    """In the body the end of any of these, which are Ray's own, ends this process too, after `clean_up`, with
    its descendants as above: what is asked of Ray then may not return for half a minute."""
    reader, writer = os.pipe()
    thread = threading.Thread(
        target=_end_with_ray, args=(processes, reader, clean_up), name="ray's end", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        os.close(writer)
        # Does not return where Ray has ended.
        thread.join()
        os.close(reader)


def _end_with_ray(processes: Sequence[psutil.Process], stop: int, clean_up: Callable[[], None]) -> None:
    ended = wait_for_end(processes, stop)
    if ended is not None:
        _end(clean_up, f"rljob: {ended}.", ExitCode.FAILED)


def _end(clean_up: Callable[[], None], message: str, code: int) -> NoReturn:
    try:
        clean_up()
        kill_descendants()
        print(message, file=sys.stderr, flush=True)
    finally:
        os._exit(code)
