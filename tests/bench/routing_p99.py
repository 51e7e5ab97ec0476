"""How soon the last groups of a step could be complete at all: the work of `routing_real` on four GPUs,
simulated, beside what no policy can go below.

The lengths are those that `routing_real` forces on three engines with sixteen requests each (96 prompts with
8 responses a step, bound 0), and engines cost what the second machine's run with least in flight was fitted
to. A step, and so its last group, is complete no sooner than

- its longest response, if that begins at once: each of its tokens takes a step of its engine;
- all of its responses, if no slot is ever empty.

*The bound* is the larger of the two of each step, with what the begins of requests take in either. The
baseline of all is least in flight. "Lengths known": adaptive routing that is told the true lengths, so that
its estimates are no part of what is left.

    python -m tests.bench.routing_p99 [--steps 11]
"""

import tempfile
from pathlib import Path

import numpy as np

from rljob_runtime.routing.policy import Policy
from rljob_runtime.simulate.assumptions import Assumptions
from rljob_runtime.simulate.workload import Lengths
from tests.bench.figures import Figure, parser, record
from tests.bench.real_runs import LENGTHS, write_lengths
from tests.bench.routing_clairvoyant import told
from tests.bench.routing_predicted import Generation, predicted
from tests.bench.routing_real import BASELINE, GPU, POLICIES, SKIPPED, Work, job_of, lengths

WORK = Work(96, GPU.cap, GPU.mean, GPU.limit)
ENGINES = 3
COSTS = Assumptions.model_validate(
    {
        "engines": {
            "fast": {
                "fixedSeconds": 0.002291, "secondsPerRequest": 7.865e-06, "secondsPerKvToken": 0.0,
                "secondsPerPrefillToken": 4.343e-05, "graphs": [], "kvTokens": None,
            },
            "admissionSeconds": 0.006298,
        },
        "trainer": {"secondsPerStep": 2.329, "secondsPerToken": 3.289e-06},
        "weightDeliverySeconds": 0.05174,
        "weightSyncSeconds": 0.02156,
        "trainerSendsWeights": True,
        "lengths": {"mean": 498.3, "betweenPrompts": 1.196, "withinPrompt": 0.299, "promptTokens": 37},
    }
)  # fmt: skip
"""By `rljob trace fit`."""
TRIED = ("adjacent", "interleaved", "adaptive", "adaptive, one engine heavy", "P-DSR, one engine heavy")


def bound(drawn: Lengths) -> np.ndarray:
    """Seconds of each step before which its last group cannot be complete: [steps]."""
    costs = COSTS.engines.fast
    alone = costs.fixed_seconds + costs.seconds_per_request
    full = costs.fixed_seconds + WORK.limit * costs.seconds_per_request
    each = drawn.reshape(-1, WORK.prompts * drawn.shape[1])
    begins = COSTS.engines.admission_seconds
    by_longest = each.max(axis=1) * alone + begins
    by_all = each.sum(axis=1) / (ENGINES * WORK.limit) * full + each.shape[1] / ENGINES * begins
    found: np.ndarray = np.maximum(by_longest, by_all)
    return found


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--steps", type=int, default=11, help="the first is not counted")
    options = arguments.parse_args()
    options.gpus, options.engines = ENGINES + 1, ENGINES
    drawn = lengths(WORK, options.steps)
    with tempfile.TemporaryDirectory() as scratch:
        write_lengths(Path(scratch), drawn, WORK.cap)
        trace = Path(scratch) / LENGTHS

        def of(name: str, policy: Policy | None = None) -> Generation:
            return predicted(job_of(options, WORK, *POLICIES[name]), COSTS, trace, policy).after(SKIPPED)

        found = {name: of(name) for name in (BASELINE, *TRIED)}
        found["adaptive, lengths known"] = of("adaptive", told(drawn, WORK.cap))
    record("routing_p99", figures(found, bound(drawn)[SKIPPED:]), options.out)


def figures(found: dict[str, Generation], least: np.ndarray) -> list[Figure]:
    """Of each policy, and of what none goes below."""
    base = found[BASELINE]
    rows = []
    for name, each in found.items():
        goal = "≤ 0.7 x" if name == "adaptive" else None
        rows.append(
            Figure(f"{name}: group complete, from the step's begin, p99", each.p99, "s", base.p99, goal)
        )
        rows.append(Figure(f"{name}: a step", each.seconds.mean(), "s", base.seconds.mean()))
    return [*rows, Figure("the bound: a step", float(least.mean()), "s", base.seconds.mean())]


if __name__ == "__main__":
    main()
