"""How the process of a rank ended, from what Ray says of it and the end of its log; pure.

Guarantees: names a signal or an exit code where one of them does; of the log, nothing but what complains.
"""

import re
from collections.abc import Sequence

_WORK = re.compile(r"\d\d:\d\d:\d\d  (DEBUG|INFO) ")
"""Begins a line of ours (`site/process_log.py`) that complains of nothing."""
_SIGNAL = re.compile(r"\*\*\* (SIG[A-Z0-9]+) received")
"""What Ray's handler writes into the log of a process that crashes."""
_EXIT_CODE = re.compile(r"\ban exit code (-?\d+)")
_RECEIVED = re.compile(r"receives an? (SIG[A-Z0-9]+)")
_COMPLAINS = re.compile(
    r"\w*(error|exception|warning)\b|\b(fatal|fault|abort\w*|terminat\w+|killed|out of memory|failed)\b",
    re.IGNORECASE,
)
_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r"\s|PC: @|\[[^]]* E |Stack \(most recent|Extension modules:|Traceback \(most recent")
"""Begins a line of a stack, or one about it."""


def how_it_ended(said: str, log: Sequence[str]) -> str:
    """By which signal, or with which exit code; "" where nothing tells. `said`: Ray's words; `log`: the last
    lines of its log, some of which may be of the process before it."""
    crashed = next(filter(None, map(_SIGNAL.search, reversed(_end(log)))), None)
    if (signal := crashed or _RECEIVED.search(said)) is not None:
        return signal[1]
    if (code := _EXIT_CODE.search(said)) is not None:
        return f"exit code {code[1]}"
    if "node has died" in said:
        return "its node is gone"
    # Ray's "connection error code 2": it closed nothing.
    if "End of file" in said:
        return "no exit code, as by SIGKILL, which the kernel sends where memory runs out"
    return ""


def complaint(log: Sequence[str]) -> str:
    """The last of the last lines of a log that is a warning, an error, or what a traceback ends with; ""
    where the process went on after it, or there is none."""
    found, in_traceback = "", False
    for line in _end(log):
        if line.startswith(_TRACEBACK):
            in_traceback = True
        elif line.strip() and not _FRAME.match(line):
            if in_traceback or _COMPLAINS.search(line):
                found = line.strip()
            in_traceback = False
    return found


def _end(log: Sequence[str]) -> Sequence[str]:
    """The lines after the last one of work that went on."""
    last = max((place for place, line in enumerate(log) if _WORK.match(line)), default=-1)
    return log[last + 1 :]
