"""Event files: what is written, and what is left after crashes and full disks."""

import json
import logging
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest

from rljob_runtime.trace.analyse.event_files import Tally, parse, read_steps, read_workers
from rljob_runtime.trace.record.event_log import EventLog, WorkerInfo, append_line


class Clock:
    """Time that moves when told to."""

    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def lines(folder: Path, step: int, rank: int) -> list[dict[str, object]]:
    return [
        json.loads(line)
        for line in (folder / f"step_{step}" / f"worker_{rank}.jsonl").read_text().splitlines()
    ]


def test_a_span_becomes_one_line_in_the_file_of_its_step_and_worker(tmp_path: Path) -> None:
    clock = Clock()
    log = EventLog(tmp_path, 7, "fast-3", "fast", clock=clock)
    with log.span("reward", 5, uid=9) as extra:
        clock.now += 1.25
        extra["failed"] = np.int64(2)
    log.flush()
    assert lines(tmp_path, 5, 7) == [
        {
            "event": "reward", "start": 100.0, "duration": 1.25, "step": 5, "worker": "fast-3",
            "pool": "fast", "extra": {"uid": 9, "failed": 2},
        }
    ]  # fmt: skip


def test_the_device_is_synchronised_before_each_reading_of_the_clock(tmp_path: Path) -> None:
    order: list[str] = []

    def clock() -> float:
        order.append("clock")
        return 0.0

    log = EventLog(tmp_path, 0, "t", "trainer", synchronize=lambda: order.append("synchronize"), clock=clock)
    with log.span("forward", 0):
        order.append("body")
    assert order == ["synchronize", "clock", "body", "synchronize", "clock"]


def test_a_span_that_raises_is_recorded(tmp_path: Path) -> None:
    log = EventLog(tmp_path, 0, "t", "trainer")
    with pytest.raises(ZeroDivisionError), log.span("forward", 0):
        raise ZeroDivisionError
    log.flush()
    assert [line["event"] for line in lines(tmp_path, 0, 0)] == ["forward"]


def test_without_a_folder_nothing_is_recorded_and_no_device_waits() -> None:
    def fail() -> None:
        raise AssertionError("must not be called")

    log = EventLog(None, 0, "t", "trainer", synchronize=fail)
    with log.span("forward", 0) as extra:
        extra["tokens"] = 3
    log.flush()


@pytest.mark.parametrize(
    ("events", "seconds_apart", "written"),
    [(3, 0.1, 0), (4, 0.1, 4), (5, 0.1, 4), (2, 4.9, 0), (2, 5.0, 2)],
    ids=["few", "full buffer", "one more", "young", "old"],
)
def test_the_buffer_is_written_when_full_or_old(
    tmp_path: Path, events: int, seconds_apart: float, written: int
) -> None:
    log = EventLog(tmp_path, 0, "t", "trainer", buffer_lines=4, flush_seconds=5.0)
    for index in range(events):
        log.add("forward", 0, index * seconds_apart, 0.0)
    file = tmp_path / "step_0" / "worker_0.jsonl"
    assert (len(file.read_text().splitlines()) if file.exists() else 0) == written


