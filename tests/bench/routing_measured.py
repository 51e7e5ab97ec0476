"""Adaptive routing as a job has it, which knows of its engines only what they tell, on random workloads:
those of `routing_random`, where plans know what engines cost.

Three plans beside least in flight, on the same batches or jobs: those that know all; those that learn from
reports what a step costs and what prefill does; and those that learn the former alone, and of prefill what
responses that move wait for. In these workloads it is a thousandth of a step's fixed time to 20 steps.

With `--together` 24 others: batches and jobs in which all prompts are prefilled at once, and in which
a response that moves is prefilled for longer than from one report to the next, on an engine that has little
else to do. Half of the responses to each prompt are short, the others long.

    python -m tests.bench.routing_measured [--workloads N] [--first SEED] [--every K]
    python -m tests.bench.routing_measured --together
"""

import itertools
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from rljob_runtime.routing.cost import StepCost
from rljob_runtime.routing.router import Router
from rljob_runtime.simulate.measured_plans import MeasuredPlans
from rljob_runtime.simulate.physics import Physics
from rljob_runtime.simulate.scheduler import Scheduler
from rljob_runtime.simulate.workload import LengthModel
from tests.bench.figures import Figure, parser, record
from tests.bench.routing_random import BATCHES, Drawn, draw
from tests.bench.routing_sites import Site

_GOAL = 0.99
"""Times as fast as least in flight, at least."""
_ADAPTIVE: dict[str, Any] = {"adaptive": {}}

PLANS: dict[str, Callable[[Drawn], Scheduler]] = {
    "that know all": lambda drawn: Router(drawn.site.policy(_ADAPTIVE, drawn.heavy)),
    "that learn steps and prefill": lambda drawn: MeasuredPlans(drawn.site.policy(_ADAPTIVE, drawn.heavy)),
    "that learn steps alone": lambda drawn: MeasuredPlans(drawn.site.policy(_ADAPTIVE, drawn.heavy), False),
}


def together() -> list[Drawn]:
    """The workloads in which all begins together: a token of prefill takes an 80th to an eighth of a step's
    fixed time, and a prompt tells little of it or much."""
    found = []
    for share, prompt, request, bound in itertools.product(
        (0.0125, 0.125), (16, 150), (0.0025, 0.025), (None, 0, 1)
    ):
        cost = StepCost(0.008, 0.008 * request, 4e-8, 0.008 * share)
        lengths = LengthModel(mean=2700, cap=8192, between=0.0, within=0.0, prompt_tokens=prompt)
        site = Site("together", 32, 4, 6, 32, 2_000_000, lengths, cost, Physics(report_seconds=0.5))
        found.append(Drawn(site, 0, "in halves", bound, 30.0))
    return found


def ratios(drawn: Drawn, seed: int) -> dict[str, float]:
    """How many times as fast as least in flight each kind of plans is."""
    seeds = range(BATCHES * seed, BATCHES * (seed + 1))
    base = sum(drawn.wall({"leastInFlight": {}}, each) for each in seeds)
    return {
        name: base / sum(drawn.wall_by(make(drawn), each) for each in seeds) for name, make in PLANS.items()
    }


def figures(found: Sequence[dict[str, float]], kind: str = "") -> list[Figure]:
    shown = []
    for name in PLANS:
        values = sorted(each[name] for each in found)
        what = f"{len(values)} workloads{kind}, plans {name}"
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
    line.add_argument("--together", action="store_true", help="those in which all begins together")
    options = line.parse_args()
    found = []
    if options.together:
        for seed, drawn in enumerate(together()):
            found.append(ratios(drawn, seed))
            print(seed, *(f"{value:.4f}" for value in found[-1].values()), drawn.name, flush=True)
        record("routing_measured", figures(found, " that begin together"), options.out, keep=True)
        return
    for seed in range(options.first, options.first + options.workloads * options.every, options.every):
        drawn = draw(seed)
        found.append(ratios(drawn, seed))
        slow = min(found[-1].values()) < _GOAL
        print(seed, *(f"{value:.4f}" for value in found[-1].values()), drawn.name * slow, flush=True)
    record("routing_measured", figures(found), options.out)


if __name__ == "__main__":
    main()
