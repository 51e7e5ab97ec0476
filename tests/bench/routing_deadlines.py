"""What it is worth that moves know which groups the next training step waits for.

Asynchronous jobs on simulated engines like an H200 with an 8 B model (assumed constants), adaptive routing
with and without a look at deadlines, on the same lengths. In the first site the heavy pool is fast and has
few places: there who goes first matters.

    python -m tests.bench.routing_deadlines [SITE ...]
"""

import statistics
from dataclasses import dataclass

from rljob_runtime.groups.staleness import Bound
from rljob_runtime.routing.adaptive import Adaptive
from rljob_runtime.routing.requests import EngineShape
from rljob_runtime.routing.router import Router
from rljob_runtime.simulate.job import JobModel, simulate_job
from rljob_runtime.simulate.outcome import Outcome
from rljob_runtime.simulate.workload import LengthModel
from tests.bench.figures import Figure, parser, record, take_names
from tests.bench.routing_simulated import APART
from tests.bench.routing_sites import GPU, PHYSICS, over
from tests.support.simulated.routed import faster

SEEDS = range(10)
STEPS, SAMPLES = 12, 8
TAIL = LengthModel(4000, 32768, 0.3, 1.1, prompt_tokens=512)
"""Lengths that tell little of each other, with a long tail."""


@dataclass(frozen=True)
class Site:
    """A job of one kind."""

    lengths: LengthModel
    groups: int
    bound: int
    fast: int
    heavy: int = 0
    speed: float = 1.0
    """Of a heavy engine, in fast ones."""
    places: int = 256
    """Requests that a heavy engine runs at a time."""

    def shapes(self) -> list[EngineShape]:
        fast = [EngineShape("fast", 256, 750_000, GPU)] * self.fast
        return fast + [EngineShape("heavy", self.places, 750_000, faster(GPU, self.speed))] * self.heavy

    def run(self, seed: int, waits: bool) -> Outcome:
        work = self.lengths.draw(self.groups * STEPS, SAMPLES, seed)
        model = JobModel(Bound(self.bound, self.groups), STEPS, trainer_seconds=20.0, sync_seconds=1.0)
        router = Router(Adaptive(self.lengths.cap, waits=waits))
        return simulate_job(work, self.shapes(), PHYSICS, router, model)


SITES = {
    "bound 2, a heavy engine twice as fast with 16 places": Site(APART, 32, 2, 4, 1, 2.0, 16),
    "bound 1, a heavy engine 2.2 times as fast with 8 places": Site(TAIL, 32, 1, 4, 1, 2.2, 8),
    "bound 1, two heavy engines 1.6 times as fast": Site(TAIL, 32, 1, 4, 2, 1.6),
    "bound 1, no heavy pool": Site(TAIL, 32, 1, 4),
    "bound 2, no heavy pool": Site(APART, 16, 2, 4),
}


def main() -> None:
    """All sites, or those that are named; figures of the others are kept."""
    line = parser(__doc__)
    take_names(line, SITES, "SITE")
    options = line.parse_args()
    for name in options.names or SITES:
        site = SITES[name]
        base = [site.run(seed, waits=False).wall / STEPS for seed in SEEDS]
        ours = [site.run(seed, waits=True) for seed in SEEDS]
        ratios = [a / (b.wall / STEPS) for a, b in zip(base, ours, strict=True)]
        steps = [each.wall / STEPS for each in ours]
        oldest = max(each.oldest for each in ours)
        record(
            "routing_deadlines",
            [
                over(f"{name}: a step", steps, "s", baseline=statistics.mean(base)),
                over(f"{name}: times as fast, job by job", ratios, "x"),
                Figure(f"{name}: slowest job", min(ratios), "x", goal="at least 0.99"),
                Figure(f"{name}: oldest group", oldest, "versions"),
            ],
            options.out,
            keep=True,
        )


if __name__ == "__main__":
    main()