def test_threads_lose_and_mix_no_lines(tmp_path: Path) -> None:
    log = EventLog(tmp_path, 0, "t", "trainer", buffer_lines=7)

    def record(thread: int) -> None:
        for index in range(200):
            log.add("put", index % 3, 0.0, 0.0, uid=thread * 1000 + index)

    threads = [threading.Thread(target=record, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    log.flush()
    found = [event.extra["uid"] for _, events in read_steps(tmp_path, Tally()) for event in events]
    assert sorted(found) == sorted(thread * 1000 + index for thread in range(4) for index in range(200))


def test_every_worker_introduces_itself(tmp_path: Path) -> None:
    EventLog(tmp_path, 2, "fast-1", "fast")
    EventLog(tmp_path, 0, "driver", "driver")
    assert [(who.rank, who.worker, who.pool) for who in read_workers(tmp_path)] == [
        (0, "driver", "driver"), (2, "fast-1", "fast"),
    ]  # fmt: skip
    assert all(isinstance(who, WorkerInfo) and who.host and who.pid > 0 for who in read_workers(tmp_path))


def test_an_introduction_says_how_much_an_engine_s_cache_holds_once_it_is_known(tmp_path: Path) -> None:
    logs = [EventLog(tmp_path, rank, f"fast-{rank}", "fast") for rank in range(3)]
    logs[1].has_cache(None)
    logs[2].has_cache(750_000)
    assert [who.kv_tokens for who in read_workers(tmp_path)] == [None, None, 750_000]
    logs[2].has_cache(500_000)
    assert [who.worker for who in read_workers(tmp_path) if who.kv_tokens == 500_000] == ["fast-2"]
    EventLog(None, 3, "fast-3", "fast").has_cache(1)


def test_introductions_of_runs_before_caches_were_recorded_are_read(tmp_path: Path) -> None:
    who = {"rank": 1, "worker": "fast-0", "pool": "fast", "host": "a", "pid": 7}
    (tmp_path / "worker_1.json").write_bytes(msgspec.json.encode(who))
    assert read_workers(tmp_path) == [WorkerInfo(1, "fast-0", "fast", "a", 7, None)]


def test_a_torn_line_costs_itself_alone(tmp_path: Path) -> None:
    file = tmp_path / "step_0" / "worker_0.jsonl"
    EventLog(tmp_path, 0, "t", "trainer", buffer_lines=1).add("get", 0, 1.0, 1.0)
    with file.open("ab") as torn:
        torn.write(b'{"event":"forward","start":2.0,"dura')
    EventLog(tmp_path, 0, "t", "trainer", buffer_lines=1).add("put", 0, 3.0, 1.0)
    tally = Tally()
    assert [event.event for event in parse(file.read_bytes(), tally)] == ["get", "put"]
    assert tally.unreadable == 1


@pytest.mark.parametrize(
    "line",
    [b"", b"\n", b"[]", b"\xff\xfe", b'{"event": 3}', b"{"],
    ids=["none", "empty", "list", "binary", "type", "cut"],
)
def test_lines_that_are_no_events_do_not_hide_the_others(line: bytes) -> None:
    good = b'{"event":"get","start":1,"duration":2,"step":0,"worker":"t","pool":"trainer","extra":{}}'
    assert [event.end for event in parse(good + b"\n" + line + b"\n" + good, Tally())] == [3.0, 3.0]


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_ends_the_recording_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = EventLog(tmp_path, 0, "fast-0", "fast", buffer_lines=1)
    with caplog.at_level(logging.WARNING), file_size_limit(1000):
        for index in range(100):
            log.add("generate", 0, float(index), 1.0)
    assert len(caplog.records) == 1
    assert "events of fast-0 are not recorded from here on" in caplog.text
    tally = Tally()
    kept = parse((tmp_path / "step_0" / "worker_0.jsonl").read_bytes(), tally)
    assert [event.start for event in kept] == [float(index) for index in range(len(kept))]
    assert 0 < len(kept) < 100 and tally.unreadable <= 1


def test_a_killed_process_cuts_off_the_last_line_at_most(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from rljob_runtime.trace.record.event_log import EventLog\n"
        "log = EventLog(Path(sys.argv[1]), 0, 't', 'trainer', buffer_lines=50)\n"
        "print('ready', flush=True)\n"
        "while True: log.add('forward', 0, 1.0, 2.0, text='x' * 200)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE)
    file = tmp_path / "step_0" / "worker_0.jsonl"
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    # Many buffers, so that it is not always killed after the first.
    while not (file.exists() and file.stat().st_size > 1_000_000):
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait(10)
    process.stdout.close()
    whole, _, rest = file.read_bytes().rpartition(b"\n")
    assert len(msgspec.json.Decoder().decode_lines(whole)) == whole.count(b"\n") + 1 >= 50
    tally = Tally()
    assert len(parse(whole + b"\n" + rest, tally)) == whole.count(b"\n") + 1
    assert tally.unreadable == bool(rest)


def test_an_extra_that_json_cannot_hold_is_refused_by_name(tmp_path: Path) -> None:
    log = EventLog(tmp_path, 0, "t", "trainer")
    with pytest.raises(TypeError, match="extra holds a object"):
        log.add("get", 0, 0.0, 0.0, what=object())


def test_append_line_ends_what_an_earlier_writer_left_open(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"whole\ntorn")
    append_line(file, b"next")
    append_line(file, b"last")
    assert file.read_bytes() == b"whole\ntorn\nnext\nlast\n"
