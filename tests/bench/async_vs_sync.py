"""Asynchronous against synchronous training, in virtual time: the real loops, fake engines.

The regime is generation-bound with heavy-tailed lengths: lognormal with p99 / median = 8.1, 32 prompts of 8
responses per step, 4 engines, one token per 10 ms and 0.1 ms more for each running request, training
a fifth of the generation's time. The baseline is the same code with maxStaleness 0, in the same run.

    python -m tests.bench.async_vs_sync
"""

import statistics

import numpy as np

from rljob_runtime.engines.fake import FakeTiming
from rljob_runtime.engines.protocol import Request
from rljob_runtime.groups.staleness import StalenessController
from tests.bench.figures import Figure, record
from tests.support.simulated.simulated_job import Scenario, SimulatedJob

MEDIAN_TOKENS = 200
SIGMA = 0.9
STEPS = 60


def length_of(request: Request) -> int:
    """Lognormal response length, in tokens."""
    return max(1, int(MEDIAN_TOKENS * np.exp(SIGMA * np.random.default_rng(request.seed).standard_normal())))


class AggregateBound(StalenessController):
    """Admission alone, as published systems have it: takes any batch that is ready, whatever is left over."""

    def select(self, step: int) -> tuple[int, ...] | None:
        size = self.batch_size()
        ready = sorted(uid for uids in self._ready.values() for uid in uids)
        return tuple(ready[:size]) if len(ready) >= size else None


def run(max_staleness: float, controller: type[StalenessController] = StalenessController) -> SimulatedJob:
    scenario = Scenario(
        steps=STEPS, groups_per_step=32, samples_per_prompt=8, max_staleness=max_staleness, engines=4,
        max_running=128, length_of=length_of, train_seconds=5.0, controller=controller,
        timing=FakeTiming(
            step_seconds=0.01, sequence_seconds=0.0001, prefill_seconds=0.00001, load_seconds=0.1
        ),
    )  # fmt: skip
    return SimulatedJob(scenario).run()


def main() -> None:
    sync = run(0)
    lengths = [len(sample.tokens) for group in sync.trained for sample in group.samples]
    tail = float(np.percentile(lengths, 99) / np.median(lengths))
    baseline = sync.samples_per_second
    sync_step = statistics.mean(b.ended - a.ended for a, b in zip(sync.steps, sync.steps[1:], strict=False))
    figures = [
        Figure("lengths p99 / median", tail, "ratio"),
        Figure("sync step", sync_step, "virtual s"),
    ]
    for name, job in {
        "async, hard bound 1": run(1),
        "async, hard bound 2": run(2),
        "async, hard bound 4": run(4),
        "async, aggregate bound 1 (admission only)": run(1, AggregateBound),
    }.items():
        worst = max(step.staleness_max for step in job.steps)
        figures.append(Figure(f"{name}: samples", job.samples_per_second, "samples / virtual s", baseline))
        figures.append(Figure(f"{name}: largest staleness", worst, "versions"))
    record("async_vs_sync", figures)


if __name__ == "__main__":
    main()
