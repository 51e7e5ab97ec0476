"""Pool sizes that `rljob simulate --size` finds, beside all that there are.

Every case is a job with so many accelerators. All sizes are simulated that the job may have and that leave
no accelerator which another fast engine could have, or that have no fast pool; the fastest of them is the
baseline. What is found is the first line that the command prints. Both are means of the same workloads.

    python -m tests.bench.size_search
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rljob_api import RLJob
from rljob_api.job import Spec
from rljob_runtime.simulate.assumptions import Assumptions
from rljob_runtime.simulate.compare import best_sizes, sized_as
from rljob_runtime.simulate.site import Site, Sizes
from rljob_runtime.trace.forecast.workloads import drawn
from tests.bench.figures import Figure, parser, record
from tests.support.jobs import job

SEEDS = range(3)
STEPS = 4
GOAL = "no size 2 % faster than what is found"
QUICK: dict[str, Any] = {
    "trainer": {"secondsPerStep": 0.1, "secondsPerToken": 1e-6},
    "lengths": {"betweenPrompts": 1.0},
}
"""A trainer that has little to do, beside lengths with a longer tail."""
QUICKER_HEAVY = {
    "engines": {"heavy": {"fixedSeconds": 0.003, "secondsPerRequest": 1e-4}},
    "trainer": {"secondsPerStep": 0.1, "secondsPerToken": 1e-5},
    "lengths": {"mean": 40, "betweenPrompts": 1.8},
    "weightSyncSeconds": 0.1,
}
"""A heavy engine that is fast with few requests, and slow with many."""


@dataclass(frozen=True)
class Case:
    """A job, and how many accelerators it gets."""

    name: str
    each: int
    """Accelerators of a heavy engine; one of another worker."""
    assumed: dict[str, Any] = field(default_factory=dict)
    accelerators: int = 16
    own: tuple[int, int, int] = (1, 2, 1)
    """Workers of trainer, fast and heavy pool."""
    prompts: int = 16

    def site(self) -> Site:
        """Steps of 8 responses to each prompt, of at most 512 tokens."""
        trainer, fast, heavy = self.own
        changes = {
            "accelerator": "nvidia",
            "pools.trainer.replicas": trainer,
            "pools.fastRollout.replicas": fast,
            "pools.heavyRollout": {"replicas": heavy, "acceleratorsPerWorker": self.each},
            "training.rollout": {"samplesPerPrompt": 8, "maxResponseTokens": 512},
            "training.model": {"random": {"maxPositionEmbeddings": 1024}},
            "training.schedule": {"totalSteps": 32, "promptsPerBatch": self.prompts},
        }
        spec = RLJob.model_validate(job(changes)).spec
        return Site(spec, Assumptions.model_validate(self.assumed), STEPS)


CASES = (
    Case("2 accelerators for a heavy engine, 1 for another worker", 2),
    Case("4 for a heavy engine", 4),
    Case("2 for a heavy engine, a quick trainer", 2, QUICK),
    Case("4 for a heavy engine, a quick trainer", 4, QUICK),
    Case("4 for a heavy engine, which is for few requests", 4, QUICKER_HEAVY, prompts=64),
    Case("2 for a heavy engine, the job has no fast pool", 2, own=(8, 0, 4)),
    Case("4 for a heavy engine, the job has no fast pool", 4, own=(8, 0, 2)),
    Case("4 for a heavy engine, a quick trainer, 32 in all", 4, QUICK, accelerators=32),
)


def all_sizes(spec: Spec, accelerators: int) -> Iterator[Sizes]:
    """Those that a job with one accelerator for each trainer and fast engine may have."""
    each = spec.pools.heavy_rollout.accelerators_per_worker
    for trainer in range(1, accelerators):
        for heavy in range((accelerators - trainer) // each + 1):
            left = accelerators - trainer - each * heavy
            for fast in {left, 0 if heavy else left}:
                if (sizes := Sizes(trainer, fast, heavy)).refusal(spec) is None:
                    yield sizes


def figure(case: Case) -> Figure:
    """Samples per second of what is found, beside the best of all."""
    site = case.site()
    found = best_sizes(site, drawn, SEEDS, case.accelerators)
    known = list(all_sizes(site.spec, case.accelerators))
    best = max(sized_as(site, drawn, SEEDS, sizes).samples_per_second for sizes in known)
    first = found.fastest[0]
    sizes = f"{first.sizes.trainer}/{first.sizes.fast}/{first.sizes.heavy}"
    name = f"{case.name}: {sizes}, {found.tried} tried of {len(known)}"
    return Figure(name, first.samples_per_second, "samples/s", best, GOAL)


def main() -> None:
    options = parser(__doc__).parse_args()
    record("size_search", [figure(case) for case in CASES], options.out)


if __name__ == "__main__":
    main()
