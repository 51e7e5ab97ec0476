"""A router with the policy P-DSR, driven by hand."""

from collections.abc import Iterable, Sequence
from typing import Any

from rljob_runtime.routing.probe import ProbePolicy, ProbeSettings
from rljob_runtime.routing.requests import EngineShape, GroupRequest, Move, Place, RequestKey
from rljob_runtime.routing.router import Router

FAST, HEAVY = 0, 1
LENGTHS = [100, 900, 200, 300, 400, 500, 600, 800, 700, 150]
"""Lengths of the probes of a cohort of ten: the top 20 % are groups 1 and 7, the cut is 800, the cap 1200."""


class Site:
    """A router with one large fast engine and one heavy one; `where` is what it has placed, `leaving` what it
    has told to leave, and whether to begin anew."""

    def __init__(self, cohort: int = 10, heavy: int = 1000, fast: int = 1000, **settings: Any) -> None:
        self.router = Router(ProbePolicy(ProbeSettings(cohort, **settings)))
        self.where: dict[RequestKey, int] = {}
        self.leaving: dict[RequestKey, bool] = {}
        self.now = 0.0
        if fast:
            self.router.join(FAST, EngineShape("fast", fast))
        if heavy:
            self.router.join(HEAVY, EngineShape("heavy", heavy))

    def act(self) -> None:
        self.now += 1
        for action in self.router.decide(self.now):
            match action:
                case Place(key, engine):
                    self.where[key] = engine
                case Move(key, engine, restart):
                    assert engine is None
                    self.leaving[key] = restart

    def dispatch(self, uids: Iterable[int], samples: int = 4) -> None:
        for uid in uids:
            self.router.dispatch(GroupRequest(uid, uid, 16, samples), self.now)
        self.act()

    def finish(self, uid: int, sample: int, tokens: int) -> None:
        del self.where[RequestKey(uid, sample)]
        self.router.finished(RequestKey(uid, sample), tokens, self.now)
        self.act()

    def probed(self, lengths: Sequence[int] = LENGTHS) -> "Site":
        """A whole cohort with probes of these lengths."""
        self.dispatch(range(len(lengths)))
        for uid, tokens in enumerate(lengths):
            self.finish(uid, 0, tokens)
        return self

    def progress(self, uid: int, sample: int, tokens: int) -> None:
        self.router.progressed({RequestKey(uid, sample): tokens}, self.now)
        self.act()

    def interrupt(self, uid: int, sample: int, tokens: int) -> bool:
        """It leaves its engine; whether it begins anew."""
        key = RequestKey(uid, sample)
        del self.where[key]
        self.leaving.pop(key, None)
        restart = self.router.interrupted(key, tokens, self.now)
        self.act()
        return restart

    def on(self, engine: int) -> set[tuple[int, int]]:
        """Group and number of the responses on an engine."""
        return {tuple(key) for key, placed in self.where.items() if placed == engine}  # type: ignore[misc]

    def groups_on(self, engine: int) -> set[int]:
        return {uid for uid, _ in self.on(engine)}
