"""Where the time of a process's start goes.

Guarantees: what is told was measured, by the clock of this host; a part that cannot be timed is left out.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import msgspec
import psutil

PROCESS = "process"
"""The part in which a process is made, until it runs what it was made for."""
_EARLIER = 2.0
"""Seconds by which a process may seem to have been made before it was asked for: hosts' clocks differ."""


class StartPart(msgspec.Struct, frozen=True):
    """A part of a start."""

    part: str
    """"process", "imports", "core", "load" …: `trace.analyse.worker_starts` knows them."""
    start: float
    """Seconds since the epoch, by the clock of its host."""
    seconds: float

    @property
    def end(self) -> float:
        return self.start + self.seconds


OnStart = Callable[[str, str, Sequence[StartPart]], None]
"""Is told of a worker that has started: its name, its pool, the parts of its start."""


class OwnStart:
    """Takes the parts of a start, as they end."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """`clock`: seconds since the epoch."""
        self.clock = clock
        self._parts: list[StartPart] = []

    @property
    def parts(self) -> tuple[StartPart, ...]:
        """In the order of their begins."""
        return tuple(sorted(self._parts, key=lambda each: each.start))

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time the body; a part that raises is none."""
        began = self.clock()
        yield
        self._parts.append(StartPart(name, began, self.clock() - began))

    def add(self, parts: Iterable[StartPart]) -> None:
        """Take parts that were timed elsewhere on this host."""
        self._parts.extend(parts)

    def process(self, name: str, created: float | None, until: float | None = None) -> None:
        """The part from the making of this process, at `created`, to `until`, by default now. Where it is not
        known when the process was made, `created` is None, and there is no such part."""
        end = self.clock() if until is None else until
        if created is not None and created < end:
            self._parts.append(StartPart(name, created, end - created))


def of_command(made: float | None, checked: float, ready: float) -> list[StartPart]:
    """The parts of a command that checks a manifest while Ray starts, by what it waited for: the check, and
    what Ray took beyond it. `made`: when the command's process was made, None where that is not known;
    `checked`, `ready`: when the check was over, and Ray there. All in seconds since the epoch."""
    parts = [("check", made, checked), ("ray", checked, ready)]
    return [
        StartPart(part, begin, end - begin) for part, begin, end in parts if begin is not None and begin < end
    ]


def created() -> float | None:
    """When this process was made, in seconds since the epoch; None where the system does not tell it well."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return None
    # psutil adds to a time since boot that of the boot itself, which the system tells in whole seconds.
    since_boot: float = psutil.Process().create_time() - psutil.boot_time()
    return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot)


def of_one_start(parts: Iterable[StartPart], asked: float) -> tuple[StartPart, ...]:
    """The parts of a worker that was asked for at `asked`. Where its process was there before, what had ended
    by then is no part, and what had not is one from then on."""
    return tuple(
        each if each.start >= asked - _EARLIER else StartPart(each.part, asked, each.end - asked)
        for each in parts
        if each.start >= asked - _EARLIER or each.end > asked
    )
