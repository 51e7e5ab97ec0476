"""Records of the Trace Event Format, which Perfetto and Chrome's tracing page show; pure.

Guarantees: every record has the keys that its phase must have; times are whole microseconds since the epoch,
durations are not negative, and a slice ends where its event ends; each asynchronous slice begins and ends
once, under an id of its own.

Source: "Trace Event Format" (the Chromium project). Phases here: M metadata, X complete slices, b and e
nestable asynchronous slices, C counters.
"""

import itertools
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from rljob_runtime.step_numbers import step_number
from rljob_runtime.trace.analyse.windows import Window
from rljob_runtime.trace.record.event_log import Event

Record: TypeAlias = dict[str, Any]

_JOB = "job"
_REWARDS = "rewards"
_POOLS = (_JOB, "driver", _REWARDS, "trainer", "fast", "heavy")
"""Pools in the order in which their tracks stand."""


@dataclass(frozen=True)
class Place:
    """Where events of a kind stand."""

    track: str
    """Name of the track within the worker's group of tracks."""
    shape: Literal["slice", "overlapping", "counter"] = "slice"
    """slice: one after the other. overlapping: several at a time, each a slice of its own. counter: numbers
    that hold for a time."""
    group: str | None = None
    """The group of tracks; None: the worker's."""
    counters: Mapping[str, tuple[str, ...]] | None = None
    """Of a counter: its tracks, each with the numbers that it shows; None: one with all of them."""


_USE: Mapping[str, tuple[str, ...]] = {
    "processors": ("cpu",),
    "memory, MiB": ("memory_mib", "device_memory_mib"),
    "accelerators in use": ("device_use",),
    "KV cache in use": ("kv_use",),
    "requests in the engine": ("running", "waiting"),
    "prompt tokens looked for in the prefix cache": ("prefix_asked", "prefix_hits"),
    "pre-emptions": ("preemptions",),
}
"""What a worker used: values of one unit are a track."""

PLACES: Mapping[str, Place] = {
    "start": Place("start", "overlapping"),
    "prompt_fetch": Place("prompts", "overlapping"),
    "admission_wait": Place("admission"),
    "evaluation_wait": Place("evaluation"),
    "generate": Place("requests", "overlapping"),
    "evaluate": Place("requests", "overlapping"),
    "reward": Place("groups", "overlapping", _REWARDS),
    "group_assembly": Place("groups", "overlapping"),
    "put": Place("groups", "overlapping"),
    "queue_wait": Place("queue", "overlapping"),
    "get": Place("data"),
    "share": Place("data"),
    "gather": Place("passes"),
    "reference_forward": Place("passes"),
    "forward": Place("passes"),
    "backward": Place("passes"),
    "optimizer": Place("passes"),
    "reduce": Place("passes"),
    "division": Place("long responses", "counter"),
    "usage": Place("use", "counter", counters=_USE),
    "weight_publish": Place("weights"),
    "weight_write": Place("written weights"),
    "weight_fetch": Place("fetched weights"),
    "weight_stage": Place("fetched weights"),
    "weight_pause": Place("weights"),
    "weight_load": Place("weights"),
    "weight_resume": Place("weights"),
    "weight_swap": Place("weights"),
    "checkpoint": Place("checkpoints"),
    "idle": Place("idle"),
}
"""The place of every kind of event."""

_COUNTERS = {
    "reward": {"mean": "reward_mean"},
    "tokens per second": {"all": "tokens_per_second"},
    "queued responses": {"all": "queue_depth"},
    "staleness": {"mean": "staleness_mean", "max": "staleness_max"},
}
"""Counters of a step: for each its series, and the metric of each."""


@dataclass
class Tracks:
    """Gives every group of tracks and every track its number, and names each once."""

    _groups: dict[str, int] = field(default_factory=dict)
    _tracks: dict[tuple[int, str], int] = field(default_factory=dict)
    _ids: Iterator[int] = field(default_factory=itertools.count)

    def of_event(self, event: Event) -> Iterator[Record]:
        """The records of one event; none of a kind that is not known here."""
        place = PLACES.get(event.event)
        if place is None:
            return
        pool = place.group or event.pool
        pid = yield from self._group(place.group or event.worker, pool)
        start = _microseconds(event.start)
        end = max(start, _microseconds(event.start + event.duration))
        name = _name(event)
        told = {"step": event.step, **event.extra}
        if place.shape == "counter":
            told = {key: value for key, value in event.extra.items() if _is_number(value)}
            for track, names in (place.counters or {place.track: tuple(told)}).items():
                if numbers := {name: told[name] for name in names if name in told}:
                    yield {"ph": "C", "name": track, "pid": pid, "ts": start, "args": numbers}
            return
        if place.shape == "overlapping":
            shared = {"cat": place.track, "id": hex(next(self._ids)), "name": name, "pid": pid, "tid": 0}
            yield {"ph": "b", **shared, "ts": start, "args": told}
            yield {"ph": "e", **shared, "ts": end}
            return
        tid = yield from self._track(pid, place.track)
        yield {
            "ph": "X", "cat": place.track, "name": name, "pid": pid, "tid": tid, "ts": start,
            "dur": end - start, "args": told,
        }  # fmt: skip

    def of_window(self, window: Window) -> Iterator[Record]:
        """The record of a step."""
        pid = yield from self._group(_JOB, _JOB)
        tid = yield from self._track(pid, "steps")
        start = _microseconds(window.start)
        duration = max(0, _microseconds(window.end) - start)
        yield {
            "ph": "X", "cat": "steps", "name": f"step {step_number(window.step)}", "pid": pid, "tid": tid,
            "ts": start, "dur": duration, "args": {"step": window.step},
        }  # fmt: skip

    def of_metrics(self, row: Mapping[str, Any]) -> Iterator[Record]:
        """The counters of a step's metrics, at the time at which they were recorded."""
        time = row.get("time")
        if not isinstance(time, int | float):
            return
        pid = yield from self._group(_JOB, _JOB)
        busy = row.get("busy")
        wanted = {
            name: {key: row.get(metric) for key, metric in series.items()}
            for name, series in _COUNTERS.items()
        }
        wanted["busy"] = dict(busy) if isinstance(busy, dict) else {}
        for name, series in wanted.items():
            numbers = {key: value for key, value in series.items() if _is_number(value)}
            if numbers:
                yield {"ph": "C", "name": name, "pid": pid, "ts": _microseconds(time), "args": numbers}

    def _group(self, name: str, pool: str) -> Generator[Record, None, int]:
        pid = self._groups.get(name)
        if pid is None:
            pid = self._groups[name] = len(self._groups) + 1
            order = _POOLS.index(pool) if pool in _POOLS else len(_POOLS)
            yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
            yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": order}}
        return pid

    def _track(self, pid: int, name: str) -> Generator[Record, None, int]:
        tid = self._tracks.get((pid, name))
        if tid is None:
            # 0 is of asynchronous slices.
            tid = self._tracks[pid, name] = 1 + sum(each == pid for each, _ in self._tracks)
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}
        return tid


def _name(event: Event) -> str:
    """What a slice is called: its request, group or part where it has one."""
    if event.event == "start" and "part" in event.extra:
        return f"start: {event.extra['part']}"
    if event.event in ("generate", "evaluate") and "request" in event.extra:
        return f"request {event.extra['request']}"
    return f"{event.event} {event.extra['uid']}" if "uid" in event.extra else event.event


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _microseconds(seconds: float) -> int:
    return round(seconds * 1e6)
