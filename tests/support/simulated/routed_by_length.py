"""Adaptive routing with prompts whose lengths are known from an earlier epoch."""

from collections.abc import Iterable

from rljob_runtime.routing.adaptive import Adaptive
from rljob_runtime.routing.cost import StepCost
from tests.support.simulated.routed import Routed, group_of

CAP = 10_000
STEEP = StepCost(fixed=0.01, per_request=0.01)
"""A step beside seven others takes more than four times as long as one alone."""


def site(
    fast: int = 0, heavy: int = 0, limit: int = 8, plan_seconds: float = 1.0, speed: float = 1.0
) -> Routed:
    return Routed(Adaptive(CAP, plan_seconds), fast, heavy, limit, STEEP, speed)


def policy(of: Routed) -> Adaptive:
    assert isinstance(of.router.policy, Adaptive)
    return of.router.policy


def learn(of: Adaptive, rows: Iterable[tuple[int, int]]) -> None:
    """An earlier epoch: four responses of so many tokens to the prompt of each row."""
    for row, tokens in rows:
        for count in range(1, 5):
            of.estimates.lengths.finished(group_of([tokens] * count, row=row, uid=-1))


LONG, SHORT = 9000, 1500


def mixed(of: Routed, long: int = 1, short: int = 32) -> Routed:
    """Groups of one whose prompts are known: the first `long` give LONG tokens, the others SHORT."""
    learn(policy(of), [(uid, LONG if uid < long else SHORT) for uid in range(long + short)])
    of.dispatch(range(long + short), samples=1)
    return of


def divided() -> Routed:
    """Four engines, of which some have become heavy, as one response is much longer than the others."""
    of = mixed(site(fast=4, limit=16))
    of.decide(2)
    assert policy(of).roles.heavy
    of.arrive()
    return of
