"""The rules of the Trace Event Format that records must keep."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

_KEYS = {
    "M": {"name", "pid", "args"},
    "X": {"name", "cat", "pid", "tid", "ts", "dur"},
    "b": {"name", "cat", "id", "pid", "tid", "ts"},
    "e": {"name", "cat", "id", "pid", "tid", "ts"},
    "C": {"name", "pid", "ts", "args"},
}
"""What a record of each phase must have."""


def check_format(records: Iterable[dict[str, Any]]) -> None:
    """Assert that each record has what its phase needs, that durations are not negative, that asynchronous
    slices begin and end once, that slices of a track lie within or beside each other, and that every track is
    named before it is used."""
    begun: dict[tuple[str, str], int] = {}
    ended: set[tuple[str, str]] = set()
    slices: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    processes: set[int] = set()
    threads: set[tuple[int, int]] = set()
    for record in records:
        phase = record["ph"]
        assert _KEYS[phase] <= set(record), record
        assert all(isinstance(record.get(key, 0), int) for key in ("ts", "dur", "pid", "tid")), record
        if record["name"] == "process_name":
            assert record["pid"] not in processes
            processes.add(record["pid"])
        elif record["name"] == "thread_name":
            threads.add((record["pid"], record["tid"]))
        assert record["pid"] in processes, record
        if phase == "X":
            assert record["dur"] >= 0
            assert (record["pid"], record["tid"]) in threads, record
            slices[record["pid"], record["tid"]].append((record["ts"], -record["dur"]))
        elif phase == "b":
            key = (record["cat"], record["id"])
            assert key not in begun
            begun[key] = record["ts"]
        elif phase == "e":
            key = (record["cat"], record["id"])
            assert key not in ended
            assert record["ts"] >= begun[key]
            ended.add(key)
        elif phase == "C":
            assert all(type(value) in (int, float) for value in record["args"].values())
    assert ended == set(begun)
    for track in slices.values():
        _check_nesting(sorted(track))


def _check_nesting(track: list[tuple[int, int]]) -> None:
    open_until: list[int] = []
    for start, less_duration in track:
        while open_until and open_until[-1] <= start:
            open_until.pop()
        assert not open_until or start - less_duration <= open_until[-1], (start, less_duration)
        open_until.append(start - less_duration)
