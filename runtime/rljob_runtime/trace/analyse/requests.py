"""Requests, put together from the events of their attempts, and what is slow among them.

A response that was taken out of an engine goes on as another attempt, perhaps elsewhere and in a later step;
together they are one request. Guarantees: memory is bounded by the requests in flight and `SLOWEST`.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from rljob_runtime.groups.responses import response_of
from rljob_runtime.trace.analyse.request_phases import PHASES, told_phases
from rljob_runtime.trace.analyse.sketch import Sketch
from rljob_runtime.trace.record.event_log import Event

SLOWEST = 40
"""Slow requests that are kept with everything about them."""
GROUP_STAGES = ("reward", "group_assembly", "put", "queue_wait")
"""What a group goes through after its responses."""


class Attempt(msgspec.Struct, frozen=True, gc=False):
    """One stay of a response on one engine. Times in seconds, `start` since the epoch."""

    worker: str
    start: float
    seconds: float
    tokens: int
    finish: str
    pool: str = ""
    left: str = ""
    """Why it ended before the response was complete, as events say it; empty where it did not, and where that
    was not recorded."""
    for_long: bool = False
    """Whether the engine was one for long responses."""
    had: int | None = None
    """Tokens that the response had when it came; None where that was not recorded."""
    phases: Mapping[str, float] | None = None
    """What its time was made of, in seconds, as events tell it; None where they do not."""

    @property
    def end(self) -> float:
        return self.start + self.seconds


class Request(msgspec.Struct):
    """A response from its first submission to its last token."""

    uid: int
    name: str
    """"uid.index": prompt and number of the response in its group."""
    step: int
    """Step during which it ended."""
    attempts: list[Attempt]
    length: int
    """Tokens."""
    stages: dict[str, float] = msgspec.field(default_factory=dict)
    """Seconds of what its group went through afterwards."""

    @property
    def start(self) -> float:
        return self.attempts[0].start

    @property
    def seconds(self) -> float:
        return self.attempts[-1].end - self.attempts[0].start

    @property
    def generating(self) -> float:
        """Seconds on engines."""
        if len(self.attempts) == 1:
            return self.attempts[0].seconds
        return sum(attempt.seconds for attempt in self.attempts)

    @property
    def phases(self) -> dict[str, float]:
        """What its time on engines was made of, in seconds; what events do not tell is missing."""
        found: dict[str, float] = {}
        for attempt in self.attempts:
            if attempt.phases:
                for name in PHASES:
                    found[name] = found.get(name, 0.0) + attempt.phases.get(name, 0.0)
        return found

    @property
    def finish(self) -> str:
        return self.attempts[-1].finish


@dataclass
class StepRequests:
    """The requests that ended during one step."""

    seconds: Sketch = field(default_factory=Sketch)
    lengths: Sketch = field(default_factory=Sketch)
    finishes: Counter[str] = field(default_factory=Counter)
    attempts: Counter[int] = field(default_factory=Counter)
    """Requests by number of attempts."""
    longest: float = -1.0
    """Seconds of the longest request."""
    slowest: str = ""
    """Name and engine of the longest request."""


class RequestBook:
    """Takes all events, in order of steps, and keeps what the report asks of requests."""

    def __init__(self, went_back: Sequence[float] = ()) -> None:
        """`went_back`: when training began again from a checkpoint, in seconds since the epoch; no response
        that was under way goes on beyond that."""
        self._went_back = went_back
        self.seconds = Sketch()
        self.lengths = Sketch()
        self.finishes: Counter[str] = Counter()
        self.seconds_by_finish: defaultdict[str, float] = defaultdict(float)
        """Engine seconds by how the response ended."""
        self.by_worker: defaultdict[str, Sketch] = defaultdict(Sketch)
        """Durations by the worker that finished the request."""
        self.by_attempts: defaultdict[int, Sketch] = defaultdict(Sketch)
        """Durations by number of attempts."""
        self.of_attempt: defaultdict[int, Sketch] = defaultdict(Sketch)
        """Seconds of the first attempt, the second, ..."""
        self.by_step: dict[int, StepRequests] = {}
        self._open: dict[str, list[Attempt]] = {}
        """By name: attempts of requests that were taken out of an engine and are to go on."""
        self._slowest: list[tuple[float, int, Request]] = []
        """A heap of (seconds, number, request): the least slow of those that are kept comes first."""
        self._by_uid: defaultdict[int, list[Request]] = defaultdict(list)
        """The same requests by the uid of their group: its stages are recorded after its responses."""
        self._count = 0
        """Numbers what is kept, so that requests of the same duration need not be compared."""

    def add_step(self, step: int, events: Sequence[Event]) -> list[Request]:
        """Take one step's events, in order of their ends; the requests that ended in it."""
        ended = [
            request
            for event in events
            if event.event == "generate" and (request := self._attempt(step, event)) is not None
        ]
        self._ended(step, ended)
        for event in events:
            if event.event in GROUP_STAGES:
                uid = event.extra.get("uid")
                for request in self._by_uid.get(uid, ()) if isinstance(uid, int) else ():
                    request.stages[event.event] = event.duration
        return ended

    def slowest(self) -> list[Request]:
        """The slowest requests, slowest first."""
        return [request for _, _, request in sorted(self._slowest, reverse=True)]

    def _attempt(self, step: int, event: Event) -> Request | None:
        extra = event.extra
        identity = str(extra.get("request", ""))
        # Without an id it cannot be put together with other attempts: it counts as a request of its own.
        name = response_of(identity) or f"{event.worker}@{event.start:.3f}"
        tokens, finish = int(extra.get("tokens", 0)), str(extra.get("finish", "stop"))
        attempts = self._open.pop(name, None) or []
        # A driver that was killed has recorded no end of what was under way: this is another request.
        if attempts and any(attempts[-1].end < time <= event.end for time in self._went_back):
            attempts = []
        if finish == "cancelled":
            # Its group was given up; where it is generated again, that is another request.
            return None
        left, for_long = str(extra.get("left", "")), bool(extra.get("for_long", False))
        # `length` counts the whole response, `tokens` one attempt.
        length = int(extra.get("length", 0))
        had = length - tokens if "length" in extra else None
        attempts.append(
            Attempt(
                event.worker, event.start, event.duration, tokens, finish, event.pool, left, for_long, had,
                told_phases(extra) or None,
            )
        )  # fmt: skip
        self.of_attempt[len(attempts)].add(event.duration)
        if finish == "abort":
            self._open[name] = attempts
            return None
        length = length or sum(attempt.tokens for attempt in attempts)
        return Request(int(extra.get("uid", -1)), name, step, attempts, length)

    def _ended(self, step: int, requests: Sequence[Request]) -> None:
        """Count the requests that ended in a step."""
        if not requests:
            return
        if step not in self.by_step:
            self.by_step[step] = StepRequests()
        found = self.by_step[step]
        seconds, lengths = [each.seconds for each in requests], [each.length for each in requests]
        for sketch in (self.seconds, found.seconds):
            sketch.extend(seconds)
        for sketch in (self.lengths, found.lengths):
            sketch.extend(lengths)
        for request, took in zip(requests, seconds, strict=True):
            last = request.attempts[-1]
            found.finishes[last.finish] += 1
            found.attempts[len(request.attempts)] += 1
            self.seconds_by_finish[last.finish] += request.generating
            self.by_worker[last.worker].add(took)
            self.by_attempts[len(request.attempts)].add(took)
            # Looked at before the call: nearly all of a run's requests are none of the slowest.
            if len(self._slowest) < SLOWEST or took >= self._slowest[0][0]:
                self._remember(request, took)
            self.finishes[last.finish] += 1
        if (most := max(seconds)) > found.longest:
            slowest = requests[seconds.index(most)]
            found.longest, found.slowest = most, f"{slowest.name} on {slowest.attempts[-1].worker}"

    def _remember(self, request: Request, seconds: float) -> None:
        """Take it among the slowest, in place of the least slow of them."""
        self._count += 1
        if len(self._slowest) == SLOWEST:
            self._forget(heapq.heappop(self._slowest)[2])
        heapq.heappush(self._slowest, (seconds, self._count, request))
        self._by_uid[request.uid].append(request)

    def _forget(self, request: Request) -> None:
        others = self._by_uid[request.uid]
        others.remove(request)
        if not others:
            del self._by_uid[request.uid]
