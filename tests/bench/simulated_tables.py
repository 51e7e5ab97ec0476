"""Published tables of long-tailed rollout beside the calibrated simulator.

Qwen3-235B on 128 dies, 32 data-parallel ranks in lockstep, deepscaler prompts with 16 responses of at most
32768 tokens: the document on 32k-token training in the CANN recipes. The constants of the cost model are a
fit to the tables "data rebalance" and "graph modes" (`--fit` repeats it), and the deviations of lengths were
chosen by trying; the table "rollout rebalance" was left out. Every row is the mean over the same seeds, whose
batches have the published mean length.

    python -m tests.bench.simulated_tables [--fit]
"""

import dataclasses
import statistics
from dataclasses import dataclass

import numpy as np

from rljob_runtime.least_squares import fit_nonnegative
from rljob_runtime.routing.cost import StepCost
from rljob_runtime.routing.requests import EngineShape
from rljob_runtime.simulate.batch import simulate_batch
from rljob_runtime.simulate.outcome import Outcome
from rljob_runtime.simulate.physics import Physics
from rljob_runtime.simulate.workload import LengthModel, Workload
from tests.bench.baselines import Static, TwoPhaseRebalance, adjacent, by_prompt, by_sample, interleaved
from tests.bench.figures import parser, record
from tests.bench.routing_sites import over

