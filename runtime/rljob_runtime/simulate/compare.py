"""One job under several policies, and with pools of several sizes. Pure."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from rljob_api.job import Spec
from rljob_api.pools import MOST_WORKERS
from rljob_runtime.parallel.busy_ranks import busy_ranks
from rljob_runtime.simulate.outcome import Outcome
from rljob_runtime.simulate.site import Site, Sizes, allowed, routed
from rljob_runtime.simulate.workload import Workload

Draw = Callable[[Site, int], Workload]
"""The workload of a site and a seed."""
_HEAVY_SHARES = (0.1, 0.2, 0.35, 0.5)
"""Parts of the rollout workers that are tried as the heavy pool."""
_EVERY = 64
"""So many splits at both ends are tried, each of them; towards the middle ever fewer."""
_APART = 32
"""There the distance from one to the next is that to the nearer end, divided by this."""


@dataclass(frozen=True)
class Spread:
    """A figure over several seeds."""

    mean: float
    deviation: float
    """Standard deviation; 0 of a single seed."""

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        found = list(values)
        return cls(statistics.mean(found), statistics.stdev(found) if len(found) > 1 else 0.0)


@dataclass(frozen=True)
class Compared:
    """What a policy comes to."""

    policy: str
    """Its name in rollout.routing."""
    outcomes: Sequence[Outcome]
    """One of each seed."""

    def spread(self, figure: Callable[[Outcome], float]) -> Spread:
        """A figure over the seeds."""
        return Spread.of(figure(outcome) for outcome in self.outcomes)


@dataclass(frozen=True)
class Sized:
    """What pools of some sizes come to."""

    sizes: Sizes
    samples_per_second: float
    idle: float
    """Mean share of the time in which an engine has nothing to do."""


def policies(spec: Spec) -> list[str]:
    """Names, in rollout.routing, of the policies that a job may have and that differ for it, with its own."""
    pools, routing = spec.pools, spec.training.rollout.routing
    names = ["adjacent", "interleaved", "leastInFlight", "adaptive"]
    both = pools.heavy_rollout.replicas and pools.fast_rollout.replicas
    if (routing is not None and routing.probe is not None) or (both and allowed(routed(spec, "probe"))):
        names.insert(3, "probe")
    return names


def own_policy(spec: Spec) -> str:
    """The name of the policy that a job has."""
    routing = spec.training.rollout.routing
    return "adaptive" if routing is None else routing.yaml_choice


def compare(site: Site, draw: Draw, seeds: Sequence[int], names: Iterable[str]) -> list[Compared]:
    """The job under each of these policies, on the same workloads."""
    workloads = [draw(site, seed) for seed in seeds]
    found = []
    for name in names:
        under = replace(site, spec=routed(site.spec, name))
        found.append(Compared(name, [under.run(work) for work in workloads]))
    return found


def best_sizes(
    site: Site, draw: Draw, seeds: Sequence[int], accelerators: int, trainers: int | None = None
) -> list[Sized]:
    """The pool sizes that were tried with at most so many accelerators, the fastest first; only those with so
    many `trainers`, where they are given. The job may have each of them.

    First the trainer's size is varied, without a heavy pool where the job may be without one: more trainers
    shorten training and leave fewer engines, so that there is one best place. Around it, heavy pools of
    several sizes are tried. Raises `ValueError` where the accelerators do not suffice for a trainer and an
    engine, are more than pools may have, or no sizes fit the job's settings."""
    tried: dict[Sizes, Sized] = {}

    def rate(sizes: Sizes) -> float:
        if sizes not in tried:
            sized = replace(site, spec=sizes.applied(site.spec))
            found = [sized.run(draw(sized, seed)) for seed in seeds]
            tried[sizes] = Sized(
                sizes,
                statistics.mean(each.samples_per_second for each in found),
                statistics.mean(each.idle for each in found),
            )
        return tried[sizes].samples_per_second

    widest = _splits(site.spec, accelerators, trainers)
    fitting = (_first_fitting(site.spec, sizes, accelerators) for sizes in widest)
    splits = thinned(_with_work(site.spec, [sizes for sizes in fitting if sizes is not None]))
    if not splits:
        raise ValueError(
            f"no pools of {accelerators} accelerators fit the job: {widest[-1].refusal(site.spec)}"
        )
    best = _peak(splits, rate)
    # The best first: whoever gives up on the way has most of what matters.
    for sizes in (splits[best], *splits[max(0, best - 1) : best], *splits[best + 1 : best + 2]):
        for heavy in _with_heavy(site.spec, sizes, accelerators):
            if heavy.refusal(site.spec) is None:
                rate(heavy)
    return sorted(tried.values(), key=lambda sized: -sized.samples_per_second)


