"""One step in detail: what every worker did when, and how its requests were distributed.

Guarantees: the size of a step's detail is bounded, whatever ran in it: at most `WORKERS` time lines of `BINS`
bins and `SEGMENTS` segments, and `REQUESTS` requests.
"""

import heapq
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rljob_runtime.trace.analyse.requests import Request
from rljob_runtime.trace.analyse.sketch import Curve, exact_curve
from rljob_runtime.trace.analyse.what_if import DONE, when_done
from rljob_runtime.trace.analyse.windows import Window
from rljob_runtime.trace.analyse.worker_stays import WorkerStays, last_worker_stays
from rljob_runtime.trace.record.event_log import STATES, Event

WORKERS = 24
"""Workers that have a time line: what fits a screen."""
BINS = 120
"""Parts of a time line for which running requests are counted."""
SEGMENTS = 100
"""Longest segments of a time line that are kept."""
REQUESTS = 24
"""Longest requests that are kept."""
CURVES = 8
"""Workers that have distributions of their own."""


@dataclass
class TimeLine:
    """What one worker did in a step. Times are shares of the step's window, 0 to 1."""

    worker: str
    pool: str
    segments: list[tuple[str, float, float]] = field(default_factory=list)
    """(event, start, end) of what it did one after the other, and of groups' stages on the driver."""
    running: list[float] = field(default_factory=list)
    """Mean number of running requests in each of `BINS` equal parts of the window; empty for none at all."""


@dataclass
class StepDetail:
    """One step."""

    window: Window
    time_lines: list[TimeLine]
    left_out: int
    """Workers beyond `WORKERS`, which have no time line."""
    lengths: Curve
    """Distribution of the lengths of the responses that ended in the step, in tokens."""
    seconds: Curve
    """Distribution of their durations."""
    finished: Curve
    """Share of the step's responses that had ended, over the step's time in seconds."""
    by_worker: dict[str, Curve]
    """Durations by worker."""
    requests: list[Request]
    """Its longest requests, by start."""
    finished_by_worker: dict[str, Curve] = field(default_factory=dict)
    """As `finished`, of the responses that ended on each of the workers of `by_worker`."""
    responses: int = 0
    """That ended in the step."""
    responses_seconds: float = 0.0
    """From the begin of the first of them to the end of the last."""
    done: float | None = None
    """Seconds of these until `DONE` of them had ended; None without any."""
    last_worker: WorkerStays | None = None
    """The requests of the engine on which the last of them ended; None without any."""


class DetailBook:
    """Takes all events, in order of steps, and keeps the details of the chosen steps."""

    def __init__(self, windows: Sequence[Window], chosen: Iterable[int]) -> None:
        wanted = set(chosen)
        self._windows = [window for window in windows if window.step in wanted]
        self._ends = [window.end for window in self._windows]
        self._events: list[list[Event]] = [[] for _ in self._windows]
        self._requests: list[list[Request]] = [[] for _ in self._windows]
        self._index = {window.step: index for index, window in enumerate(self._windows)}

    def add_step(self, step: int, events: Sequence[Event], ended: Sequence[Request]) -> None:
        """Take one step's events, and the requests that ended in it."""
        if step in self._index:
            self._requests[self._index[step]].extend(ended)
        if not events:
            return
        # Most steps are not chosen: their events are passed over together.
        earliest, latest = min(event.start for event in events), max(event.end for event in events)
        first = bisect_left(self._ends, earliest)
        if first == len(self._windows) or self._windows[first].start >= latest:
            return
        for event in events:
            # By time and not by its number of the step: a request may span the windows of several.
            index = bisect_left(self._ends, event.start)
            while index < len(self._windows) and self._windows[index].start < event.end:
                self._events[index].append(event)
                index += 1

    def details(self) -> list[StepDetail]:
        """The chosen steps, in order."""
        return [
            _detail(window, events, requests)
            for window, events, requests in zip(self._windows, self._events, self._requests, strict=True)
        ]


