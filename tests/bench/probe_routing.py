"""P-DSR as published: how many responses trip, and what it costs and saves, by how much the lengths of the
responses to one prompt resemble each other. Equal hardware: heavy engines are taken from the fast pool.
Beside it stands what needs no pools: the responses to a prompt on different engines, which steal from each
other (`Stealing` in `tests/bench/baselines.py`).

    python -m tests.bench.probe_routing [POLICY ...]
"""

import math
import os
import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from rljob_runtime.routing.probe import ProbePolicy, ProbeSettings
from rljob_runtime.routing.requests import EngineShape, GroupRequest, Move, RequestKey
from rljob_runtime.routing.router import Router
from rljob_runtime.simulate.batch import simulate_batch
from rljob_runtime.simulate.outcome import Outcome
from rljob_runtime.simulate.workload import LengthModel, Workload
from tests.bench.baselines import Stealing
from tests.bench.figures import Figure, parser, record, take_names
from tests.bench.routing_sites import Site

SEEDS = range(10)
CORRELATIONS = (0.0, 0.3, 0.5, 0.7, 0.9)
DEVIATIONS = (0.6, 1.0, 1.5)
"""Of the logarithm of a length."""
TIMED = 1.0
"""The deviation with which times are compared."""
BASELINE = "least in flight"
POLICIES: dict[str, tuple[dict[str, Any], int]] = {
    BASELINE: ({"leastInFlight": {}}, 0),
    "adjacent": ({"adjacent": {}}, 0),
    "interleaved": ({"interleaved": {}}, 0),
    "P-DSR, 2 of 8 engines heavy": ({"probe": {}}, 2),
    "P-DSR, 4 of 8 engines heavy": ({"probe": {}}, 4),
    "P-DSR that moves, 4 of 8 engines heavy": ({"probe": {"onTrip": "move"}}, 4),
    "adaptive": ({"adaptive": {}}, 0),
}
"""What `rollout.routing` says, and how many of the engines are the heavy pool."""
STEALING = "interleaved, engines steal"
TIMED_ONES = (*(name for name in POLICIES if name != BASELINE), STEALING)
"""The policies whose times are compared with that of the baseline."""


def lengths(deviation: float, correlation: float) -> LengthModel:
    between, within = math.sqrt(correlation) * deviation, math.sqrt(1 - correlation) * deviation
    return LengthModel(7345, 32768, between, within, prompt_tokens=512)


def tripped(work: Workload) -> float:
    """The share of responses that trip, of those that stay on the fast pool, by the policy itself."""
    router = Router(ProbePolicy(ProbeSettings(work.groups)))
    router.join(0, EngineShape("fast", work.lengths.size))
    router.join(1, EngineShape("heavy", work.lengths.size))
    for uid in range(work.groups):
        router.dispatch(GroupRequest(uid, uid, 512, work.samples), 0.0)
    router.decide(0.0)
    for uid in range(work.groups):
        router.finished(RequestKey(uid, 0), int(work.lengths[uid, 0]), 1.0)
    router.decide(1.0)
    light = list(router.book.engines[0].running)
    router.progressed({key: int(work.lengths[key]) for key in light}, 2.0)
    return sum(isinstance(action, Move) for action in router.decide(2.0)) / len(light)


def batch(task: tuple[float, str, int]) -> Outcome:
    """One batch of 128 prompts under a policy."""
    correlation, name, seed = task
    site = Site("128 prompts", groups=128, lengths=lengths(TIMED, correlation))
    if name == STEALING:
        policy = Stealing(site.groups, site.lengths.cap)
        return simulate_batch(site.draw(seed), site.shapes(), site.physics, Router(policy))
    routing, heavy = POLICIES[name]
    return site.run(routing, seed, heavy)


def timed(correlation: float, names: Sequence[str], pool: ProcessPoolExecutor) -> list[Figure]:
    found = {
        name: list(pool.map(batch, [(correlation, name, seed) for seed in SEEDS]))
        for name in (BASELINE, *names)
    }
    base = [each.wall for each in found.pop(BASELINE)]
    figures = []
    for name, outcomes in found.items():
        ratios = [before / each.wall for before, each in zip(base, outcomes, strict=True)]
        dropped = sum(each.wasted_tokens for each in outcomes) / sum(each.tokens for each in outcomes)
        idle = statistics.mean(each.idle for each in outcomes)
        what = f"engines idle {idle:.0%}" + (f", {dropped:.1%} of the tokens dropped" if dropped else "")
        label = f"correlation {correlation}, {name}: times as fast ({spread(ratios)}; {what})"
        figures.append(Figure(label, statistics.mean(ratios), "x"))
    return figures


def spread(values: Sequence[float]) -> str:
    """The standard deviation over seeds, for a figure's name."""
    return f"± {statistics.stdev(values):.2g} over {len(values)} seeds"


def trips() -> list[Figure]:
    figures = []
    for deviation in DEVIATIONS:
        for correlation in CORRELATIONS:
            model = lengths(deviation, correlation)
            shares = [100 * tripped(model.draw(512, 16, seed)) for seed in SEEDS]
            label = (
                f"deviation {deviation}, correlation {correlation}: responses that trip ({spread(shares)})"
            )
            figures.append(Figure(label, statistics.mean(shares), "%"))
    return figures


def main() -> None:
    """All, or the times of the policies that are named; figures of the others are kept."""
    line = parser(__doc__)
    take_names(line, TIMED_ONES, "POLICY")
    options = line.parse_args()
    figures = [] if options.names else trips()
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for correlation in CORRELATIONS[1:]:
            figures += timed(correlation, options.names or TIMED_ONES, pool)
    record("probe_routing", figures, options.out, keep=bool(options.names))


if __name__ == "__main__":
    main()
