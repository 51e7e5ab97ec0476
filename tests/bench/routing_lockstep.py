"""Lockstep engines: ours against one captured graph and adjacent placement.

512 prompts with 16 responses on 32 ranks, with the constants that `simulated_tables` has from published runs.

    python -m tests.bench.routing_lockstep [RUN ...]
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from rljob_runtime.routing.router import Router
from rljob_runtime.simulate.batch import simulate_batch
from rljob_runtime.simulate.workload import LengthModel
from tests.bench import simulated_tables as tables
from tests.bench.baselines import Static, TwoPhaseRebalance, adjacent, by_prompt, by_sample, interleaved
from tests.bench.figures import parser, record, take_names
from tests.bench.routing_sites import Site, over

SEEDS = range(10)
FINE = (1, 2, 4, *range(8, 257, 8))
"""Graphs as vLLM captures them by default on GPUs."""
LENGTHS = LengthModel(
    tables.MEAN, tables.CAP, tables.BETWEEN, tables.WITHIN, prompt_tokens=tables.PROMPT_TOKENS
)
PHYSICS = dataclasses.replace(tables.COPY, report_seconds=30.0)
"""Some 200 steps from one report of lengths to the next."""


def site(graphs: tuple[int, ...]) -> Site:
    """The published site, with these graphs."""
    return Site(
        "lockstep", 512, tables.SAMPLES, tables.RANKS, 256, tables.KV_TOKENS, LENGTHS,
        tables.COST._replace(gears=graphs), PHYSICS,
    )  # fmt: skip


def static(graphs: tuple[int, ...], interleave: bool, rebalance: bool, seed: int) -> float:
    """Seconds of a batch that is dealt before it runs."""
    where = site(graphs)
    place = (interleaved if interleave else adjacent)(where.groups, where.samples, where.engines)
    scheduler = (TwoPhaseRebalance if rebalance else Static)(place, by_sample if interleave else by_prompt)
    return simulate_batch(where.draw(seed), where.shapes(), where.physics, scheduler).wall


def routed(graphs: tuple[int, ...], routing: dict[str, Any], seed: int) -> float:
    """Seconds of a batch under a policy of ours."""
    where = site(graphs)
    return simulate_batch(where.draw(seed), where.shapes(), where.physics, Router(where.policy(routing))).wall


RUNS: dict[str, Callable[[int], float]] = {
    "graphs, adjacent, two-phase rebalance": lambda seed: static(tables.GRAPHS, False, True, seed),
    "graphs, interleaved": lambda seed: static(tables.GRAPHS, True, False, seed),
    "graphs every 8, interleaved": lambda seed: static(FINE, True, False, seed),
    "graphs every 8, least in flight": lambda seed: routed(FINE, {"leastInFlight": {}}, seed),
    "graphs every 8, adaptive": lambda seed: routed(FINE, {"adaptive": {}}, seed),
}


def main() -> None:
    """All, or those that are named; figures of the others are kept."""
    line = parser(__doc__)
    take_names(line, RUNS, "RUN")
    options = line.parse_args()
    base = [static((256,), False, False, seed) for seed in SEEDS]
    figures = [over("one graph, adjacent: time", base, "s")]
    for name in options.names or RUNS:
        ratios = [a / RUNS[name](seed) for a, seed in zip(base, SEEDS, strict=True)]
        goal = "at least 1.80 x" if "adaptive" in name else None
        figures.append(over(f"{name}: times as fast", ratios, "x", goal=goal))
    record("routing_lockstep", figures, options.out, keep=True)


if __name__ == "__main__":
    main()