def _detail(window: Window, events: Sequence[Event], requests: Sequence[Request]) -> StepDetail:
    by_worker: dict[tuple[str, str], list[Event]] = {}
    for event in events:
        by_worker.setdefault((event.pool, event.worker), []).append(event)
    # Trainer first, driver last: beyond `WORKERS` engines are left out, never the trainer.
    names = sorted(by_worker, key=lambda name: (name[0] != "trainer", name[0] == "driver", name))
    lines = [_time_line(window, pool, worker, by_worker[pool, worker]) for pool, worker in names[:WORKERS]]
    durations: dict[str, list[float]] = {}
    ended: dict[str, list[float]] = {}
    for request in requests:
        worker = request.attempts[-1].worker
        durations.setdefault(worker, []).append(request.seconds)
        ended.setdefault(worker, []).append(max(0.0, request.attempts[-1].end - window.start))
    first = min((request.start for request in requests), default=0.0)
    ends = [request.attempts[-1].end - first for request in requests]
    longest = heapq.nlargest(REQUESTS, requests, key=lambda request: request.seconds)
    curves = sorted(durations, key=lambda worker: max(durations[worker]), reverse=True)[:CURVES]
    return StepDetail(
        window=window,
        time_lines=lines,
        left_out=len(names) - len(lines),
        lengths=exact_curve([request.length for request in requests]),
        seconds=exact_curve([request.seconds for request in requests]),
        finished=exact_curve([max(0.0, request.attempts[-1].end - window.start) for request in requests]),
        by_worker={worker: exact_curve(durations[worker], points=30) for worker in sorted(curves)},
        finished_by_worker={worker: exact_curve(ended[worker], points=30) for worker in sorted(curves)},
        done=when_done(ends, DONE) if ends else None,
        responses=len(requests),
        responses_seconds=max(ends, default=0.0),
        last_worker=last_worker_stays(requests),
        requests=sorted(longest, key=lambda request: request.start),
    )


def _time_line(window: Window, pool: str, worker: str, events: Sequence[Event]) -> TimeLine:
    generated = [event for event in events if event.event == "generate"]
    others = [event for event in events if event.event != "generate" and event.event not in STATES]
    return TimeLine(worker, pool, merge(window, others), running(window, generated))


def merge(window: Window, events: Sequence[Event]) -> list[tuple[str, float, float]]:
    """Events as segments, in shares of the window. Two of one kind become one where the pause between them
    is too short to be seen. What is too short to be seen is left out, and of more than `SEGMENTS` the
    shortest."""
    span = max(window.seconds, 1e-9)
    finest = 1 / 1000  # of the window: about a pixel, unless somebody zooms in
    merged: list[tuple[str, float, float]] = []
    newest: dict[str, int] = {}
    for event in sorted(events, key=lambda event: event.start):
        start = max(0.0, (event.start - window.start) / span)
        end = min(1.0, (event.end - window.start) / span)
        index = newest.get(event.event)
        if index is not None and start - merged[index][2] <= finest:
            merged[index] = (event.event, merged[index][1], max(end, merged[index][2]))
        else:
            newest[event.event] = len(merged)
            merged.append((event.event, start, end))
    visible = [segment for segment in merged if segment[2] - segment[1] >= finest / 2]
    longest = heapq.nlargest(SEGMENTS, visible, key=lambda segment: segment[2] - segment[1])
    return sorted(longest, key=lambda segment: segment[1])


def running(window: Window, events: Sequence[Event]) -> list[float]:
    """Mean number of events that run at a time, in each of `BINS` parts of the window."""
    if not events:
        return []
    width = max(window.seconds, 1e-9) / BINS
    sums = [0.0] * BINS
    for event in events:
        start = max(0.0, (event.start - window.start) / width)
        end = min(float(BINS), (event.end - window.start) / width)
        for index in range(int(start), min(BINS, int(end) + 1)):
            sums[index] += max(0.0, min(end, index + 1) - max(start, index))
    return sums
