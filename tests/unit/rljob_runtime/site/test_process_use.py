"""What a process uses, sampled."""

import logging
import subprocess
import sys
import threading
from typing import Any

import pytest

from rljob_runtime.site.process_use import EACH, ProcessUse, UseSampler, seconds_between


@pytest.mark.parametrize(("taken", "seconds"), [(0, 5), (EACH - 1, 5), (EACH, 10), (3 * EACH + 1, 40)])
def test_samples_become_rarer(taken, seconds):
    assert seconds_between(taken) == seconds


def test_a_busy_process_uses_a_processor_and_memory():
    now = [100.0]
    use = ProcessUse(clock=lambda: now[0])
    before = use._own.cpu_times().user
    while use._own.cpu_times().user < before + 0.05:
        sum(range(1000))
    now[0] += 0.05
    found = use.take()
    assert found["cpu"] >= 0.9
    assert found["memory_mib"] > 10
    assert set(found) == {"cpu", "memory_mib"}
    now[0] += 1000.0
    assert use.take()["cpu"] < 0.1


def test_children_count_where_they_are_wanted():
    command = [sys.executable, "-c", "print(flush=True); input()"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        # Before its first line it may have no memory of its own yet.
        child.stdout.readline()
        alone, together = (ProcessUse(children=wanted).take()["memory_mib"] for wanted in (False, True))
    finally:
        child.communicate(b"\n")
    assert together > alone


class Told:
    accelerator = "nvidia"

    def __init__(self, each: list[tuple[float, int]] | Exception) -> None:
        self.each, self.asked = each, 0

    def count(self) -> int:
        self.asked += 1
        if isinstance(self.each, Exception):
            raise self.each
        return len(self.each)

    def use(self, index: int) -> tuple[float, int]:
        return self.each[index]  # type: ignore[index]


@pytest.mark.parametrize(
    ("each", "expected"),
    [([(0.5, 2**30), (1.0, 2**31)], {"device_use": 0.75, "device_memory_mib": 3072}), ([], {})],
)
def test_devices(each: Any, expected: Any):
    found = ProcessUse(Told(each)).take()  # type: ignore[arg-type]
    assert {name: value for name, value in found.items() if name.startswith("device")} == expected


def test_a_driver_that_does_not_tell_is_asked_once(caplog: pytest.LogCaptureFixture):
    devices = Told(RuntimeError("no NVML here"))
    use = ProcessUse(devices)  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING):
        assert set(use.take()) == set(use.take()) == {"cpu", "memory_mib"}
    assert devices.asked == 1
    assert caplog.messages == ["the use of nvidia devices is not sampled: no NVML here"]


def test_a_sampler_tells_until_it_is_stopped():
    told: list[tuple[float, float]] = []
    twice = threading.Event()

    def tell(began: float, seconds: float, values: Any) -> None:
        told.append((began, seconds))
        if len(told) == 2:
            twice.set()

    sampler = UseSampler(ProcessUse(children=False), tell, between=lambda taken: 0.001)
    sampler.start()
    assert twice.wait(30)
    sampler.stop()
    sampler._thread.join(30)
    assert not sampler._thread.is_alive()
    # One after the other, without a gap.
    ends = [began + seconds for began, seconds in told]
    assert [began for began, _ in told[1:]] == pytest.approx(ends[:-1], abs=1e-3)
