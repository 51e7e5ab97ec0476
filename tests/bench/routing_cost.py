"""What routing costs the driver: 1,024 engines, 100,000 responses under way, about 1,000 events a second.

An event is a response that is complete, a group that is dispatched, or an engine's report of how far its
responses are; each is followed by what routing decides. Engines report as often as the fleet asks them to:
250 reports a second, of about 98 responses each. The other events are responses that end, and groups of 8 in
their place. A response that is told to move has left its engine at once. Only the router's own processor time
is counted; its policies are told the simulated time, so that plans come as often as in a job.

    python -m tests.bench.routing_cost [POLICY ...]
"""

import gc
import heapq
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from rljob_runtime.fleet.reporting import report_seconds
from rljob_runtime.routing.adaptive import Adaptive
from rljob_runtime.routing.fixed import Adjacent, Interleaved
from rljob_runtime.routing.policy import Policy
from rljob_runtime.routing.probe import ProbePolicy, ProbeSettings
from rljob_runtime.routing.requests import Action, EngineShape, GroupRequest, Place, RequestKey
from rljob_runtime.routing.router import Router
from rljob_runtime.simulate.workload import LengthModel
from tests.bench.figures import Figure, parser, record, take_names
from tests.bench.routing_sites import GPU

ENGINES = 1024
LIMIT = 98
UNDER_WAY = 100_000
HEAVY = 128
SAMPLES = 8
SECONDS = 60
TOKENS_PER_SECOND = 49.0
"""Of one response: with the lengths below and 100,000 responses about 670 end each second, and 80 groups
begin."""
LENGTHS = LengthModel(7345, 32768, 0.6, 0.4, prompt_tokens=512)
BASELINE = "least in flight"
POLICIES: dict[str, tuple[Callable[[], Policy], int]] = {
    BASELINE: (Policy, 0),
    "adjacent": (lambda: Adjacent(UNDER_WAY // SAMPLES), 0),
    "interleaved": (lambda: Interleaved(UNDER_WAY // SAMPLES), 0),
    "P-DSR": (lambda: ProbePolicy(ProbeSettings(512)), HEAVY),
    "P-DSR that moves": (lambda: ProbePolicy(ProbeSettings(512, restart=False)), HEAVY),
    "adaptive": (lambda: Adaptive(LENGTHS.cap), 0),
    "adaptive, heavy pool": (lambda: Adaptive(LENGTHS.cap), HEAVY),
}
"""Policies, and how many of the engines are the heavy pool."""


class Site:
    """A router, and a model of what its engines do; `spent` is the router's processor time per event."""

    def __init__(self, policy: Policy, heavy: int) -> None:
        self.router = Router(policy)
        self.random = random.Random(0)
        drawn = LENGTHS.draw(4 * UNDER_WAY // SAMPLES, SAMPLES, seed=0)
        self.lengths = drawn.lengths.tolist()
        self.engines: list[dict[RequestKey, None]] = [{} for _ in range(ENGINES)]
        self.engine_of: dict[RequestKey, int] = {}
        self.begun: dict[RequestKey, float] = {}
        """When each running response would have begun, had it run all the time."""
        self.held: dict[RequestKey, int] = {}
        """Tokens of responses that are on no engine."""
        self.ends: list[tuple[float, RequestKey]] = []
        self.under_way = self.groups = 0
        self.now = 0.0
        self.spent: list[float] = []
        self.decided: Counter[str] = Counter()
        for number in range(ENGINES):
            pool = "heavy" if number >= ENGINES - heavy else "fast"
            self.router.join(number, EngineShape(pool, LIMIT, 750_000, GPU))

    def tokens(self, key: RequestKey) -> int:
        if key not in self.begun:
            return self.held.get(key, 0)
        done: int = int((self.now - self.begun[key]) * TOKENS_PER_SECOND)
        return min(done, int(self.lengths[key.uid][key.sample]))

    def event(self, happens: Callable[[], object]) -> None:
        """Something happens, and routing answers until it has nothing more to say."""
        began, pending = time.process_time_ns(), True
        happens()
        spent = time.process_time_ns() - began
        while pending:
            began = time.process_time_ns()
            actions = self.router.decide(self.now)
            spent += time.process_time_ns() - began
            pending = self.carry_out(actions)
        self.spent.append(spent / 1e9)

    def carry_out(self, actions: Iterable[Action]) -> bool:
        moved = False
        for action in actions:
            key = action.request
            if isinstance(action, Place):
                self.decided["placed"] += 1
                self.engines[action.engine][key] = None
                self.engine_of[key] = action.engine
                self.begun[key] = self.now - self.held.pop(key, 0) / TOKENS_PER_SECOND
                end = self.begun[key] + self.lengths[key.uid][key.sample] / TOKENS_PER_SECOND
                heapq.heappush(self.ends, (end, key))
            else:
                self.decided["moved"] += 1
                tokens = self.tokens(key)
                self.take_off(key)
                self.held[key] = 0 if self.router.interrupted(key, tokens, self.now) else tokens
                moved = True
        return moved

    def take_off(self, key: RequestKey) -> None:
        del self.engines[self.engine_of.pop(key)][key]
        del self.begun[key]

    def dispatch(self) -> None:
        """Groups, as far as routing wants them; each is an event."""
        while self.under_way <= UNDER_WAY - SAMPLES:
            began = time.process_time_ns()
            wants = self.router.wants_group()
            asked = (time.process_time_ns() - began) / 1e9
            self.spent[-1] += asked
            if not wants:
                break
            group = GroupRequest(self.groups, self.groups, LENGTHS.prompt_tokens, SAMPLES)
            self.groups += 1
            self.under_way += SAMPLES
            self.event(lambda group=group: self.router.dispatch(group, self.now))  # type: ignore[misc]

    def warm_up(self) -> None:
        """Every response somewhere between its beginning and its end."""
        self.spent = [0.0]
        while self.under_way <= UNDER_WAY - SAMPLES:
            before = self.under_way
            self.dispatch()
            if before == self.under_way:
                break
        self.ends.clear()
        for key in self.begun:
            length = self.lengths[key.uid][key.sample]
            self.begun[key] = -self.random.random() * length / TOKENS_PER_SECOND
            self.ends.append((self.begun[key] + length / TOKENS_PER_SECOND, key))
        heapq.heapify(self.ends)
        self.router.progressed({key: self.tokens(key) for key in self.begun}, 0.0)

    def run(self) -> None:
        """The seconds that are measured."""
        self.spent, every = [0.0], report_seconds(ENGINES) / ENGINES
        self.decided.clear()
        for turn in range(int(SECONDS / every)):
            self.now = turn * every
            while self.ends and self.ends[0][0] <= self.now:
                end, key = heapq.heappop(self.ends)
                # Responses that have moved end when their newest entry says so.
                if (
                    key in self.begun
                    and abs(self.begun[key] + self.lengths[key.uid][key.sample] / TOKENS_PER_SECOND - end)
                    < 1e-6
                ):
                    self.finish(key)
            told = {key: self.tokens(key) for key in self.engines[turn % ENGINES]}
            self.event(lambda told=told: self.router.progressed(told, self.now))  # type: ignore[misc]

    def finish(self, key: RequestKey) -> None:
        length = self.lengths[key.uid][key.sample]
        self.take_off(key)
        self.under_way -= 1
        self.event(lambda: self.router.finished(key, length, self.now))
        self.dispatch()


class Cost(NamedTuple):
    """What is left of a site, so that the next one's garbage is looked for among its own objects alone."""

    events: int
    counts: str
    mean: float
    longest: float
    """Seconds, as `mean`."""


def measure(name: str) -> Cost:
    make, heavy = POLICIES[name]
    site = Site(make(), heavy)
    site.warm_up()
    site.run()
    spent, counts = site.spent, ", ".join(f"{count} {what}" for what, count in site.decided.items())
    return Cost(len(spent), counts, sum(spent) / len(spent), max(spent))


def main() -> None:
    line = parser(__doc__)
    take_names(line, POLICIES, "POLICY")
    options = line.parse_args()
    figures: list[Figure] = []
    base: Cost | None = None
    for name in dict.fromkeys((BASELINE, *(options.names or POLICIES))):
        gc.collect()
        cost = measure(name)
        beside = base and 1e6 * base.mean
        base = base or cost
        label = f"{name} ({cost.events / SECONDS:.0f} events/s, {cost.counts})"
        share = beside and beside / 10
        figures += [
            Figure(f"{label}: a decision, mean", 1e6 * cost.mean, "µs", beside, "< 50 µs"),
            Figure(f"{name}: of a core at 1,000 events/s", 1e5 * cost.mean, "%", share, "< 5 %"),
            Figure(f"{name}: longest decision", 1e3 * cost.longest, "ms"),
        ]
    record("routing_cost", figures, options.out, keep=bool(options.names))


if __name__ == "__main__":
    main()
