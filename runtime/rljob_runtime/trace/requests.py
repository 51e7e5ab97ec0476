"""Requests, put together from the events of their attempts, and what is slow among them.

A response that was taken out of an engine goes on as another attempt, perhaps elsewhere and in a later step;
together they are one request. Guarantees: memory is bounded by the requests in flight and `SLOWEST`.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from rljob_runtime.trace.events import Event
from rljob_runtime.trace.sketch import Sketch

SLOWEST = 40
"""Slow requests that are kept with everything about them."""
GROUP_STAGES = ("reward", "group_assembly", "put", "queue_wait")
"""What a group goes through after its responses."""


@dataclass(frozen=True)
class Attempt:
    """One stay on one engine."""

    worker: str
    start: float
    seconds: float
    tokens: int
    finish: str

    @property
    def end(self) -> float:
        return self.start + self.seconds


@dataclass
class Request:
    """A response from its first submission to its last token."""

    uid: int
    name: str
    """"uid.index": prompt and number of the response in its group."""
    step: int
    """Step during which it ended."""
    attempts: list[Attempt]
    length: int
    """Tokens."""
    stages: dict[str, float] = field(default_factory=dict)
    """Seconds of what its group went through afterwards."""

    @property
    def start(self) -> float:
        return self.attempts[0].start

    @property
    def seconds(self) -> float:
        return self.attempts[-1].end - self.start

    @property
    def generating(self) -> float:
        """Seconds on engines."""
        return sum(attempt.seconds for attempt in self.attempts)

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
    slowest: str = ""
    """Name of the longest request, and its engine."""

    def add(self, request: Request) -> None:
        if request.seconds > self.seconds.largest:
            self.slowest = f"{request.name} on {request.attempts[-1].worker}"
        self.seconds.add(request.seconds)
        self.lengths.add(request.length)
        self.finishes[request.finish] += 1
        self.attempts[len(request.attempts)] += 1


class RequestBook:
    """Takes all events, in order of steps, and keeps what the report asks of requests."""

    def __init__(self) -> None:
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
        self._slowest: list[tuple[float, int, Request]] = []
        self._by_uid: defaultdict[int, list[Request]] = defaultdict(list)
        self._count = 0

    def add_step(self, step: int, events: Sequence[Event]) -> list[Request]:
        """Take one step's events; the requests that ended in it."""
        generated = [event for event in events if event.event == "generate"]
        ended = [
            request
            for event in sorted(generated, key=lambda event: event.end)
            if (request := self._attempt(step, event)) is not None
        ]
        for event in events:
            uid = event.extra.get("uid")
            if event.event in GROUP_STAGES and isinstance(uid, int) and uid in self._by_uid:
                for request in self._by_uid[uid]:
                    request.stages[event.event] = event.duration
        return ended

    def slowest(self) -> list[Request]:
        """The slowest requests, slowest first."""
        return [request for _, _, request in sorted(self._slowest, reverse=True)]

    def _attempt(self, step: int, event: Event) -> Request | None:
        extra = event.extra
        identity = str(extra.get("request", ""))
        name = identity.rpartition(".")[0] or identity or f"{event.worker}@{event.start:.3f}"
        tokens, finish = int(extra.get("tokens", 0)), str(extra.get("finish", "stop"))
        attempts = self._open.setdefault(name, [])
        attempts.append(Attempt(event.worker, event.start, event.duration, tokens, finish))
        self.of_attempt[len(attempts)].add(event.duration)
        if finish == "abort":
            return None
        del self._open[name]
        length = int(extra.get("length", sum(attempt.tokens for attempt in attempts)))
        request = Request(int(extra.get("uid", -1)), name, step, attempts, length)
        self._ended(request)
        return request

    def _ended(self, request: Request) -> None:
        self.seconds.add(request.seconds)
        self.lengths.add(request.length)
        self.finishes[request.finish] += 1
        self.seconds_by_finish[request.finish] += request.generating
        self.by_worker[request.attempts[-1].worker].add(request.seconds)
        self.by_attempts[len(request.attempts)].add(request.seconds)
        self.by_step.setdefault(request.step, StepRequests()).add(request)
        self._count += 1
        self._by_uid[request.uid].append(request)
        entry = (request.seconds, self._count, request)
        if len(self._slowest) < SLOWEST:
            heapq.heappush(self._slowest, entry)
        else:
            self._forget(heapq.heappushpop(self._slowest, entry)[2])

    def _forget(self, request: Request) -> None:
        others = self._by_uid[request.uid]
        others.remove(request)
        if not others:
            del self._by_uid[request.uid]
