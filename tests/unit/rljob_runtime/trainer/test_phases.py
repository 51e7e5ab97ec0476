"""Parts of a step are timed without waiting for the device."""

from pathlib import Path

import msgspec

from rljob_runtime.trace.record.event_log import Event, EventLog
from rljob_runtime.trainer.phases import Phases, Timed, seconds_by_event


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Device:
    """A device whose work is done some seconds after it was given, and marks in its queue."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.done = 0.0
        """When it will have done all it was given."""
        self.waits = 0

    def work(self, seconds: float) -> None:
        self.done = max(self.done, self.clock.now) + seconds

    def mark(self) -> "Marked":
        return Marked(self)


class Marked:
    def __init__(self, device: Device) -> None:
        self._device = device
        self.at = 0.0

    def record(self) -> None:
        self.at = max(self._device.clock.now, self._device.done)

    def synchronize(self) -> None:
        self._device.clock.now = max(self._device.clock.now, self.at)
        self._device.waits += 1

    def elapsed_time(self, later: "Marked") -> float:
        return (later.at - self.at) * 1e3


def recorded(folder: Path) -> list[tuple[str, float, float]]:
    lines = (folder / "step_7" / "worker_0.jsonl").read_text().splitlines()
    events = [msgspec.json.decode(line, type=Event) for line in lines]
    return [(event.event, round(event.start, 6), round(event.duration, 6)) for event in events]


def test_a_device_is_not_waited_for_before_the_end(tmp_path: Path) -> None:
    clock = Clock()
    device = Device(clock)
    log = EventLog(tmp_path, 0, "trainer-0", "trainer", clock=clock)
    phases = Phases(log, device.mark)
    with phases.span("forward", 7, tokens=5):
        device.work(2.0)
        clock.now += 0.1
    with phases.span("backward", 7):
        device.work(4.0)
        clock.now += 0.1
    assert clock.now < 101, "the host has gone on"
    assert device.waits == 1, "at the beginning, where the device is idle"
    timed = phases.take()
    assert [(part.event, round(part.seconds, 6), part.extra) for part in timed] == [
        ("forward", 2.0, {"tokens": 5}), ("backward", 4.0, {}),
    ]  # fmt: skip
    assert seconds_by_event(timed) == {"forward": 2.0, "backward": 4.0}
    log.flush()
    assert recorded(tmp_path) == [("forward", 100.0, 2.0), ("backward", 102.0, 4.0)]
    assert phases.take() == []


def test_the_clocks_of_host_and_device_are_compared_in_every_step(tmp_path: Path) -> None:
    clock = Clock()
    device = Device(clock)
    log = EventLog(tmp_path, 0, "trainer-0", "trainer", clock=clock)
    phases = Phases(log, device.mark)
    for begin in (100.0, 200.0):
        clock.now = begin
        with phases.span("forward", 7):
            device.work(1.0)
        phases.take()
    log.flush()
    assert recorded(tmp_path) == [("forward", 100.0, 1.0), ("forward", 200.0, 1.0)]


def test_what_is_waited_for_is_recorded_at_once(tmp_path: Path) -> None:
    clock = Clock()
    device = Device(clock)
    log = EventLog(tmp_path, 0, "trainer-0", "trainer", clock=clock)
    phases = Phases(log, device.mark)
    with phases.span("weight_publish", 7, wait=True, version=3):
        device.work(5.0)
    assert clock.now == 105.0
    log.flush()
    assert recorded(tmp_path) == [("weight_publish", 100.0, 5.0)]
    assert phases.take() == [Timed("weight_publish", 7, 5.0, {"version": 3})], "it is counted once"


def test_without_a_device_the_clock_is_read(tmp_path: Path) -> None:
    clock = Clock()
    log = EventLog(tmp_path, 0, "trainer-0", "trainer", clock=clock)
    phases = Phases(log)
    with phases.span("forward", 7):
        clock.now += 1.5
    with phases.span("forward", 7):
        clock.now += 2.0
    assert seconds_by_event(phases.take()) == {"forward": 3.5}
    log.flush()
    assert recorded(tmp_path) == [("forward", 100.0, 1.5), ("forward", 101.5, 2.0)]


def test_a_part_that_raises_is_timed_too(tmp_path: Path) -> None:
    clock = Clock()
    phases = Phases(EventLog(None, 0, "trainer-0", "trainer", clock=clock))
    try:
        with phases.span("backward", 7):
            clock.now += 1.0
            raise KeyError
    except KeyError:
        pass
    assert seconds_by_event(phases.take()) == {"backward": 1.0}


def test_a_part_says_how_long_something_was_compiled_in_it() -> None:
    compiled = 3.0

    def seconds() -> float:
        return compiled

    phases = Phases(EventLog(None, 0, "trainer-0", "trainer"), None, seconds)
    with phases.span("forward", 0):
        compiled += 1.5
    with phases.span("backward", 0):
        pass
    found = [(each.event, each.compile_seconds) for each in phases.take()]
    assert found == [("forward", 1.5), ("backward", 0.0)]
