"""Adaptive routing where lengths are not what its estimate takes them for: lengths that are uniform, all the
same, of two kinds, or geometric, beside lognormal ones; engines of a heavy pool that are slower and faster
than the others, or none; prefills that cost many decode steps; single batches, and jobs with a trainer.

The figures are times as fast as least in flight, over all batches of a family.

    python -m tests.bench.routing_hostile [FAMILY ...]
"""

import dataclasses
import statistics
from collections.abc import Iterable
from typing import Any

import numpy as np

from rljob_runtime.groups.staleness import Bound
from rljob_runtime.routing.policy import Policy
from rljob_runtime.routing.router import Router
from rljob_runtime.simulate.batch import simulate_batch
from rljob_runtime.simulate.job import JobModel, simulate_job
from rljob_runtime.simulate.physics import Physics
from rljob_runtime.simulate.workload import LengthModel, Lengths, Workload
from tests.bench.figures import Figure, parser, record, take_names
from tests.bench.routing_sites import GPU, Site

BATCHES = 4
"""Of each workload; jobs, where it is one."""
STEPS = 4
"""Of a job."""
_CAP = 8192
_SITE = Site(
    "hostile", 32, 8, 5, 64, 400_000, LengthModel(2048, _CAP, prompt_tokens=128), GPU,
    Physics(report_seconds=0.5),
)  # fmt: skip
DEAR = GPU._replace(per_prefill_token=20 * GPU.fixed / 1024)
"""Moving a response costs some 20 decode steps."""
FAMILIES = ("uniform", "constant", "of two kinds", "geometric", "lognormal", "lognormal, alike")
SITES = {
    **{f"heavy at {speed} x": (dataclasses.replace(_SITE, speed=speed), 1) for speed in (0.5, 1.0, 2.0, 4.0)},
    "heavy at 2 x, dear prefill": (dataclasses.replace(_SITE, speed=2.0, cost=DEAR), 1),
    "heavy at 2 x, few prompts": (dataclasses.replace(_SITE, speed=2.0, groups=8), 1),
    "no heavy pool": (_SITE, 0),
    "no heavy pool, dear prefill": (dataclasses.replace(_SITE, cost=DEAR), 0),
}
"""Engines, and how many of them are the heavy pool."""
BOUNDS: tuple[float | None, ...] = (None, 1)
"""Staleness of a job; None: single batches."""


def lengths_of(family: str, shape: tuple[int, int], seed: int) -> Lengths:
    r, mean = np.random.default_rng(seed), _SITE.lengths.mean
    match family:
        case "uniform":
            found = r.integers(1, int(2 * mean), shape)
        case "constant":
            found = np.full(shape, int(mean))
        case "of two kinds":
            short, long = r.integers(1, int(mean), shape), r.integers(int(0.6 * _CAP), _CAP, shape)
            found = np.where(r.random(shape) < 0.1, long, short)
        case "geometric":
            found = r.geometric(1 / mean, shape)
        case _:
            between, within = (0.8, 0.2) if family == "lognormal, alike" else (0.0, 0.6)
            found = LengthModel(mean, _CAP, between, within).draw(*shape, seed).lengths
    return np.clip(found, 1, _CAP).astype(np.int64)


def seconds(family: str, site: Site, heavy: int, bound: float | None, policy: Policy, seed: int) -> float:
    """Of one batch, or job."""
    groups = site.groups if bound is None else STEPS * site.groups
    lengths = lengths_of(family, (groups, site.samples), seed)
    work = Workload(lengths, np.full(groups, site.lengths.prompt_tokens), np.arange(groups))
    shapes, router = site.shapes(heavy), Router(policy)
    if bound is None:
        return simulate_batch(work, shapes, site.physics, router).wall
    model = JobModel(Bound(bound, site.groups), STEPS, 10.0)
    return simulate_job(work, shapes, site.physics, router, model).wall


def ratio(family: str, name: str, bound: float | None, seeds: Iterable[int] = range(BATCHES)) -> float:
    """Times as fast as least in flight, all batches together."""
    site, heavy = SITES[name]

    def total(routing: dict[str, Any]) -> float:
        policies = ((seed, site.policy(routing, heavy)) for seed in seeds)
        return sum(seconds(family, site, heavy, bound, policy, seed) for seed, policy in policies)

    return total({"leastInFlight": {}}) / total({"adaptive": {}})


def main() -> None:
    """All families, or those that are named; figures of the others are kept."""
    line = parser(__doc__)
    take_names(line, FAMILIES, "FAMILY")
    options = line.parse_args()
    for family in options.names or FAMILIES:
        found: dict[str, float] = {}
        for bound in BOUNDS:
            for name in SITES:
                place = f"{name}, {'one batch' if bound is None else 'a job'}"
                found[place] = ratio(family, name, bound)
                print(f"{family}, {place}: {found[place]:.3f}", flush=True)
        slowest = min(found, key=lambda place: found[place])
        figures = [
            Figure(
                f"{family}, slowest of {len(found)} ({slowest})", found[slowest], "x", goal="at least 0.99"
            ),
            Figure(f"{family}, mean", statistics.mean(found.values()), "x"),
        ]
        record("routing_hostile", figures, options.out, keep=True)


if __name__ == "__main__":
    main()
