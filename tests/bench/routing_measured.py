"""Adaptive routing as a job has it, which knows of its engines only what they tell, on random workloads:
those of `routing_random`, where plans know what engines cost.

Three plans beside least in flight, on the same batches or jobs: those that know all; those that learn from
reports what a step costs and what prefill does; and those that learn the former alone and take a token of
prefill for a hundredth of a step's fixed time. In these workloads it is a thousandth to 20 steps.

    python -m tests.bench.routing_measured [--workloads N] [--first SEED] [--every K]
"""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from rljob_runtime.routing.router import Router
from rljob_runtime.simulate.scheduler import Scheduler
from tests.bench.figures import Figure, parser, record
from tests.bench.routing_random import BATCHES, Drawn, draw
from tests.support.simulated.measured_plans import MeasuredPlans

_GOAL = 0.99
"""Times as fast as least in flight, at least."""
_ADAPTIVE: dict[str, Any] = {"adaptive": {}}

PLANS: dict[str, Callable[[Drawn], Scheduler]] = {
    "that know all": lambda drawn: Router(drawn.site.policy(_ADAPTIVE, drawn.heavy)),
    "that learn steps and prefill": lambda drawn: MeasuredPlans(drawn.site.policy(_ADAPTIVE, drawn.heavy)),
    "that learn steps alone": lambda drawn: MeasuredPlans(drawn.site.policy(_ADAPTIVE, drawn.heavy), False),
}


def ratios(drawn: Drawn, seed: int) -> dict[str, float]:
    """How many times as fast as least in flight each kind of plans is."""
    seeds = range(BATCHES * seed, BATCHES * (seed + 1))
    base = sum(drawn.wall({"leastInFlight": {}}, each) for each in seeds)
    return {
        name: base / sum(drawn.wall_by(make(drawn), each) for each in seeds) for name, make in PLANS.items()
    }


def figures(found: Sequence[dict[str, float]]) -> list[Figure]:
    shown = []
    for name in PLANS:
        values = sorted(each[name] for each in found)
        what = f"{len(values)} workloads, plans {name}"
        slower = sum(value < _GOAL for value in values)
        shown += [
            Figure(f"{what}: slowest", values[0], "x"),
            Figure(f"{what}: slower than least in flight by more than 1 %", slower, "workloads"),
            Figure(f"{what}: median", statistics.median(values), "x"),
            Figure(f"{what}: mean", statistics.mean(values), "x"),
        ]
    return shown


def main() -> None:
    line = parser(__doc__)
    line.add_argument("--workloads", type=int, default=80, metavar="N", help="how many")
    line.add_argument("--first", type=int, default=0, metavar="SEED", help="the first one")
    line.add_argument("--every", type=int, default=3, metavar="K", help="seeds from one to the next")
    options = line.parse_args()
    found = []
    for seed in range(options.first, options.first + options.workloads * options.every, options.every):
        drawn = draw(seed)
        found.append(ratios(drawn, seed))
        slow = min(found[-1].values()) < _GOAL
        print(seed, *(f"{value:.4f}" for value in found[-1].values()), drawn.name * slow, flush=True)
    record("routing_measured", figures(found), options.out)


if __name__ == "__main__":
    main()
