"""Adaptive routing against least in flight on random workloads: engines, limits, KV caches, costs, lengths
and batch sizes are all drawn. What must not happen is that a workload becomes slower.

Every second one is stranger: it may have a heavy pool, faster or slower than the fast one and with fewer
places; a prefill may cost up to 20 decode steps; lengths may be uniform, all short or of two kinds; and it
may be a job with a trainer and a staleness bound in place of single batches.

The last ones have long queues: jobs whose steps take 6 to 20 times as many responses as run at a time, where
adaptive routing lets the longest begin first. Some have a heavy pool, some take the same prompts in each
step, and some lengths are of two kinds or have a Pareto tail.

Seeds beyond those (`--part`, or all by `--drifting`) have drift: jobs whose lengths halve or double from
step to step, or whose prompts that were long are short in the next, so that what came before misleads. They
have weight updates after which KV is computed again, and some wait for tools; plans measure what engines
cost, as those of a job do.

A workload is a distribution, of which several batches or jobs are drawn and compared by their summed times:
of a single batch, luck decides which policy happens to begin its longest response first. Of long queues and
drift as many jobs are drawn as tell the ratio from the goal, on either side of it, or make its standard error
small, as far as there is time for them.

    python -m tests.bench.routing_random [--workloads N]
    python -m tests.bench.routing_random --drifting
    python -m tests.bench.routing_random --part WORKLOADS FIRST > FILE
    python -m tests.bench.routing_random --collect FILE ...
"""

import dataclasses
import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rljob_runtime.groups.staleness import Bound
from rljob_runtime.routing.cost import StepCost
from rljob_runtime.routing.router import Router
from rljob_runtime.simulate.batch import simulate_batch
from rljob_runtime.simulate.job import JobModel, simulate_job
from rljob_runtime.simulate.measured_plans import MeasuredPlans
from rljob_runtime.simulate.physics import Physics
from rljob_runtime.simulate.scheduler import Scheduler
from rljob_runtime.simulate.workload import LengthModel, Lengths, ToolWaits, Workload
from tests.bench.drifting import KINDS, Drift
from tests.bench.figures import Figure, parser, record
from tests.bench.routing_sites import VLLM_GRAPHS, Site

