"""An engine in the rollouter's pool: what is known of it, and what runs on it."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from rljob_runtime.engines.protocol import Engine
from rljob_runtime.rollout.pool_use import PoolUse
from rljob_runtime.routing.cost import StepCost
from rljob_runtime.routing.cost_fit import UNMEASURED
from rljob_runtime.routing.requests import EngineShape, RequestKey
from rljob_runtime.trace.record.event_log import EventLog


@dataclass(eq=False)
class EngineSlot:
    """An engine and what is known of it. `EnginePool` (`pool.py`) alone changes it, once it was added; but
    for `coming`, which is of who updates its weights (`weight_sync.py`)."""

    engine: Engine
    pool: str
    """ "fast" or "heavy"."""
    limit: int
    """Most requests that it runs at a time."""
    events: EventLog
    version: int = 0
    """Version of its weights."""
    coming: int | None = None
    """The version that it puts in while it generates; None while it does not."""
    devices: int = 1
    """Accelerators that it uses."""
    kv_tokens: int | None = None
    """Tokens that its KV cache holds; None where that is not known."""
    cost: StepCost = UNMEASURED
    """What its work costs, as measured."""
    slowness: float = 1.0
    """How many times as long as an ordinary engine of its pool it takes, as measured."""
    number: int = -1
    """What the router calls it; another one where it was set aside, or taken back."""
    joined: bool = False
    """Whether it gets requests now."""
    entered: bool = False
    """Whether it has joined, and was not set aside since, so that requests of training may run on it."""
    entered_at: float | None = None
    """When it joined first, in seconds of the pool's clock; None before that."""
    generated: bool = False
    """Whether any token was generated on it."""
    aside: bool = False
    """Whether it is set aside for an evaluation: it gets no requests of training, and no weights."""
    leaving: bool = False
    """Whether it is to go: it gets no requests any more, whatever else happens to it."""
    alive: bool = True
    """False once it was lost or removed."""
    told_at: float | None = None
    """When it told of tokens last, in seconds of the pool's clock; None before that."""
    silent_seconds: float = 0.0
    """For how long it had not done its work when it was lost for that; infinite where it never had."""
    running: int = 0
    """Requests placed on it that have not ended, submitted or about to be."""
    requests: dict[str, tuple[RequestKey, int]] = field(default_factory=dict)
    """What is submitted, by request id: the response, and its tokens when it was submitted."""
    most_tokens: dict[str, int] = field(default_factory=dict)
    """Most tokens that each of these requests may get here."""
    told: dict[str, int] = field(default_factory=dict)
    """Most tokens that it has told of each of these requests, where it has told of any."""
    tokens: int = 0
    """Tokens that it is known to have generated, by its answers and its reports of progress."""
    reports: int = 0
    """Reports of progress that have come from it."""
    given: int = 0
    """Tokens of all requests that were ever submitted to it, of prompts and of earlier attempts."""
    told_prefilled: int = 0
    """Most tokens that it has told to have prefilled."""
    prefilled: int = 0
    """Those of them that it was given at that time."""
    given_idle: int | None = None
    """`given` when it was given something last while it had nothing to do; None once it has told of
    progress since."""
    promised: int = 0
    """Most tokens that all requests that were ever submitted to it may get here."""
    pauses: int = 0
    """How often it was taken from those that get requests."""
    drained: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while nothing is placed on it, and once it is lost. Who waits for it sees to it that it
    comes: `Aborts.all_of`."""
    idle_since: float | None = None
    """Since when it has had nothing to do, in seconds of the pool's clock; None while it has, and before it
    joins."""
    idle_seconds: float = 0.0
    """Idle time that has ended."""

    @property
    def newest(self) -> int:
        """The newest version that what it generates may be of."""
        return self.version if self.coming is None else max(self.version, self.coming)

    @contextmanager
    def expecting(self, version: int) -> Iterator[None]:
        """It is asked to put a version in between two of its steps: responses of it may be here before the
        answer, which comes another way."""
        self.coming = version
        try:
            yield
        finally:
            self.coming = None

    def serve(self, now: float) -> None:
        """It gets requests from now on."""
        self.joined = True
        if self.entered_at is None:
            self.entered_at = now
        if self.idle_since is None and self.running == 0:
            self.idle_since = now

    def occupy(self, now: float, step: int) -> None:
        """A request is placed on it; `step` labels the idle time that ends."""
        self.running += 1
        self.drained.clear()
        if self.idle_since is not None:
            seconds = now - self.idle_since
            # An event says when by the clock that all processes share, which may be set back.
            self.events.add("idle", step, self.events.clock() - seconds, seconds)
            self.idle_seconds += seconds
            self.idle_since = None

    def vacate(self, now: float) -> None:
        """A request that was placed on it has ended, or left it."""
        self.running -= 1
        if self.running == 0:
            self.idle_since = now
            self.drained.set()

    def tell(self, tokens: Mapping[str, int], now: float) -> None:
        """It has told `now` how many tokens these requests have, by request id; others are passed over."""
        for request_id, count in tokens.items():
            if request_id in self.requests and count > (before := self.told.get(request_id, 0)):
                self.told[request_id] = count
                self.tokens += count - before
                self.told_at = now

    def idle(self, now: float) -> float:
        """All idle time so far, in seconds."""
        return self.idle_seconds + (0.0 if self.idle_since is None else now - self.idle_since)

    def use(self, now: float) -> PoolUse:
        """What it has done, and runs."""
        seconds = 0.0 if self.entered_at is None else now - self.entered_at
        return PoolUse(seconds, self.idle(now), self.running)

    @property
    def shape(self) -> EngineShape:
        """What the router knows of it."""
        return EngineShape(self.pool, self.limit, self.kv_tokens, self.cost, slowness=self.slowness)

    def has(self, key: RequestKey) -> str | None:
        """The id under which a response was submitted to it; None where it was not."""
        # Only where a response moves: a look at some hundred requests is cheaper than another table.
        return next((name for name, (submitted, _) in self.requests.items() if submitted == key), None)