def _splits(spec: Spec, accelerators: int, trainers: int | None) -> list[Sizes]:
    """Every trainer size, or that of so many `trainers` alone, with as many fast engines as remain and a pool
    may have. Raises `ValueError` where the accelerators are too few or too many."""
    largest = Sizes(MOST_WORKERS, MOST_WORKERS, MOST_WORKERS).accelerators(spec)
    if accelerators > largest:
        raise ValueError(
            f"{accelerators} accelerators are more than a job may have: {largest}, with {MOST_WORKERS} "
            "workers in each pool"
        )
    trainer, fast = (
        spec.pools.trainer.accelerators_per_worker, spec.pools.fast_rollout.accelerators_per_worker
    )  # fmt: skip
    found = []
    for count in range(1, min(MOST_WORKERS, accelerators // trainer) + 1):
        engines = min(MOST_WORKERS, (accelerators - count * trainer) // fast)
        if engines >= 1 and trainers in (None, count):
            found.append(Sizes(count, engines, 0))
    if not found:
        told = f"{accelerators} accelerators are" if accelerators > 1 else "1 accelerator is"
        raise ValueError(
            f"{told} too few for one trainer worker and one fast engine, which have "
            f"{Sizes(1, 1, 0).accelerators(spec)} together"
        )
    return found


def _first_fitting(spec: Spec, widest: Sizes, accelerators: int) -> Sizes | None:
    """The smallest heavy pool with which the job may have this trainer; None where it may not with any."""
    tries = (widest, *_with_heavy(spec, widest, accelerators))
    return next((sizes for sizes in tries if sizes.refusal(spec) is None), None)


def _with_work(spec: Spec, splits: Sequence[Sizes]) -> list[Sizes]:
    """Of splits by the trainer's size those with more ranks that have something to train than any before
    them: the others would take from the engines what makes no step shorter."""
    found: list[Sizes] = []
    most = 0
    for sizes in splits:
        if (busy := busy_ranks(sizes.applied(spec))) > most:
            found.append(sizes)
            most = busy
    return found


def thinned(splits: Sequence[Sizes]) -> list[Sizes]:
    """Of splits by the trainer's size those that differ enough to be tried, a few hundred at most: one worker
    more or less tells where a pool is small, be it the trainer's at the beginning or the engines' at the end,
    and nothing where both are large."""
    last = len(splits) - 1
    near: list[int] = []
    place = 0
    while place <= last // 2:
        near.append(place)
        place += 1 if place < _EVERY else place // _APART
    return [splits[place] for place in sorted({*near, *(last - place for place in near)})]


def _peak(splits: Sequence[Sizes], rate: Callable[[Sizes], float]) -> int:
    """The index of the best split. Rates rise to it and fall after it, so that of two splits the slower one
    and all beyond it need not be tried (ternary search)."""
    low, high = 0, len(splits) - 1
    while high - low > 2:
        third = (high - low) // 3
        left, right = low + third, high - third
        if rate(splits[left]) < rate(splits[right]):
            low = left + 1
        else:
            high = right - 1
    return max(range(low, high + 1), key=lambda place: rate(splits[place]))


def _with_heavy(spec: Spec, sizes: Sizes, accelerators: int) -> list[Sizes]:
    """The same trainer, with part of the engines in the heavy pool; the job's own sizes, where they have this
    trainer, among them."""
    pools = spec.pools
    fast, heavy = pools.fast_rollout.accelerators_per_worker, pools.heavy_rollout.accelerators_per_worker
    left = accelerators - sizes.trainer * pools.trainer.accelerators_per_worker
    found = {
        Sizes(sizes.trainer, min(MOST_WORKERS, (left - count * heavy) // fast), count)
        for share in _HEAVY_SHARES
        if (count := min(MOST_WORKERS, max(1, round(share * left / heavy)))) * heavy + fast <= left
    }
    own = Sizes.of(spec)
    if own.trainer == sizes.trainer and own.fast and own.accelerators(spec) <= accelerators:
        found.add(own)
    return sorted(found, key=lambda each: each.heavy)
