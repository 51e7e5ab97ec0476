"""Plans of passes that ranks share, predicted by a cost model: against one degree for all samples.

The constants are assumptions for a dense model of 8 B parameters on H200s: 790 TFLOP/s in matrix products,
550 TFLOP/s in attention, collectives of 25 microseconds over links of 350 GB/s within a node; the slow link
has 100 GB/s and 40 microseconds. A step has 512 samples, on very many ranks more; figures are over three
drawn batches. Each way of sharing is as `rljob_runtime.parallel` plans it. The lower bound gives every sample
the degree at which it costs its ranks least, in passes without a free place, and no rank waits. Planning is
timed over all batches, in time of the one processor that it takes: others may work beside it; shares are of
what the planned step takes. So is timed what a rank learns of the passes of a plan once it remembers as many
as it ever does, with a new fit.

    python -m tests.bench.hdp_plan
"""

import gc
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rljob_runtime.parallel.cost_model import CostModel, padded
from rljob_runtime.parallel.hdp_plan import plan_hybrid, plan_static
from rljob_runtime.simulate.workload import LengthModel
from rljob_runtime.trainer.pass_costs import PassCosts, PassTime, PlannedUpdate
from tests.bench.figures import Figure, parser, record

SEEDS = range(3)
REMEMBERED = 2048
"""Passes that a rank's costs are fitted to, at most."""
LAYERS = 36
SETS = {
    "7.3k": LengthModel(7345, 32768, 0.6, 0.2, prompt_tokens=74),
    "1.5k": LengthModel(1500, 32768, 0.8, 0.4, prompt_tokens=74),
    "20k": LengthModel(20000, 65536, 0.8, 0.4, prompt_tokens=74),
    "12k": LengthModel(12000, 131072, 1.0, 0.4, prompt_tokens=74),
    "4k": LengthModel(4000, 131072, 1.2, 0.4, prompt_tokens=74),
}
"""Response lengths by their mean; the longest are 32,768, 65,536 or 131,072 tokens."""


@dataclass(frozen=True)
class Case:
    """Ranks, lengths, and what a rank holds of a pass."""

    ranks: int
    lengths: str
    cap: int
    slow: bool = False
    samples: int = 512
    """In a step, 16 to a prompt."""

    @property
    def name(self) -> str:
        link = ", slow link" if self.slow else ""
        return f"{self.work}{link}, {self.lengths} mean, {self.cap // 1024}k on a rank"

    @property
    def work(self) -> str:
        """Ranks and samples."""
        return f"{self.ranks} ranks" if self.samples == 512 else f"{self.ranks} ranks, {self.samples} samples"


CASES = [
    *(Case(8, "7.3k", cap) for cap in (4096, 8192, 16384, 32768)),
    *(Case(8, "1.5k", cap) for cap in (4096, 8192, 16384)),
    *(Case(8, name, cap) for name in ("12k", "4k") for cap in (16384, 32768)),
    *(Case(8, name, cap, slow=True) for name, cap in (("7.3k", 8192), ("1.5k", 8192), ("12k", 16384))),
    *(Case(32, name, cap) for name, cap in (("7.3k", 8192), ("1.5k", 8192), ("12k", 16384))),
    *(Case(1024, name, cap) for name, cap in (("7.3k", 8192), ("12k", 16384))),
    *(Case(ranks, "4k", 32768, samples=8 * ranks) for ranks in (256, 1024)),
]
LEARNED = (Case(8, "7.3k", 8192), Case(32, "12k", 16384))
"""Of whose passes is learned."""


def cost_model(slow: bool, largest: int) -> CostModel:
    """The assumed constants."""
    link, latency = (100e9, 40e-6) if slow else (350e9, 25e-6)
    token, square, granule = 45.4e9 / 790e12, 1.03e6 / 550e12, 256
    degrees = [2**level for level in range(1, largest.bit_length())]
    moved = LAYERS * 4096 / link
    return CostModel(
        per_pass=400 * token,
        per_token=token + granule * square,
        per_square=square,
        shared_pass=(0.0, *(LAYERS * 4 * latency for _ in degrees)),
        shared_token=(0.0, *(4 * (d - 1) / d * moved + (2 - 1 / d) * granule * square for d in degrees)),
    )


def lower_bound(lengths: list[int], case: Case, cost: CostModel) -> float:
    """Seconds that no plan is below: see the top."""
    least = np.full(len(lengths), np.inf)
    for degree in (1 << level for level in range(case.ranks.bit_length())):
        tokens = padded(np.array(lengths), degree)
        passes = cost.pass_seconds(degree) * tokens / (case.cap * degree)
        work = degree * (cost.sample_seconds(np.array(lengths), degree) + passes)
        least = np.minimum(least, np.where(tokens <= case.cap * degree, work, np.inf))
    return float(least.sum()) / case.ranks


