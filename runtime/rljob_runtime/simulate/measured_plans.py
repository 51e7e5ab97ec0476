"""A router as a job drives it: it does not know what its engines cost, and plans by what they measure.

Guarantee: of an engine's cost nothing but its reports is used; what a copy of KV takes, where KV is copied,
is known. Pure.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rljob_runtime.routing.cost_fit import UNMEASURED, MeasuredCosts
from rljob_runtime.routing.policy import Policy
from rljob_runtime.routing.requests import Action, EngineShape, GroupRequest, Place, RequestKey
from rljob_runtime.routing.router import Router


@dataclass(slots=True)
class _Placed:
    """A request where it is."""

    engine: int
    name: str
    """Its id there."""
    came_with: int
    """Response tokens."""
    fill: int
    """Tokens to prefill before its first token there; 0 once they are."""


class MeasuredPlans:
    """A scheduler of the simulator. As `rollout.pool` it has the costs of engines from their reports alone;
    `tells_prefill`: whether these say how many tokens were prefilled."""

    def __init__(self, policy: Policy, tells_prefill: bool = True) -> None:
        self.router = Router(policy)
        self.measured = MeasuredCosts()
        self.shapes: dict[int, EngineShape] = {}
        self._tells = tells_prefill
        self._placed: dict[RequestKey, _Placed] = {}
        self._counts: Counter[int] = Counter()
        """Requests that each engine has."""
        self._prefilled: dict[int, int] = {}

    def join(self, engine: int, shape: EngineShape) -> None:
        self.shapes[engine] = shape._replace(
            cost=UNMEASURED._replace(per_copied_token=shape.cost.per_copied_token)
        )
        self._prefilled[engine] = 0
        self.router.join(engine, self.shapes[engine])

    def dispatch(self, group: GroupRequest, now: float) -> None:
        self.router.dispatch(group, now)

    def progressed(self, tokens: Mapping[RequestKey, int], now: float) -> None:
        self.router.progressed(tokens, now)
        by_engine: dict[int, dict[str, int]] = {}
        for key, count in tokens.items():
            placed = self._placed[key]
            if count > placed.came_with:
                self._begun(placed)
            by_engine.setdefault(placed.engine, {})[placed.name] = count - placed.came_with
        for number, counts in by_engine.items():
            self._report(number, counts, now)

    def _report(self, number: int, tokens: Mapping[str, int], now: float) -> None:
        pool, kv_tokens = self.shapes[number].pool, self.router.book.engines[number].kv_tokens
        prefilled = self._prefilled[number] if self._tells else 0
        cost = self.measured.report(number, pool, tokens, kv_tokens, now, prefilled)
        if cost is None:
            return
        for other, shape in self.shapes.items():
            if shape.pool == pool:
                known = cost._replace(per_copied_token=shape.cost.per_copied_token)
                self.shapes[other] = shape._replace(cost=known)
                self.router.join(other, self.shapes[other])

    def _begun(self, placed: _Placed) -> None:
        self._prefilled[placed.engine] += placed.fill
        placed.fill = 0

    def paused(self) -> None:
        """All engines stand still from now on, to load weights."""
        for number, shape in self.shapes.items():
            self.measured.paused(number, shape.pool)

    def interrupted(self, key: RequestKey, tokens: int, now: float) -> bool:
        self._left(key, tokens)
        return self.router.interrupted(key, tokens, now)

    def finished(self, key: RequestKey, tokens: int, now: float) -> None:
        self._left(key, tokens)
        self.router.finished(key, tokens, now)

    def _left(self, key: RequestKey, tokens: int) -> None:
        placed = self._placed.pop(key)
        if tokens > placed.came_with:
            self._begun(placed)
        self._counts[placed.engine] -= 1
        self.measured.ended(placed.engine, self.shapes[placed.engine].pool, placed.name)

    def wants_group(self, awaited: bool = False) -> bool:
        return self.router.wants_group(awaited)

    def decide(self, now: float) -> Sequence[Action]:
        actions = self.router.decide(now)
        for action in actions:
            if isinstance(action, Place):
                self._place(action, now)
        return actions

    def _place(self, action: Place, now: float) -> None:
        request, number = self.router.book.request(action.request), action.engine
        shape = self.shapes[number]
        if not self._counts[number]:
            self.measured.began(number, self._prefilled[number], now)
        name = f"{request.key} from {request.tokens} on"
        self.measured.given(number, shape.pool, name, request.kv_tokens if request.tokens else 0, now)
        copied = request.tokens > 0 and shape.cost.per_copied_token is not None
        self._counts[number] += 1
        fill = 0 if copied else request.kv_tokens
        self._placed[action.request] = _Placed(number, name, request.tokens, fill)
