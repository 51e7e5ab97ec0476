"""The router under any history: engines that come, pause, and go, groups that are given up, requests that
progress, move, are interrupted at any moment. Its accounts are counted anew after every event."""

from collections.abc import Callable
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rljob_runtime.routing.adaptive import Adaptive
from rljob_runtime.routing.book import Book
from rljob_runtime.routing.fixed import Adjacent, Interleaved
from rljob_runtime.routing.policy import Policy
from rljob_runtime.routing.probe import ProbePolicy, ProbeSettings
from rljob_runtime.routing.requests import EngineShape, GroupRequest, Move, Place, RequestKey
from rljob_runtime.routing.router import Router
from tests.support.depth import examples


class Restless(Policy):
    """Moves the oldest request of each engine to the next one, every third one to begin anew."""

    def moves(self, book: Book, now: float) -> list[Move]:
        engines = [engine for engine in book.members() if engine.joined]
        return [
            Move(key, engines[(place + 1) % len(engines)].number, key.uid % 3 == 0)
            for place, engine in enumerate(engines)
            for key in list(engine.running)[:1]
        ]


POLICIES: dict[str, Callable[[], Policy]] = {
    "least loaded": Policy,
    "adjacent": lambda: Adjacent(4),
    "interleaved": lambda: Interleaved(4),
    "restless": Restless,
    "probe": lambda: ProbePolicy(ProbeSettings(3, heavy_share=0.4, cap_factor=1.0)),
    "adaptive": lambda: Adaptive(100, plan_seconds=0.5),
    "adaptive, plans rarely": lambda: Adaptive(100, plan_seconds=5.0),
    "two probes, moves": lambda: ProbePolicy(ProbeSettings(4, 2, heavy_share=0.3, restart=False)),
}
POOLS = st.sampled_from(["fast", "heavy"])


class Histories(RuleBasedStateMachine):
    """`where` is what the actions have done: the engine of each request that runs."""

    policy = ""

    @initialize(last=POOLS)
    def begin(self, last: str) -> None:
        self.last = last
        self.pools: list[str] = []
        self.router = Router(POLICIES[self.policy]())
        self.limits: dict[int, int] = {}
        self.joined: set[int] = set()
        self.where: dict[RequestKey, int] = {}
        self.leaving: dict[RequestKey, bool] = {}
        self.groups: dict[int, set[int]] = {}
        self.tokens: dict[RequestKey, int] = {}
        self.uids = 0
        self.now = 0.0

    def act(self) -> None:
        self.now += 1
        for action in self.router.decide(self.now):
            if isinstance(action, Place):
                assert action.request not in self.where and action.engine in self.joined
                self.where[action.request] = action.engine
                on_it = sum(engine == action.engine for engine in self.where.values())
                assert on_it <= self.limits[action.engine]
            else:
                assert action.request in self.where and action.request not in self.leaving
                assert action.engine is None or action.engine in self.joined
                self.leaving[action.request] = action.restart

    def some(self, data: Any, items: Any) -> Any:
        return data.draw(st.sampled_from(sorted(items)))

    @rule(limit=st.integers(1, 3), pool=POOLS)
    def engine_comes(self, limit: int, pool: str) -> None:
        number = len(self.limits)
        self.pools.append(pool)
        self.limits[number] = limit
        self.joined.add(number)
        self.router.join(number, EngineShape(pool, limit))
        self.act()

    @rule(data=st.data(), gone=st.booleans())
    def engine_leaves(self, data: Any, gone: bool) -> None:
        if self.joined:
            number = self.some(data, self.joined)
            self.joined.discard(number)
            if gone:
                self.router.remove(number)
            else:
                self.router.leave(number)
                self.act()
                self.joined.add(number)
                self.router.join(number, EngineShape(self.pools[number], self.limits[number]))
            self.act()

    @rule(samples=st.integers(1, 4))
    def dispatch(self, samples: int) -> None:
        self.groups[self.uids] = set(range(samples))
        self.tokens |= {RequestKey(self.uids, sample): 0 for sample in range(samples)}
        self.router.dispatch(GroupRequest(self.uids, self.uids, 5, samples), self.now)
        self.uids += 1
        self.act()

    @rule(data=st.data(), more=st.integers(0, 9))
    def progress(self, data: Any, more: int) -> None:
        if self.where:
            key = self.some(data, self.where)
            self.tokens[key] += more
            self.router.progressed({key: self.tokens[key], RequestKey(10**9, 0): 1}, self.now)
            self.act()

    @rule(data=st.data())
    def finish(self, data: Any) -> None:
        if self.where:
            key = self.some(data, self.where)
            del self.where[key]
            self.leaving.pop(key, None)
            self.groups[key.uid].discard(key.sample)
            self.router.finished(key, self.tokens.pop(key), self.now)
            self.act()

    @rule(data=st.data())
    def interrupt(self, data: Any) -> None:
        """Whether it was told to leave, or its engine failed."""
        if self.where:
            key = self.some(data, self.leaving or self.where)
            del self.where[key]
            restart = self.router.interrupted(key, self.tokens[key], self.now)
            assert restart == self.leaving.pop(key, False)
            if restart:
                self.tokens[key] = 0
            self.act()

    @rule(data=st.data())
    def give_up(self, data: Any) -> None:
        if self.groups:
            uid = self.some(data, self.groups)
            for sample in self.groups.pop(uid):
                for state in (self.where, self.leaving, self.tokens):
                    state.pop(RequestKey(uid, sample), None)  # type: ignore[attr-defined]
            self.router.cancel(uid)
            self.router.cancel(uid)
            self.act()

    @invariant()
    def accounts(self) -> None:
        if hasattr(self, "router"):
            book = self.router.book
            book.check()
            requests = [each for group in book.groups.values() for each in group.requests.values()]
            assert {request.key: request.tokens for request in requests} == self.tokens
            assert self.router.wants_group() <= (book.room > 0)
            # Whoever else could bring a change: admission may let no further group begin before these end.
            assert self.where or not self.tokens or not self.joined, "requests wait, and nothing runs"

    def teardown(self) -> None:
        """With engines that stay, and moves that end, everything comes to its end."""
        if not hasattr(self, "router"):
            return
        self.engine_comes(3, self.last)
        for _ in range(10_000):
            if not self.tokens:
                break
            if self.leaving:
                key = min(self.leaving)
                del self.where[key]
                if self.router.interrupted(key, self.tokens[key], self.now):
                    self.tokens[key] = 0
                del self.leaving[key]
                self.act()
            assert self.where, "something waits, and engines have room"
            key = min(self.where)
            del self.where[key]
            self.leaving.pop(key, None)
            self.router.finished(key, self.tokens.pop(key), self.now)
            self.act()
        assert not self.tokens and not self.router.book.groups
        assert all(not engine.count for engine in self.router.book.engines.values())


def machine(policy: str) -> Any:
    """The histories under one policy, for pytest."""
    case = type(f"Under {policy}", (Histories,), {"policy": policy}).TestCase
    case.settings = settings(max_examples=examples(50), stateful_step_count=40, deadline=None)
    return case


# One for each, so that what fails names its policy, and none is tried by chance alone.
globals().update({f"Test {policy}": machine(policy) for policy in POLICIES})