def drawn(case: Case, seed: int) -> list[int]:
    """The lengths of a step's samples, in tokens."""
    work = SETS[case.lengths].draw(case.samples // 16, 16, seed)
    whole = (work.lengths + work.prompt_tokens[:, None]).ravel().clip(max=SETS[case.lengths].cap)
    return [int(length) for length in whole]


def learning(case: Case) -> tuple[int, float]:
    """The passes of a step, and the seconds in which a rank learns what they took."""
    cost, lengths = cost_model(case.slow, case.ranks), drawn(case, 0)
    update = PlannedUpdate(plan_hybrid(lengths, case.ranks, case.cap, cost), lengths)
    passes, costs = update.plan.passes, PassCosts(cost, case.ranks, in_step=False)
    rng, seconds = np.random.default_rng(0), []
    for _ in range(2 * REMEMBERED // len(passes)):
        held_up = rng.uniform(1.0, 1.3, len(passes)).tolist()
        times = [
            PassTime(cost.seconds(update.lengths_of(each), each.degree) * factor)
            for each, factor in zip(passes, held_up, strict=True)
        ]
        start = time.process_time()
        costs.learn([update], [times])
        seconds.append(time.process_time() - start)
    return len(passes), statistics.median(seconds[len(seconds) // 2 :])


class Planned(NamedTuple):
    """A plan that was made."""

    seconds: float
    """To make it."""
    step: float
    """Seconds of its step, as it predicts."""


def measure(case: Case) -> tuple[list[Figure], list[Planned]]:
    """The figures of a case, in tokens per second, and its plans."""
    cost = cost_model(case.slow, case.ranks)
    tokens, plans = 0, []
    seconds: dict[int | str, float] = {}
    for seed in SEEDS:
        lengths = drawn(case, seed)
        tokens += sum(lengths)
        start = time.process_time()
        plan = plan_hybrid(lengths, case.ranks, case.cap, cost)
        plans.append(Planned(time.process_time() - start, plan.seconds))
        taken: dict[int | str, float] = {"plan": plan.seconds, "bound": lower_bound(lengths, case, cost)}
        for degree in (1 << level for level in range(case.ranks.bit_length())):
            if case.cap * degree >= SETS[case.lengths].cap:
                taken[degree] = plan_static(lengths, case.ranks, case.cap, cost, degree).seconds
        for way, each in taken.items():
            seconds[way] = seconds.get(way, 0.0) + each
    rates = {way: tokens / each for way, each in seconds.items()}
    best = max((way for way in rates if isinstance(way, int)), key=lambda way: rates[way])
    goal = "never below the best one degree for all"
    against: dict[str, int | str] = {
        "degree 8 for all": 8,
        f"the best one degree for all ({best})": best,
        "the lower bound": "bound",
    }
    return [
        Figure(f"{case.name}: against {name}", rates["plan"], "tokens/s", rates[way], goal)
        for name, way in against.items()
    ], plans


def planning_figures(what: str, plans: Sequence[Planned]) -> list[Figure]:
    """How long plans took to make, and the share of a step that this is."""
    seconds = [plan.seconds for plan in plans]
    shares = [plan.seconds / plan.step for plan in plans]
    goal = "below 50 ms" if " 512 " in what else None
    return [
        Figure(f"{what}: median", 1e3 * statistics.median(seconds), "ms", goal=goal),
        Figure(f"{what}: longest", 1e3 * max(seconds), "ms", goal=goal),
        Figure(f"{what}: share of its step, median", 100 * statistics.median(shares), "%"),
        Figure(f"{what}: share of its step, largest", 100 * max(shares), "%"),
    ]


def main() -> None:
    out = parser(__doc__).parse_args().out
    # As in a trainer's step: a collection looks at all that torch has made.
    gc.disable()
    figures: list[Figure] = []
    planning: dict[str, list[Planned]] = {}
    for case in CASES:
        found, plans = measure(case)
        figures += found
        planning.setdefault(f"{case.samples} samples on {case.ranks} ranks", []).extend(plans)
    for work, plans in planning.items():
        figures += planning_figures(f"processor time of a plan of {work}", plans)
    for case in LEARNED:
        passes, taken = learning(case)
        name = f"processor time of learning from {passes} passes of {case.work}"
        figures.append(Figure(name, 1e3 * taken, "ms"))
    record("hdp_plan", figures, out)


if __name__ == "__main__":
    main()
