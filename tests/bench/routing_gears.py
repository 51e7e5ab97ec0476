"""What plans that measure their engines would gain by knowing the sizes of captured graphs (`routing/gears`).

Batches with adaptive routing whose plans know of the engines only what these tell, and the same plans told
the sizes, with which they also fit what a step costs. Engines compute the next larger size in both.

    python -m tests.bench.routing_gears
"""

from typing import Any

from rljob_runtime.routing.cost import StepCost
from rljob_runtime.routing.cost_fit import PREFILL_SHARE, CostFit
from rljob_runtime.routing.gears import capture_sizes
from rljob_runtime.routing.policy import Policy
from rljob_runtime.simulate.batch import simulate_batch
from rljob_runtime.simulate.measured_plans import MeasuredPlans
from rljob_runtime.simulate.physics import Physics
from rljob_runtime.simulate.workload import LengthModel
from tests.bench.figures import Figure, parser, record
from tests.bench.routing_sites import VLLM_GRAPHS, Site

LIMIT, BATCHES = 64, 6
Gears = tuple[int, ...]
SIZES: dict[str, Gears] = {
    "as jobs capture them": tuple(capture_sizes(LIMIT)),
    "as vLLM captures them": VLLM_GRAPHS,
    "powers of two": tuple(2**power for power in range(10)),
    "1, 8, 32, 128, 512": (1, 8, 32, 128, 512),
}
PER_REQUEST = (2e-5, 1e-4)
"""Seconds of a step for each request; the step itself takes 8 ms."""
BATCH = ((24, 0), (64, 0), (64, 2))
"""Groups of eight responses, and how many of eight engines are the heavy pool."""
_ADAPTIVE: dict[str, Any] = {"adaptive": {}}


class _Fit(CostFit):
    """A fit to what is computed in a step, in place of what runs."""

    def __init__(self, gears: Gears) -> None:
        super().__init__()
        self._gears = gears

    def add(self, step_seconds: float, running: int, kv_tokens: float, prefilled: float = 0.0) -> None:
        computed = StepCost(gears=self._gears).gear(running)
        super().add(step_seconds, int(computed), kv_tokens, prefilled)

    def cost(self, assumed_share: float = PREFILL_SHARE) -> StepCost | None:
        found = super().cost(assumed_share)
        return None if found is None else found._replace(gears=self._gears)


class _Fits(dict[str, CostFit]):
    """Of each pool, by its name."""

    def __init__(self, gears: Gears) -> None:
        super().__init__()
        self._gears = gears

    def setdefault(self, pool: str, default: CostFit | None = None) -> CostFit:
        return super().setdefault(pool, _Fit(self._gears))


def told(policy: Policy, gears: Gears) -> MeasuredPlans:
    """Plans that know the sizes."""
    made = MeasuredPlans(policy)
    made.measured._fits = _Fits(gears)
    return made


def gain(gears: Gears, per_request: float, groups: int, heavy: int) -> float:
    """How many times as fast the batches are for plans that know the sizes."""
    cost = StepCost(0.008, per_request, 4.3e-8, 0.006 * 0.008, gears)
    lengths = LengthModel(2000, 16384, 0.6, 0.4, prompt_tokens=256)
    physics = Physics(report_seconds=1.0)
    site = Site("", groups, 8, 8, LIMIT, 3_000_000, lengths, cost, physics)
    without = knowing = 0.0
    for seed in range(BATCHES):
        work, shapes = site.draw(seed), site.shapes(heavy)
        plain = MeasuredPlans(site.policy(_ADAPTIVE, heavy))
        without += simulate_batch(work, shapes, physics, plain).wall
        knowing += simulate_batch(work, shapes, physics, told(site.policy(_ADAPTIVE, heavy), gears)).wall
    return without / knowing


def main() -> None:
    options = parser(__doc__).parse_args()
    figures = []
    for name, gears in SIZES.items():
        found = [gain(gears, each, *batch) for each in PER_REQUEST for batch in BATCH]
        figures += [
            Figure(f"sizes {name}: largest gain of {len(found)} kinds of batches", max(found), "x"),
            Figure(f"sizes {name}: smallest", min(found), "x"),
        ]
    record("routing_gears", figures, options.out)


if __name__ == "__main__":
    main()
