"""A process that scores samples, one after the other.

Guarantees: answers each task with one result, in order; a function that raises, or returns what is no reward
(`outcome.py`), gives a failure. What ends the process is in `guard.py`.
"""

import socket
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from rljob_runtime.own_functions import FunctionLoadError, in_words, outline
from rljob_runtime.rewards import RewardInput
from rljob_runtime.rewards.calls import FunctionCall
from rljob_runtime.rewards.frames import FrameBuffer, Ready, Result, Setup, Task, frame, to_worker
from rljob_runtime.rewards.load import load_reward, refusal_of
from rljob_runtime.rewards.outcome import Outcome, RewardFormError, combined, outcome_of

_TRACEBACKS = 3
"""Tracebacks printed of each type of exception; the pool counts them all."""

_Functions: TypeAlias = list[tuple[FunctionCall, Callable[[RewardInput], Any]]]
"""What is called of each sample, in order."""


def serve(descriptor: int) -> None:
    """Serve the pool at the other end of the socket `descriptor` until it closes."""
    channel = socket.socket(fileno=descriptor)
    buffer = FrameBuffer()
    printed: Counter[str] = Counter()
    functions: _Functions | None = None
    while data := channel.recv(1 << 18):
        for body in buffer.feed(data):
            message = to_worker.decode(body)
            if isinstance(message, Setup):
                functions = _set_up(channel, message)
            elif isinstance(message, Task) and functions is not None:
                channel.sendall(frame(_score(functions, message, printed)))


def _set_up(channel: socket.socket, setup: Setup) -> _Functions | None:
    folders = [Path(path) for path in setup.search_path]
    functions = []
    for index, call in enumerate(setup.calls):
        try:
            functions.append((call, load_reward(call.function, call.arguments, folders)))
        except FunctionLoadError as error:
            if error.__cause__ is not None:
                # Into the log of the reward workers: the answer to the pool has one line.
                traceback.print_exception(error.__cause__)
            channel.sendall(frame(Ready(refusal_of(error, index))))
            return None
    channel.sendall(frame(Ready()))
    return functions


def _score(functions: _Functions, task: Task, printed: Counter[str]) -> Result:
    outcome, failure, outlined, name = Outcome(0.0), None, None, ""
    outcomes = []
    start = time.perf_counter()
    try:
        for call, function in functions:
            name = call.name
            outcomes.append((name, call.weight, outcome_of(function(task.sample))))
        outcome = combined(outcomes) if name else outcomes[0][2]
    except Exception as error:  # noqa: BLE001 - a user's function may raise anything; it is reported
        kind = type(error).__name__
        which = f" [reward {name}]" if name else ""
        failure, outlined = (f"error: {words}{which}" for words in (in_words(error), _outlined(error)))
        printed[kind] += 1
        # Of each type: a function that always fails must not fill the disk.
        if printed[kind] <= _TRACEBACKS:
            traceback.print_exc()
            sys.stderr.flush()
    return Result(
        task.number, outcome.value, failure, time.perf_counter() - start,
        outcome.parts, outcome.metrics, outcome.complaints, outlined,
    )  # fmt: skip


def _outlined(error: Exception) -> str:
    """The error in one line without text that the function was given, or returned."""
    if isinstance(error, RewardFormError):
        return f"{type(error).__name__}: {error.unquoted}"
    return outline(error)
