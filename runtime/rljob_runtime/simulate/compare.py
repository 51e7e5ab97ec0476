"""One job under several policies, and with pools of several sizes. Pure."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from rljob_api.job import Spec
from rljob_runtime.simulate.outcome import Outcome
from rljob_runtime.simulate.site import Site, Sizes, allowed, routed
from rljob_runtime.simulate.size_search import Room, search
from rljob_runtime.simulate.workload import Workload

Draw = Callable[[Site, int], Workload]
"""The workload of a site and a seed."""
_COMPARED = 8
"""So many of the sizes that were tried are simulated with every seed."""


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


@dataclass(frozen=True)
class BestSizes:
    """What a search found."""

    fastest: list[Sized]
    """On the workloads of all seeds, the fastest first."""
    tried: int
    """Sizes that were simulated."""


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
    site: Site,
    draw: Draw,
    seeds: Sequence[int],
    accelerators: int,
    suits: Callable[[Sizes], bool] = lambda _: True,
) -> BestSizes:
    """The fastest pool sizes with at most so many accelerators, of those that `search` tries on the workload
    of the first seed; the job's own ones among them, where they suffice for those. Of equally fast ones those
    with fewer heavy workers go first. The job may have each of them, and each `suits`. Raises `ValueError`
    where the accelerators do not suffice for a trainer and an engine, are more than pools may have, or no
    sizes fit the job's settings."""
    room = Room(site.spec, accelerators, suits)
    if (problem := room.problem) is not None:
        raise ValueError(problem)
    rates = search(room, lambda sizes: sized_as(site, draw, seeds[:1], sizes).samples_per_second)
    if not rates:
        raise ValueError(f"no pools of {accelerators} accelerators fit the job: {room.refusal}")
    fastest = sorted(rates, key=lambda sizes: (-rates[sizes], sizes.heavy))[:_COMPARED]
    own = Sizes.of(site.spec)
    if own in rates and own not in fastest:
        fastest.append(own)
    found = [sized_as(site, draw, seeds, sizes) for sizes in fastest]
    found.sort(key=lambda sized: (-sized.samples_per_second, sized.sizes.heavy))
    return BestSizes(found, len(rates))


def sized_as(site: Site, draw: Draw, seeds: Sequence[int], sizes: Sizes) -> Sized:
    """What pools of these sizes come to on the workloads of these seeds."""
    sized = replace(site, spec=sizes.applied(site.spec))
    found = [sized.run(draw(sized, seed)) for seed in seeds]
    return Sized(
        sizes,
        statistics.mean(each.samples_per_second for each in found),
        statistics.mean(each.idle for each in found),
    )