SHORT = 240
"""Workloads without long queues; those of further seeds have them."""
WORKLOADS = SHORT + 64
DRIFTING = 48
"""Workloads with drift, whose seeds come after those."""
BATCHES = 3
"""Of each workload without long queues; jobs, where it is one."""
_STEPS = 3
"""Of a job."""
_MOST_GROUPS = 384
_GOAL = 0.99
"""Times as fast as least in flight, at least."""
_ERROR = 0.003
"""Standard error of a ratio with which no further job is drawn."""
_SURE = 3.0
"""Standard errors between a ratio and the goal with which none is drawn either."""
_LEAST_JOBS = 6
"""Of a workload with long queues, or drift: fewer do not tell their spread."""
_RESPONSES = 40_000
"""Of all jobs of such a workload, about, at most."""
_QUEUED_STEPS = 4
"""Of a job with long queues, or drift."""


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
    steps: int = _STEPS
    """Of a job."""
    epochs: bool = False
    """Whether each step takes the same prompts, in another order."""
    drift: Drift | None = None
    most: int = BATCHES
    """Batches or jobs that are drawn at most; more than `BATCHES` where it depends on what they tell."""

    @property
    def name(self) -> str:
        site, lengths = self.site, self.site.lengths
        job = "" if self.bound is None else f", bound {self.bound}, steps of {self.train:.0f} s"
        job += ", the same prompts in each step" * self.epochs
        if self.drift is not None:
            job += f", lengths {self.drift.kind}" + ", tools" * (self.drift.waits is not None)
        return (
            f"{site.engines} engines of {site.limit}, {site.groups} x {site.samples} {self.kind} responses "
            f"of {lengths.mean:.0f} tokens, cap {lengths.cap}, log-deviations {lengths.between:.2f} and "
            f"{lengths.within:.2f}, KV {site.kv_tokens}, prefill "
            f"{site.cost.per_prefill_token / site.cost.fixed:.2g} steps a token, {self.heavy} heavy engines "
            f"of {site.heavy_limit or site.limit} and {site.speed:g} times the speed{job}"
        )

    def wall(self, routing: dict[str, Any], seed: int) -> float:
        """Seconds of one batch, or job."""
        policy = self.site.policy(routing, self.heavy)
        return self.wall_by(Router(policy) if self.drift is None else MeasuredPlans(policy), seed)

    def wall_by(self, scheduler: Scheduler, seed: int) -> float:
        """The same by a scheduler that is given."""
        shapes, physics = self.site.shapes(self.heavy), self.site.physics
        if self.bound is None:
            return simulate_batch(self._work(self.site.groups, seed), shapes, physics, scheduler).wall
        bound = Bound(self.bound, self.site.groups)
        model = JobModel(bound, self.steps, self.train)
        if self.drift is not None:
            model = self.drift.model(bound, self.steps, self.train)
        work = self._work(self.steps * self.site.groups, seed)
        return simulate_job(work, shapes, physics, scheduler, model).wall

    def _work(self, groups: int, seed: int) -> Workload:
        site, r = self.site, np.random.default_rng(seed)
        rows = site.groups if self.epochs else None
        model = dataclasses.replace(site.lengths, rows=rows)
        drawn = dataclasses.replace(site, groups=groups, lengths=model).draw(seed)
        lengths = self._lengths(drawn, r)
        if not self.epochs:
            return dataclasses.replace(drawn, lengths=lengths)
        order = np.concatenate(
            [step * site.groups + r.permutation(site.groups) for step in range(self.steps)]
        )
        lengths, waits = lengths[order], None
        if self.drift is not None:
            lengths = self.drift.lengths(lengths, self.steps, model.mu, model.cap)
            waits = self.drift.waits
        return dataclasses.replace(drawn, lengths=lengths, rows=drawn.rows[order], waits=waits)

    def _lengths(self, drawn: Workload, r: np.random.Generator) -> Lengths:
        shape, prompts = drawn.lengths.shape, int(drawn.rows.max()) + 1
        mean, cap = self.site.lengths.mean, self.site.lengths.cap
        lengths = drawn.lengths
        match self.kind:
            case "uniform":
                lengths = r.integers(1, max(3, int(2 * mean)), shape)
            case "short":
                lengths = r.integers(1, 12, shape)
            case "of two kinds" | "of two kinds by prompt":
                long = r.integers(int(0.6 * cap), cap, shape)
                by = r.random(shape) if self.kind == "of two kinds" else r.random((prompts, 1))[drawn.rows]
                lengths = np.where(by < 0.05, long, r.integers(1, max(3, int(mean)), shape))
            case "in halves":
                # The odd ones of each prompt are long.
                short, long = r.integers(5, 50, shape), r.integers(cap // 3, cap, shape)
                lengths = np.where(np.arange(shape[1]) % 2, long, short)
            case "Pareto":
                common = 0.5 * mean * (1 + r.pareto(1.5, (prompts, 1)))[drawn.rows]
                own = np.exp(self.site.lengths.within * r.standard_normal(shape))
                lengths = np.maximum(1, np.minimum(cap, common * own)).astype(np.int64)
        return np.minimum(lengths, cap)


def draw(seed: int) -> Drawn:
    """The workload of one seed."""
    if seed < WORKLOADS:
        return _short(seed) if seed < SHORT else _queued(random.Random(seed - SHORT))
    return _drifting(random.Random(seed - WORKLOADS))


def _short(seed: int) -> Drawn:
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


def _queued(r: random.Random) -> Drawn:
    """A job with long queues."""
    cap = r.choice((512, 2048, 8192, 32768))
    kind = r.choice(("lognormal", "lognormal", "lognormal", "uniform", "of two kinds", "Pareto"))
    lengths = LengthModel(
        mean=cap * r.choice((0.03, 0.06, 0.1, 0.25)), cap=cap, between=r.uniform(0, 1.8),
        within=r.choice((0.1, 0.3, 0.6, 1.0)),
    )  # fmt: skip
    engines, limit, samples = r.choice((2, 3, 4, 8)), r.choice((2, 4, 8, 16)), r.choice((4, 8, 16))
    groups = min(_MOST_GROUPS, max(8, engines * limit * r.choice((6, 8, 12, 20)) // samples))
    fixed = r.choice((0.005, 0.01, 0.03))
    per_request = fixed * r.choice((0, 0.003, 0.02))
    cost = StepCost(fixed, per_request, per_prefill_token=fixed / r.choice((20, 50, 200, 1000)))
    lengths = dataclasses.replace(lengths, prompt_tokens=r.choice((16, 128, 512)))
    bound, heavy, epochs = r.choice((0, 0, 0, 1)), r.choice((0, 0, 1)), r.random() < 0.3
    train = fixed * lengths.mean * r.choice((0.2, 1.0))
    if kind == "of two kinds" and r.random() < 0.5:
        kind = "of two kinds by prompt"
    # A cache that holds all, or little more than responses of the mean length.
    longest = cap + lengths.prompt_tokens
    expected = lengths.mean + lengths.prompt_tokens
    kv = int(max(1.1 * longest, limit * r.choice((longest, longest, longest, 1.5 * expected))))
    physics = Physics(report_seconds=max(0.05, fixed * lengths.mean / 30))
    site = Site("random", groups, samples, engines, limit, kv, lengths, cost, physics)
    most = max(_LEAST_JOBS, _RESPONSES // (_QUEUED_STEPS * groups * samples))
    return Drawn(site, heavy, kind, bound, train, _QUEUED_STEPS, epochs, most=most)


def _drifting(r: random.Random) -> Drawn:
    """A job with drift."""
    cap = r.choice((2048, 8192, 32768))
    lengths = LengthModel(
        mean=cap * r.choice((0.06, 0.1, 0.25)), cap=cap, between=r.uniform(0, 1.2),
        within=r.choice((0.1, 0.4, 0.8)), prompt_tokens=r.choice((16, 128, 512)),
    )  # fmt: skip
    engines, limit, samples = r.choice((2, 3, 4, 8)), r.choice((4, 8, 16, 24)), r.choice((4, 8))
    groups = min(64, max(4, int(engines * limit * r.choice((0.7, 1.5, 3, 6))) // samples))
    fixed = r.choice((0.005, 0.01, 0.03))
    cost = StepCost(fixed, fixed * r.choice((0, 0.003, 0.02)), fixed * 5e-6, fixed / r.choice((20, 50, 200)))
    longest, expected = cap + lengths.prompt_tokens, lengths.mean + lengths.prompt_tokens
    kv = int(max(1.3 * longest, limit * r.choice((longest, longest, 1.5 * expected))))
    heavy, speed, places = r.choice((0, 1, 1)), r.choice((0.5, 1, 1, 2)), r.choice((limit, limit // 4))
    bound, seconds = r.choice((0, 1, 1, 2)), fixed * lengths.mean
    train, sync_seconds = seconds * r.choice((0.2, 1.0)), seconds * r.choice((0.03, 0.1))
    # Ten waits for a response of the mean length, which together take as long as its decode steps.
    waits = ToolWaits(int(lengths.mean / 10), seconds / 10) if r.random() < 0.25 else None
    drift = Drift(r.choice(KINDS), sync_seconds, waits)
    physics = Physics(report_seconds=max(0.05, seconds / 30))
    site = Site("random", groups, samples, engines, limit, kv, lengths, cost, physics, speed, places)
    most = max(_LEAST_JOBS, _RESPONSES // (_QUEUED_STEPS * groups * samples))
    return Drawn(site, heavy, "lognormal", bound, train, _QUEUED_STEPS, True, drift, most)


class Ratio(NamedTuple):
    """How many times as fast as least in flight a workload is."""

    value: float
    error: float
    """Standard error."""
    jobs: int
    """Batches or jobs that it is the ratio of."""

    @property
    def tells(self) -> bool:
        """Whether it is known well enough."""
        return self.error <= _ERROR or abs(self.value - _GOAL) > _SURE * self.error


def ratio(pairs: Sequence[tuple[float, float]]) -> Ratio:
    """Of the sums of the baseline's seconds and ours, for each batch or job."""
    count, (base, ours) = len(pairs), (sum(each) for each in zip(*pairs, strict=True))
    value = base / ours
    spread = sum((before - value * after) ** 2 for before, after in pairs) / (count * (count - 1))
    return Ratio(value, math.sqrt(spread) * count / ours, count)


def compare(drawn: Drawn, wall: Callable[[dict[str, Any], int], float], seed: int) -> Ratio:
    """By so many batches or jobs as it takes; `wall` gives the seconds of one, by routing and seed."""
    few = drawn.most <= BATCHES
    least, first = (BATCHES, BATCHES * seed) if few else (_LEAST_JOBS, 1000 * seed)
    pairs: list[tuple[float, float]] = []
    while len(pairs) < least or (len(pairs) < drawn.most and not ratio(pairs).tells):
        each = first + len(pairs)
        pairs.append((wall({"leastInFlight": {}}, each), wall({"adaptive": {}}, each)))
    return ratio(pairs)


def measure(count: int, first: int) -> dict[int, Ratio]:
    """By seed. Prints each."""
    ratios: dict[int, Ratio] = {}
    for seed in range(first, first + count):
        drawn = draw(seed)
        found = ratios[seed] = compare(drawn, drawn.wall, seed)
        print(seed, *found, drawn.name if found.value < _GOAL else "", flush=True)
    return ratios


def collected(files: Sequence[str]) -> dict[int, Ratio]:
    """The ratios that parts have printed."""
    lines = [line.split(maxsplit=4) for file in files for line in Path(file).read_text().splitlines()]
    return {int(seed): Ratio(float(value), float(error), int(jobs)) for seed, value, error, jobs, *_ in lines}


def main() -> None:
    line = parser(__doc__)
    what = line.add_mutually_exclusive_group()
    what.add_argument("--workloads", type=int, default=WORKLOADS, metavar="N", help="how many are drawn")
    what.add_argument("--drifting", action="store_true", help="those with drift alone")
    what.add_argument(
        "--part", type=int, nargs=2, metavar=("WORKLOADS", "FIRST"), help="print, record nothing"
    )
    what.add_argument("--collect", nargs="+", metavar="FILE", help="record what such parts have printed")
    options = line.parse_args()
    if options.workloads < 1:
        line.error("--workloads must be at least 1")
    if options.part:
        measure(*options.part)
    elif options.drifting:
        tell(measure(DRIFTING, WORKLOADS), options.out)
    elif options.collect:
        tell(collected(options.collect), options.out)
    else:
        tell(measure(options.workloads, 0), options.out)


def tell(ratios: dict[int, Ratio], out: Path) -> None:
    """Record how many workloads are slower and by how much: of those with drift in a file of their own, of
    those with long queues, and of the others."""
    drifting = {seed: found for seed, found in ratios.items() if seed >= WORKLOADS}
    queued = {seed: found for seed, found in ratios.items() if SHORT <= seed < WORKLOADS}
    short = {seed: found for seed, found in ratios.items() if seed < SHORT}
    if drifting:
        record("routing_random_drift", _figures(drifting, "workloads with drift"), out)
    if short or queued:
        figures = [*_figures(short, "workloads"), *_figures(queued, "workloads with long queues")]
        record("routing_random", figures, out)


def _figures(ratios: dict[int, Ratio], what: str) -> list[Figure]:
    if not ratios:
        return []
    count, slowest = len(ratios), min(ratios, key=lambda seed: ratios[seed].value)
    values, error = sorted(found.value for found in ratios.values()), ratios[slowest].error
    slower = sum(found.value < _GOAL for found in ratios.values())
    surely = sum(found.value + 2 * found.error < _GOAL for found in ratios.values())
    return [
        Figure(
            f"slowest of {count} {what} (seed {slowest})", values[0], f"x (standard error {error:.1g})",
            goal=f"at least {_GOAL}",
        ),
        Figure(f"{what} slower by more than 1 %", slower, "workloads", goal="0"),
        Figure(f"{what} slower by more than 1 % beyond two standard errors", surely, "workloads", goal="0"),
        Figure(f"{what}: 5th percentile", values[int(0.05 * count)], "x"),
        Figure(f"{what}: median", statistics.median(values), "x"),
        Figure(f"{what}: 95th percentile", values[int(0.95 * count)], "x"),
        Figure(f"{what}: mean", statistics.mean(values), "x"),
    ]  # fmt: skip


if __name__ == "__main__":
    main()