SEEDS = range(16)
RANKS, SAMPLES, CAP, PROMPT_TOKENS = 32, 16, 32768, 74
GRAPHS = (4, 8, 16, 32, 64, 128, 256)
"""Batch sizes with a captured graph, as published for the rollout rebalance."""
COST = StepCost(fixed=0.0859, per_request=3.81e-4, per_kv_token=9.95e-8, per_prefill_token=1 / 8000)
"""Per KV token of the fullest rank. The rate of prefill is an assumption; prompts are short."""
ADMISSION_SECONDS = 0.322
"""What each step with a prefill costs all ranks."""
BETWEEN, WITHIN = 0.57, 0.08
"""Log-deviations of lengths between prompts, and between responses to one prompt."""
MEAN = 7100.0
"""Response tokens, where no other mean follows from the published throughput."""
KV_TOKENS = 1_100_000
"""Of a rank: published runs of batch size 256 just fit."""
COPY = Physics(
    lockstep=True, admission_seconds=ADMISSION_SECONDS, copy_bytes_per_second=80e9,
    kv_bytes_per_token=192_512, copy_seconds=0.25,
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """A published run, and what it was."""

    name: str
    prompts: int
    batch: int
    """Requests of a rank at a time."""
    wall: float
    """Published seconds."""
    interleave: bool = True
    graphs: tuple[int, ...] = GRAPHS
    mean: float = MEAN
    first_idle: float | None = None
    """Published share of the time after the first rank was done."""
    rebalance: bool = False


DATA = [
    Run("batch size 24, adjacent", 256, 24, 8831, False, mean=6753, first_idle=0.5084),
    Run("batch size 64, adjacent", 256, 64, 4952, False, mean=6753, first_idle=0.5038),
    Run("batch size 128, adjacent", 256, 128, 4698, False, mean=6753, first_idle=0.6484),
    Run("batch size 128, interleaved", 256, 128, 3483, mean=7184, first_idle=0.2483),
    Run("batch size 192, interleaved", 384, 192, 4200, mean=7000, first_idle=0.1816),
    Run("batch size 256, interleaved", 512, 256, 4914, mean=7141, first_idle=0.1630),
]
"""Table "data rebalance". The means follow from the published tokens per second; that of the first three rows
from the third, with which they are one table."""
ONE_GRAPH = [
    Run("batch size 48, one graph", 512, 48, 9123, graphs=(48,), mean=7100),
    Run("batch size 64, one graph", 512, 64, 8145, graphs=(64,), mean=7070),
    Run("batch size 256, one graph", 512, 256, 6836, graphs=(256,), mean=7130),
]
"""Table "graph modes": 512 prompts. That they were interleaved follows from its last row, which is the last
one of `DATA`."""
REBALANCE = [
    Run("one graph, adjacent", 512, 256, 10213, False, graphs=(256,)),
    Run("graphs, adjacent", 512, 256, 7841, False),
    Run("graphs, adjacent, two-phase rebalance", 512, 256, 6102, False, rebalance=True),
]
"""Table "rollout rebalance". It is older than the others and every run of it about a third slower; its ratios
are compared."""


def draw(prompts: int, mean: float, seed: int) -> Workload:
    """A batch whose own mean length is `mean`: the published one is that of the batch that was run."""
    model = LengthModel(mean, CAP, BETWEEN, WITHIN, prompt_tokens=PROMPT_TOKENS)
    drawn = model.draw(prompts, SAMPLES, seed)
    lengths = drawn.lengths.astype(float)
    for _ in range(6):
        lengths = np.minimum(lengths * (mean / lengths.mean()), CAP)
    return dataclasses.replace(drawn, lengths=np.maximum(np.rint(lengths), 1).astype(np.int64))


def simulate(run: Run, seed: int, cost: StepCost = COST, admission: float = ADMISSION_SECONDS) -> Outcome:
    """The batch of one seed."""
    # Graphs for every size below the batch size, and one for the batch size itself.
    graphs = (*(graph for graph in run.graphs if graph < run.batch), run.batch)
    shapes = [EngineShape("fast", run.batch, KV_TOKENS, cost._replace(gears=graphs))] * RANKS
    place = (interleaved if run.interleave else adjacent)(run.prompts, SAMPLES, RANKS)
    order = by_sample if run.interleave else by_prompt
    scheduler = TwoPhaseRebalance(place, order) if run.rebalance else Static(place, order)
    reports = COPY.report_seconds if run.rebalance else None
    physics = dataclasses.replace(COPY, admission_seconds=admission, report_seconds=reports)
    return simulate_batch(draw(run.prompts, run.mean, seed), shapes, physics, scheduler)


def fit() -> None:
    """Print the constants that fit the published times best, by relative errors. Under static placement in
    lockstep the order of events does not depend on costs, so that times are linear in the constants: each
    column is the time where one constant is 1 and the others are 0."""
    units = [(StepCost(1, 0, 0), 0.0), (StepCost(0, 1, 0), 0.0), (StepCost(0, 0, 1), 0.0), (StepCost(0), 1.0)]
    rows, weights = [], []
    for run in DATA + ONE_GRAPH:
        walls, firsts = [], []
        for cost, admission in units:
            outcomes = [simulate(run, seed, cost, admission) for seed in SEEDS]
            walls.append(statistics.mean(each.wall for each in outcomes))
            firsts.append(statistics.mean(each.wall * (1 - each.first_idle) for each in outcomes))
        rows.append(np.array(walls) / run.wall)
        # Two rows of adjacent placement, which the others would push aside, weigh more; the first rank less.
        weights.append({64: 1.35, 128: 1.2}.get(run.batch, 1.0) if not run.interleave else 1.0)
        if run.first_idle is not None:
            rows.append(np.array(firsts) / (run.wall * (1 - run.first_idle)))
            weights.append(0.4)
    weigh = np.array(weights)
    found = fit_nonnegative(np.array(rows) * weigh[:, None], weigh)
    names = ("fixed", "per request", "per KV token", "per admission")
    print(", ".join(f"{name} {value:.3g} s" for name, value in zip(names, found.coefficients, strict=True)))


def main() -> None:
    line = parser(__doc__)
    line.add_argument("--fit", action="store_true", help="fit the constants, and print them")
    options = line.parse_args()
    if options.fit:
        fit()
        return
    figures = []
    for run in DATA + ONE_GRAPH:
        outcomes = [simulate(run, seed) for seed in SEEDS]
        figures.append(over(f"{run.name}: time", [each.wall for each in outcomes], "s", baseline=run.wall))
        if run.first_idle is not None:
            idle = [100 * each.first_idle for each in outcomes]
            figures.append(over(f"{run.name}: first rank idle", idle, "%", baseline=100 * run.first_idle))
    base, graphs, moved = ([simulate(run, seed).wall for seed in SEEDS] for run in REBALANCE)
    for name, above, below, published in (
        ("graphs against one graph: times as fast", base, graphs, 10213 / 7841),
        ("graphs and rebalance against one graph: times as fast", base, moved, 10213 / 6102),
        ("rebalance with graphs: part of the time that remains", moved, graphs, 6102 / 7841),
    ):
        ratios = [a / b for a, b in zip(above, below, strict=True)]
        figures.append(over(name, ratios, "x", baseline=published))
    record("simulated_tables", figures, options.out)


if __name__ == "__main__":
    main()
