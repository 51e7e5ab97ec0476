"""Adaptive routing against least in flight on random workloads: engines, limits, KV caches, costs, lengths
and batch sizes are all drawn. What must not happen is that a workload becomes slower.

Every second one is stranger: it may have a heavy pool, faster or slower than the fast one and with fewer
places; a prefill may cost up to 20 decode steps; lengths may be uniform, all short or of two kinds; and it
may be a job with a trainer and a staleness bound in place of single batches.

A workload is a distribution, of which several batches or jobs are drawn and compared by their summed times:
of a single batch, luck decides which policy happens to begin its longest response first.

    python -m tests.bench.routing_random [--workloads N]
    python -m tests.bench.routing_random --part WORKLOADS FIRST > FILE
    python -m tests.bench.routing_random --collect FILE ...
"""

import dataclasses
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rljob_runtime.groups.staleness import Bound
from rljob_runtime.routing.cost import StepCost
from rljob_runtime.routing.router import Router
from rljob_runtime.simulate.job import JobModel, simulate_job
from rljob_runtime.simulate.physics import Physics
from rljob_runtime.simulate.workload import LengthModel, Workload
from tests.bench.figures import Figure, parser, record
from tests.bench.routing_sites import VLLM_GRAPHS, Site

WORKLOADS = 240
BATCHES = 3
"""Of each workload; jobs, where it is one."""
_STEPS = 3
"""Of a job."""
_MOST_GROUPS = 384


@dataclass(frozen=True)
class Drawn:
    """A workload."""

    site: Site
    heavy: int = 0
    """Engines of the heavy pool."""
    kind: str = "lognormal"
    """Of lengths."""
    bound: float | None = None
    """Staleness; None: single batches."""
    train: float = 0.0
    """Seconds of a training step."""

    @property
    def name(self) -> str:
        site, lengths = self.site, self.site.lengths
        job = "" if self.bound is None else f", bound {self.bound}, steps of {self.train:.0f} s"
        return (
            f"{site.engines} engines of {site.limit}, {site.groups} x 8 {self.kind} responses of "
            f"{lengths.mean:.0f} tokens, cap {lengths.cap}, log-deviations {lengths.between:.2f} and "
            f"{lengths.within:.2f}, KV {site.kv_tokens}, prefill "
            f"{site.cost.per_prefill_token / site.cost.fixed:.2g} steps a token, {self.heavy} heavy engines "
            f"of {site.heavy_limit} and {site.speed:g} times the speed{job}"
        )

    def seconds(self, routing: dict[str, Any], seed: int) -> float:
        """Of all batches, or jobs."""
        return sum(self._wall(routing, BATCHES * seed + each) for each in range(BATCHES))

    def _wall(self, routing: dict[str, Any], seed: int) -> float:
        if self.bound is None:
            return self.site.run_on(self._lengths(self.site.groups, seed), routing, self.heavy).wall
        model = JobModel(Bound(self.bound, self.site.groups), _STEPS, self.train)
        router = Router(self.site.policy(routing, self.heavy))
        work = self._lengths(_STEPS * self.site.groups, seed)
        return simulate_job(work, self.site.shapes(self.heavy), self.site.physics, router, model).wall

    def _lengths(self, groups: int, seed: int) -> Workload:
        drawn = dataclasses.replace(self.site, groups=groups).draw(seed)
        r, shape = np.random.default_rng(seed), drawn.lengths.shape
        mean, cap = self.site.lengths.mean, self.site.lengths.cap
        match self.kind:
            case "uniform":
                lengths = r.integers(1, max(3, int(2 * mean)), shape)
            case "short":
                lengths = r.integers(1, 12, shape)
            case "of two kinds":
                long = r.integers(int(0.6 * cap), cap, shape)
                lengths = np.where(r.random(shape) < 0.05, long, r.integers(1, max(3, int(mean)), shape))
            case _:
                return drawn
        return dataclasses.replace(drawn, lengths=np.minimum(lengths, cap))


