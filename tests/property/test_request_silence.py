"""Whatever a healthy engine does with its requests, none of them is called stuck, however little memory it
has; and what an engine does nothing for is found."""

import random
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_runtime.driver.request_silence import RequestSilence, RequestsLook, StuckRequest
from tests.support.depth import examples

SECONDS, EVERY = 300, 30
LONGEST = 1500
"""Tokens of the longest response: an engine generates one a second."""
PROMPT = 20
HEALTHY_TICKS, MOST_TICKS = 6000, 20_000


@dataclass
class Response:
    """A request on an engine."""

    name: str
    length: int
    tokens: int = 0
    filled: int = 0
    """Tokens that are in the KV cache."""

    @property
    def kv(self) -> int:
        return PROMPT + self.tokens


@dataclass
class Core:
    """One engine core, as vLLM's scheduler is: what waits begins in its order; for want of memory the one
    that began last is dropped, and waits in front of all others. One tick is a second."""

    room: int
    """Tokens in its KV cache."""
    limit: int
    fill: int
    """Tokens that it prefills in a tick."""
    running: list[Response] = field(default_factory=list)
    waiting: list[Response] = field(default_factory=list)
    hangs: bool = False
    lost: set[str] = field(default_factory=set)
    """What it has and does nothing for."""

    @property
    def names(self) -> set[str]:
        return {each.name for each in [*self.running, *self.waiting]} | self.lost

    def tick(self) -> list[Response]:
        """What has ended."""
        if self.hangs:
            return []
        pre_empted = False
        while self.running and sum(each.kv + 1 for each in self.running) > self.room:
            self.pre_empt()
            pre_empted = True
        while self.waiting and not pre_empted and len(self.running) < self.limit:
            needed = sum(each.kv + 1 for each in [*self.running, self.waiting[0]])
            if needed > self.room:
                break
            self.running.append(self.waiting.pop(0))
        left = self.fill
        for each in self.running:
            if each.filled < each.kv:
                filled = min(left, each.kv - each.filled)
                each.filled, left = each.filled + filled, left - filled
            if each.filled >= each.kv:
                each.tokens += 1
                each.filled += 1
        ended = [each for each in self.running if each.tokens >= each.length]
        self.running = [each for each in self.running if each.tokens < each.length]
        return ended

    def pre_empt(self) -> None:
        last = self.running.pop()
        last.filled = 0
        self.waiting.insert(0, last)

    def take(self, name: str) -> Response | None:
        """Have a request leave."""
        for there in (self.running, self.waiting):
            for each in there:
                if each.name == name:
                    there.remove(each)
                    return each
        return None


@dataclass
class Site:
    """One engine, of several cores perhaps, and the driver beside it; all that is drawn comes from `rng`."""

    rng: random.Random
    cores: list[Core]
    silence: RequestSilence = field(default_factory=lambda: RequestSilence(SECONDS, EVERY))
    requests: dict[str, Core] = field(default_factory=dict)
    """What is submitted, in its order."""
    told: dict[str, int] = field(default_factory=dict)
    tokens: int = 0
    generated: int = 0
    reports: int = 0
    now: int = 0
    works: bool = True
    until: int = 0
    """When a pause ends."""
    mute_until: int = 0
    """When reports come again, as after a lost connection."""
    leaving: dict[str, int] = field(default_factory=dict)
    """What was told to leave, and when it does."""
    number: int = 0
    sparse: bool = False
    """Whether there are times without new requests."""

    def submit(self) -> None:
        core = min(self.cores, key=lambda each: len(each.names))
        self.number += 1
        length = self.rng.choice([self.rng.randint(1, 60), self.rng.randint(1, LONGEST)])
        request = Response(f"{self.number}.0#{self.number}", length)
        core.waiting.append(request)
        self.requests[request.name] = core

    def tell(self, name: str, tokens: int) -> None:
        before = self.told.get(name, 0)
        if name in self.requests and tokens > before:
            self.told[name] = tokens
            self.tokens += tokens - before

    def end(self, request: Response) -> None:
        self.tell(request.name, request.tokens)
        self.requests.pop(request.name, None)
        self.told.pop(request.name, None)
        self.leaving.pop(request.name, None)

    def tick(self) -> list[StuckRequest]:
        rng = self.rng
        self.now += 1
        if self.works and rng.random() < 0.005:
            self.works, self.until = False, self.now + rng.randint(1, 100)
        elif not self.works and self.now >= self.until:
            self.works = True
            # The KV cache was cleared, in the order in which requests began.
            for core in self.cores:
                while core.running:
                    core.pre_empt()
        if self.works:
            self.work()
        if self.now % EVERY:
            return []
        return self.look()

    def work(self) -> None:
        rng = self.rng
        quiet = self.sparse and self.now // 700 % 2
        places = sum(each.limit for each in self.cores)
        while not quiet and len(self.requests) < places and rng.random() < 0.5:
            self.submit()
        for core in self.cores:
            before = sum(each.tokens for each in core.running)
            ended = core.tick()
            after = sum(each.tokens for each in [*core.running, *ended])
            self.generated += max(0, after - before)
            for each in ended:
                self.end(each)
        if rng.random() < 0.02 and self.requests:
            # Routing moves one away.
            self.leaving.setdefault(rng.choice(list(self.requests)), self.now + rng.randint(0, 5))
        for name in [name for name, when in self.leaving.items() if when <= self.now]:
            core = self.requests[name]
            if not core.hangs and (request := core.take(name)) is not None:
                self.end(request)
        if rng.random() < 0.003:
            self.mute_until = self.now + rng.randint(1, 60)
        if self.now % 5 == 0 and self.now >= self.mute_until and self.requests:
            self.reports += 1
            for core in self.cores:
                for each in [*core.running, *core.waiting]:
                    if not core.hangs:
                        self.tell(each.name, each.tokens)

    def look(self) -> list[StuckRequest]:
        answers = not any(each.hangs for each in self.cores)
        look = RequestsLook(
            0, self.works and bool(self.requests), self.tokens, self.reports,
            self.generated if answers else None, self.requests, self.told,
        )  # fmt: skip
        found = self.silence.stuck([look], lambda _, name: name in self.leaving, float(self.now))
        for each in found:
            self.leaving.setdefault(each.request, self.now)
        return found


