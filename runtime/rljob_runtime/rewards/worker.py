"""A process that scores samples, one after the other.

Guarantees: answers each task with one result, in order; a function that raises, or returns what is no finite
number of a usable size, gives a failure; the process ends when the pool's process ends.
"""

import ctypes
import math
import os
import signal
import socket
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from rljob_runtime.data.errors import one_line
from rljob_runtime.rewards import RewardInput
from rljob_runtime.rewards.frames import FrameBuffer, Ready, Result, Setup, Task, frame, to_worker
from rljob_runtime.rewards.load import RewardLoadError, load_reward

_TRACEBACKS = 3
"""Tracebacks printed of each type of exception; the pool counts them all."""
LARGEST = 1e6
"""Largest size of a reward: beyond it the loss loses its digits, and far beyond it is infinite."""
_PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>


def main(descriptor: int, parent: int) -> None:
    """Serve the pool at the other end of the socket `descriptor` until it closes."""
    die_with(parent)
    channel = socket.socket(fileno=descriptor)
    buffer = FrameBuffer()
    printed: Counter[str] = Counter()
    function: Callable[[RewardInput], Any] | None = None
    while data := channel.recv(1 << 18):
        for body in buffer.feed(data):
            message = to_worker.decode(body)
            if isinstance(message, Setup):
                function = _set_up(channel, message)
            elif isinstance(message, Task) and function is not None:
                channel.sendall(frame(_score(function, message, printed)))


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends (on Linux; elsewhere the closed socket ends it
    between two samples)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have ended before the kernel was asked.
    if os.getppid() != parent:
        os._exit(0)


def to_number(value: Any) -> float:
    """The reward as a float. Raises ValueError for what is no finite number of at most `LARGEST` in size."""
    # numpy's numbers are `Real`; its bool is not, and a reward that compares commonly returns it.
    if not isinstance(value, Real | np.bool_):
        raise ValueError(f"returned {type(value).__name__} {str(value)[:60]!r}, not a number")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"returned {number}, not a finite number")
    if abs(number) > LARGEST:
        raise ValueError(f"returned {number:g}; a reward lies between {-LARGEST:g} and {LARGEST:g}: scale it")
    return number


def in_words(error: Exception) -> str:
    """An error of a reward function in one line: its type, its message, and the last place in the function's
    own folder that it came through: "KeyError: 'gold' (judge.py:12, in score)"."""
    text = ": ".join(filter(None, (type(error).__name__, one_line(error))))
    frames = traceback.extract_tb(error.__traceback__)
    # The function is called in load.py: the frames behind that one are its own.
    callers = [at for at, frame in enumerate(frames) if frame.filename == load_reward.__code__.co_filename]
    own = frames[callers[-1] + 1 :] if callers else []
    if not own:
        return text
    folder = Path(own[0].filename).parent
    if folder == Path(__file__).parent:
        return text  # A built-in reward: a place in it is nothing that its user could look at.
    # Not the innermost frame: that may be deep in a library to which the function gave something wrong.
    last = [frame for frame in own if Path(frame.filename).parent == folder][-1]
    return f"{text} ({Path(last.filename).name}:{last.lineno}, in {last.name})"


def _set_up(channel: socket.socket, setup: Setup) -> Callable[[RewardInput], Any] | None:
    try:
        function = load_reward(setup.function, setup.arguments, [Path(path) for path in setup.search_path])
    except RewardLoadError as error:
        if error.__cause__ is not None:
            # Into the log of the reward workers: the answer to the pool has one line.
            traceback.print_exception(error.__cause__)
        channel.sendall(frame(Ready(str(error))))
        return None
    channel.sendall(frame(Ready()))
    return function


def _score(function: Callable[[RewardInput], Any], task: Task, printed: Counter[str]) -> Result:
    value, failure = 0.0, None
    start = time.perf_counter()
    try:
        value = to_number(function(task.sample))
    except Exception as error:  # noqa: BLE001 - a user's function may raise anything; it is reported
        kind = type(error).__name__
        failure = f"error: {in_words(error)}"
        printed[kind] += 1
        # Of each type: a function that always fails must not fill the disk.
        if printed[kind] <= _TRACEBACKS:
            traceback.print_exc()
            sys.stderr.flush()
    return Result(task.number, value, failure, time.perf_counter() - start)