def draw(seed: int) -> Drawn:
    """The workload of one seed."""
    r = random.Random(seed)
    cap = r.choice((512, 2048, 8192, 32768))
    lengths = LengthModel(
        mean=cap * r.uniform(0.05, 0.5), cap=cap, between=r.uniform(0, 1.2), within=r.uniform(0, 1.0),
        order=r.choice((0.0, 0.0, 0.7)), prompt_tokens=r.choice((16, 128, 1024)),
    )  # fmt: skip
    fixed = r.choice((0.005, 0.01, 0.03, 0.1))
    cost = StepCost(
        fixed, per_request=fixed * r.choice((0.0, 0.001, 0.01)), per_kv_token=fixed * 10 ** r.uniform(-7, -5),
        per_prefill_token=fixed / r.choice((50, 200, 1000)), gears=r.choice(((), VLLM_GRAPHS, (8, 64, 256))),
    )  # fmt: skip
    engines, limit = r.choice((1, 2, 3, 4, 8, 16)), r.choice((4, 16, 64, 256))
    longest = cap + lengths.prompt_tokens
    kv = int(max(1.1 * longest, limit * lengths.mean * r.choice((0.5, 1.0, 4.0))))
    groups = min(_MOST_GROUPS, max(4, int(engines * limit * 10 ** r.uniform(-0.7, 0.7)) // 8))
    physics = Physics(report_seconds=fixed * lengths.mean / 20)
    site = Site("random", groups, 8, engines, limit, kv, lengths, cost, physics)
    return _stranger(site, r) if seed % 2 else Drawn(site)


def _stranger(site: Site, r: random.Random) -> Drawn:
    """The same with what not every job has."""
    heavy = r.randint(1, site.engines // 2) if site.engines > 1 and r.random() < 0.7 else 0
    speed, places = r.choice((0.5, 0.7, 1.0, 1.5, 2.0)), r.choice((site.limit, max(2, site.limit // 4)))
    cost, lengths = site.cost, site.lengths
    if (steps := r.choice((None, 5, 20))) is not None:
        cost = cost._replace(
            per_prefill_token=cost.fixed * steps / (lengths.mean / 2 + lengths.prompt_tokens)
        )
    kind = r.choice(("lognormal", "uniform", "short", "of two kinds"))
    bound, train = r.choice((None, 0, 1, 2)), cost.fixed * lengths.mean * r.choice((0.2, 1.0, 3.0))
    groups = site.groups if bound is None else max(4, site.groups // _STEPS)
    site = dataclasses.replace(site, groups=groups, cost=cost, speed=speed, heavy_limit=places)
    return Drawn(site, heavy, kind, bound, train)


def measure(count: int, first: int) -> dict[int, float]:
    """By seed, times as fast as least in flight. Prints each."""
    ratios: dict[int, float] = {}
    for seed in range(first, first + count):
        drawn = draw(seed)
        ratios[seed] = drawn.seconds({"leastInFlight": {}}, seed) / drawn.seconds({"adaptive": {}}, seed)
        print(seed, ratios[seed], drawn.name if ratios[seed] < 0.99 else "", flush=True)
    return ratios


def collected(files: Sequence[str]) -> dict[int, float]:
    """The ratios that parts have printed."""
    lines = [line.split(maxsplit=2) for file in files for line in Path(file).read_text().splitlines()]
    return {int(seed): float(ratio) for seed, ratio, *_ in lines}


def main() -> None:
    line = parser(__doc__)
    what = line.add_mutually_exclusive_group()
    what.add_argument("--workloads", type=int, default=WORKLOADS, metavar="N", help="how many are drawn")
    what.add_argument(
        "--part", type=int, nargs=2, metavar=("WORKLOADS", "FIRST"), help="print, record nothing"
    )
    what.add_argument("--collect", nargs="+", metavar="FILE", help="record what such parts have printed")
    options = line.parse_args()
    if options.workloads < 1:
        line.error("--workloads must be at least 1")
    if options.part:
        measure(*options.part)
    elif options.collect:
        tell(collected(options.collect), options.out)
    else:
        tell(measure(options.workloads, 0), options.out)


def tell(ratios: dict[int, float], out: Path) -> None:
    count, slowest = len(ratios), min(ratios, key=lambda seed: ratios[seed])
    values = sorted(ratios.values())
    record(
        "routing_random",
        [
            Figure(f"slowest of {count} workloads (seed {slowest})", values[0], "x", goal="at least 0.99"),
            Figure("workloads slower by more than 1 %", sum(v < 0.99 for v in values), "workloads", goal="0"),
            Figure("5th percentile", values[int(0.05 * count)], "x"),
            Figure("median", statistics.median(values), "x"),
            Figure("95th percentile", values[int(0.95 * count)], "x"),
            Figure("mean", statistics.mean(values), "x"),
        ],
        out,
    )


if __name__ == "__main__":
    main()
