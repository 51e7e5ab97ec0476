"""What a process uses: processors, memory, and its accelerators.

Guarantees: a process that ends while it is looked at is left out, and so is a device that does not tell; the
look takes milliseconds and happens in a thread of its own, ever less often as a job goes on.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol

import psutil

from rljob_runtime.devices import Accelerator, Devices
from rljob_runtime.site.npu_smi import NpuSmi

FIRST_SECONDS = 5.0
"""Between two samples at first: a step of a small job takes as long, and the look takes 0.1 % of it."""
EACH = 720
"""Samples after which the time between two doubles, so that each doubling of a run's length adds as many: an
hour has 720, a week 6,000. Of 200 bytes each they are 1.2 MB of a worker's events then."""

Tell = Callable[[float, float, Mapping[str, float]], None]
"""Is told of a sample: when its time began (seconds since the epoch), its seconds, and its values."""

_log = logging.getLogger(__name__)


def seconds_between(taken: int) -> float:
    """Time until the next sample where so many were taken."""
    return FIRST_SECONDS * 2.0 ** (taken // EACH)


class Meter(Protocol):
    """Tells what accelerators do."""

    @property
    def accelerator(self) -> str:
        """Their kind."""
        ...

    def count(self) -> int:
        """How many this process sees."""
        ...

    def use(self, index: int) -> tuple[float, int]:
        """Share of the newest moments, 0 to 1, in which one of them computed, and bytes of its memory that
        are in use, by whomever."""
        ...


def meter_of(accelerator: Accelerator, computes: bool) -> Meter | None:
    """What tells of this process's accelerators; None: nothing does. `computes`: whether it computes on them
    itself, for torch must, to tell of an NPU."""
    if accelerator == "cpu":
        return None
    if accelerator == "ascend" and (found := NpuSmi.found()) is not None:
        return found
    return Devices.of(accelerator) if computes or accelerator == "nvidia" else None


class ProcessUse:
    """What this process has used since it was looked at last."""

    def __init__(
        self,
        devices: Meter | None = None,
        children: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`devices`: those whose use counts as this process's, all that it sees; None: none. `children`:
        whether the processes that it has started count too."""
        self._devices = devices
        self._children = children
        self._clock = clock
        self._own = psutil.Process()
        self._looked = clock()
        self._spent: dict[int, float] = {}
        self._spent = self._processors()[0]

    def take(self) -> dict[str, float]:
        """`cpu`: processors in use, on average since the last call (1.0: one all the time). `memory_mib`: in
        memory now; what processes share counts for each. `device_use`: share of the newest moments in which
        its accelerators computed, their mean; `device_memory_mib`: memory of theirs in use, by whomever."""
        now = self._clock()
        spent, memory = self._processors()
        # A process that has ended took what it had spent with it.
        used = sum(seconds - self._spent.get(process, 0.0) for process, seconds in spent.items())
        found = {"cpu": round(used / max(now - self._looked, 1e-9), 3), "memory_mib": memory // 2**20}
        self._spent, self._looked = spent, now
        return found | self._device_use()

    def _processors(self) -> tuple[dict[int, float], int]:
        """Processor seconds of each process, by its id, and bytes of memory of all of them."""
        spent, memory = {}, 0
        for process in (self._own, *(self._own.children(recursive=True) if self._children else ())):
            try:
                with process.oneshot():
                    times = process.cpu_times()
                    spent[process.pid] = times.user + times.system
                    memory += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        return spent, memory

    def _device_use(self) -> dict[str, float]:
        if self._devices is None:
            return {}
        try:
            each = [self._devices.use(index) for index in range(self._devices.count())]
        except Exception as error:  # noqa: BLE001 - drivers raise what they like; a job goes on without these figures
            _log.warning("the use of %s devices is not sampled: %s", self._devices.accelerator, error)
            self._devices = None
            return {}
        if not each:
            return {}
        return {
            "device_use": round(sum(share for share, _ in each) / len(each), 3),
            "device_memory_mib": sum(memory for _, memory in each) // 2**20,
        }


class UseSampler:
    """Tells of samples for as long as it runs, from a thread of its own."""

    def __init__(
        self, use: ProcessUse, tell: Tell, between: Callable[[int], float] = seconds_between
    ) -> None:
        """`between`: seconds until the next sample, by the number of those that were taken."""
        self._use = use
        self._tell = tell
        self._between = between
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rljob-use-sampler", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Take no further sample. One that is being taken is not waited for: a driver may hang in it."""
        self._stopping.set()

    def _run(self) -> None:
        taken, began = 0, time.time()
        while not self._stopping.wait(self._between(taken)):
            values = self._use.take()
            now = time.time()
            self._tell(began, max(0.0, now - began), values)
            taken, began = taken + 1, now