def site(seed: int) -> Site:
    """With room for one of the longest responses at least, and often not for many more."""
    rng = random.Random(seed)
    least = LONGEST + PROMPT + 1
    cores = [
        Core(rng.randint(least, 4 * least), rng.randint(1, 8), rng.choice([50, 500, 5000]))
        for _ in range(rng.randint(1, 3))
    ]
    return Site(rng, cores, sparse=rng.random() < 0.5)


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32))
def test_of_a_healthy_engine_nothing_is_called_stuck(seed: int) -> None:
    healthy = site(seed)
    for _ in range(HEALTHY_TICKS):
        assert healthy.tick() == []


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 200)), max_size=8))
def test_what_stands_still_for_less_than_twice_as_long_as_others_lately_is_not_called_stuck(
    stays: list[tuple[float, int]],
) -> None:
    """Each time a request stands still for some part of what is allowed by then, and goes on, beside others
    that come and go; then nothing does for so many looks. What is allowed is that of the last while alone:
    in the end one is found after as long as that."""
    silence, tokens, now = RequestSilence(SECONDS, EVERY), 0, 0
    known: list[tuple[int, int]] = []

    def look(name: str, count: int) -> list[StuckRequest]:
        nonlocal tokens, now
        tokens, now = tokens + 10, now + EVERY
        told = {name: count, f"0.0#{now}": 1}
        engine = RequestsLook(0, True, tokens, tokens, None, told, told)
        return silence.stuck([engine], lambda _, name: False, float(now))

    def allowed() -> int:
        """Looks, the first of which sees it first."""
        lately = [seconds for at, seconds in known if now - at < 10 * seconds]
        return max(SECONDS, *(2 * seconds for seconds in lately), 0) // EVERY

    for number, (part, quiet) in enumerate(stays):
        name, began = f"{number}.7#{number}", now
        # What is remembered may be forgotten meanwhile.
        while now - began < part * allowed() * EVERY:
            assert look(name, 0) == []
        stood = max(0, now - began - EVERY)
        look(name, 1)
        known.append((now, stood))
        for _ in range(quiet):
            assert look(f"{number}.8#{now}", 1) == []
    began, lately = now, [allowed()]
    while not (found := look("9.9#9", 0)):
        lately.append(allowed())
        # Where less is allowed than before, it has three looks from there.
        assert now - began <= (max(lately[-4:]) + 1) * EVERY
    assert [each.request for each in found] == ["9.9#9"]


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["dropped", "abort unanswered", "core hangs"]))
def test_what_an_engine_does_nothing_for_is_found(seed: int, fault: str) -> None:
    broken = site(seed)
    while broken.now < 1000 or not all(core.running for core in broken.cores):
        broken.tick()
    core = broken.cores[0]
    name = core.running[0].name
    if fault == "core hangs":
        core.hangs = True
    else:
        core.take(name)
        core.lost.add(name)
    if fault == "abort unanswered":
        broken.leaving[name] = broken.now
    began = broken.now
    if sum(each.limit for each in broken.cores[fault == "core hangs" :]) < 1 + (fault != "core hangs"):
        # Then the engine stands still as a whole, and that is found otherwise.
        assert not any(broken.tick() for _ in range(3000))
        return
    found: list[StuckRequest] = []
    while all(each.verdict != "kept" for each in found) and broken.now < began + MOST_TICKS:
        found += broken.tick()
    assert found and found[-1].verdict == "kept"
    assert {each.request for each in found} <= ({name} if fault != "core hangs" else core.names)
