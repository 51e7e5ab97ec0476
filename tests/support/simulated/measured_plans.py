"""A router as a job drives it: it does not know what its engines cost, and is told what they measure."""

from collections.abc import Mapping, Sequence

from rljob_runtime.routing.cost_fit import UNMEASURED, MeasuredCosts
from rljob_runtime.routing.policy import Policy
from rljob_runtime.routing.requests import Action, EngineShape, GroupRequest, Place, RequestKey
from rljob_runtime.routing.router import Router


class MeasuredPlans:
    """A scheduler of the simulator. As `rollout.pool` it has the costs of engines from their reports alone;
    `tells_prefill`: whether these say how many tokens were prefilled."""

    def __init__(self, policy: Policy, tells_prefill: bool = True) -> None:
        self.router = Router(policy)
        self.measured = MeasuredCosts()
        self.shapes: dict[int, EngineShape] = {}
        self._tells = tells_prefill
        self._placed: dict[RequestKey, tuple[int, int, int]] = {}
        """Of what runs: the engine, the response tokens that it came with, and those to prefill at first."""
        self._prefilled: dict[int, int] = {}

    def join(self, engine: int, shape: EngineShape) -> None:
        self.shapes[engine] = shape._replace(cost=UNMEASURED)
        self._prefilled[engine] = 0
        self.router.join(engine, self.shapes[engine])

    def dispatch(self, group: GroupRequest, now: float) -> None:
        self.router.dispatch(group, now)

    def progressed(self, tokens: Mapping[RequestKey, int], now: float) -> None:
        self.router.progressed(tokens, now)
        by_engine: dict[int, dict[str, int]] = {}
        for key, count in tokens.items():
            engine, came_with, _ = self._placed[key]
            if count > came_with:
                self._begun(key)
            by_engine.setdefault(engine, {})[_named(key, came_with)] = count - came_with
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
                self.shapes[other] = shape._replace(cost=cost)
                self.router.join(other, self.shapes[other])

    def _begun(self, key: RequestKey) -> None:
        engine, came_with, fill = self._placed[key]
        self._prefilled[engine] += fill
        self._placed[key] = engine, came_with, 0

    def interrupted(self, key: RequestKey, tokens: int, now: float) -> bool:
        self._left(key)
        return self.router.interrupted(key, tokens, now)

    def finished(self, key: RequestKey, tokens: int, now: float) -> None:
        self._left(key)
        self.router.finished(key, tokens, now)

    def _left(self, key: RequestKey) -> None:
        self._begun(key)
        engine, came_with, _ = self._placed.pop(key)
        self.measured.ended(engine, self.shapes[engine].pool, _named(key, came_with))

    def wants_group(self, awaited: bool = False) -> bool:
        return self.router.wants_group(awaited)

    def decide(self, now: float) -> Sequence[Action]:
        actions = self.router.decide(now)
        for action in actions:
            if isinstance(action, Place):
                request = self.router.book.request(action.request)
                if all(engine != action.engine for engine, _, _ in self._placed.values()):
                    self.measured.began(action.engine, self._prefilled[action.engine], now)
                name, had = _named(request.key, request.tokens), request.kv_tokens if request.tokens else 0
                self.measured.given(action.engine, self.shapes[action.engine].pool, name, had, now)
                self._placed[action.request] = action.engine, request.tokens, request.kv_tokens
        return actions


def _named(key: RequestKey, came_with: int) -> str:
    """The request's id where it is, which it came to with so many response tokens."""
    return f"{key} from {came_with} on"
