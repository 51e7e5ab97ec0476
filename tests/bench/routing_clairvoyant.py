"""What routing could gain at 64 prompts if the length of every response were known: 8 independent engines,
all requests run from the beginning.

Three bounds, each as times as fast as least in flight on the same batch:

- *no waiting*: all engines end at the same moment, moves are free, and each engine takes as many steps as the
  longest response has tokens: what levelling can reach at most.
- *levelled*: adaptive routing, told the true lengths.
- *by length*: the responses are dealt once, by length, so that the engines that have short ones take fewer
  steps; what their KV caches do not hold waits.

    python -m tests.bench.routing_clairvoyant
"""

from collections.abc import Sequence

import numpy as np

from rljob_runtime.routing.adaptive import Adaptive
from rljob_runtime.routing.book import Book, EngineState, RequestState
from rljob_runtime.routing.policy import Entry, Lane, Policy
from rljob_runtime.routing.requests import RequestKey
from rljob_runtime.routing.router import Router
from rljob_runtime.simulate.batch import simulate_batch
from rljob_runtime.simulate.workload import Lengths, Workload
from tests.bench.figures import parser, record
from tests.bench.routing_simulated import BASELINE, SEEDS, SITES
from tests.bench.routing_sites import Site, over

SITE = SITES["64 prompts, correlation 0.5"]


class Dealt(Policy):
    """Each request has its engine from the beginning."""

    eager = True

    def __init__(self, engine_of: dict[RequestKey, int]) -> None:
        self._engine_of = engine_of

    def serves(self, engine: EngineState, book: Book) -> tuple[Lane, ...]:
        return (engine.number,)

    def entry(self, request: RequestState, book: Book) -> Entry | None:
        return Entry(self._engine_of[request.key], request.key)


def told(lengths: Lengths, longest: int) -> Adaptive:
    """Adaptive routing that knows how long each response will be; none is longer than `longest`."""
    policy = Adaptive(longest)

    def total(request: RequestState) -> float:
        return float(lengths[request.key.uid, request.key.sample])

    def told_of(row: int) -> bool:
        return True

    policy.estimates.total = total  # type: ignore[method-assign]
    policy.estimates.lengths.told = told_of  # type: ignore[method-assign]
    return policy


def shared_seconds(site: Site, lengths: np.ndarray, prompt: int) -> np.ndarray:
    """Engine time of each response besides the fixed part of its steps."""
    cost, tokens = site.cost, lengths.astype(np.float64)
    attended = tokens * prompt + tokens * tokens / 2
    return cost.per_request * tokens + cost.per_kv_token * attended + cost.per_prefill_token * prompt


def no_waiting(site: Site, work: Workload) -> float:
    """Seconds of a batch, were all engines done at once after as many steps as the longest response has."""
    lengths = work.lengths.ravel()
    shared = float(shared_seconds(site, lengths, int(work.prompt_tokens[0])).sum())
    return site.cost.fixed * float(lengths.max()) + shared / site.engines


def dealt_by_length(site: Site, work: Workload) -> Dealt:
    """The longest responses to the first engine, the next to the second, so that all are done together."""
    order = np.argsort(-work.lengths.ravel(), kind="stable")
    lengths = work.lengths.ravel()[order]
    shared = np.concatenate([[0.0], shared_seconds(site, lengths, int(work.prompt_tokens[0])).cumsum()])
    low, high = 0.0, 2 * no_waiting(site, work)
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if _edges(site, lengths, shared, middle) is not None else (middle, high)
    edges = _edges(site, lengths, shared, high)
    assert edges is not None
    engine = np.searchsorted(edges, np.arange(len(order)), side="right")
    keys = [RequestKey(*divmod(int(place), work.samples)) for place in order]
    return Dealt(dict(zip(keys, engine.tolist(), strict=True)))


def _edges(site: Site, lengths: np.ndarray, shared: np.ndarray, seconds: float) -> Sequence[int] | None:
    """Where each engine's responses end, if all are done in so many seconds."""
    edges: list[int] = []
    first = 0
    while first < len(lengths) and len(edges) < site.engines:
        room = shared[first] + seconds - site.cost.fixed * float(lengths[first])
        end = int(np.searchsorted(shared, room, side="right")) - 1
        if end <= first:
            return None
        edges.append(end)
        first = end
    return edges if first >= len(lengths) else None


def main() -> None:
    """All batches of `routing_simulated`."""
    out = parser(__doc__).parse_args().out
    ratios: dict[str, list[float]] = {}
    for seed in SEEDS:
        work = SITE.draw(seed)
        base = SITE.run(BASELINE, seed).wall

        def seconds(policy: Policy, work: Workload = work) -> float:
            return simulate_batch(work, SITE.shapes(), SITE.physics, Router(policy)).wall

        for name, found in (
            ("adaptive", SITE.run({"adaptive": {}}, seed).wall),
            ("adaptive, lengths known", seconds(told(work.lengths, SITE.lengths.cap))),
            ("no waiting, free moves", no_waiting(SITE, work)),
            ("dealt by length, lengths known", seconds(dealt_by_length(SITE, work))),
        ):
            ratios.setdefault(name, []).append(base / found)
    figures = [over(f"{name}: times as fast", values, "x") for name, values in ratios.items()]
    record("routing_clairvoyant", figures, out)


if __name__ == "__main__":
    main()
