"""Asynchronous against synchronous training, in virtual time: the real loops, fake engines.

The regime is generation-bound with heavy-tailed lengths: lognormal with p99 / median = 8.1, 32 prompts of 8
responses per step, 4 engines, one token per 10 ms and 0.1 ms more for each running request, training
a fifth of the generation's time. The baseline is the same code with maxStaleness 0, in the same run.

    python -m tests.bench.async_vs_sync
"""

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rljob_runtime.engines.fake import FakeTiming
from rljob_runtime.engines.protocol import Request
from rljob_runtime.groups.masking import context_tokens
from rljob_runtime.groups.staleness import StalenessController
from rljob_runtime.routing.adaptive import Adaptive
from rljob_runtime.routing.fixed import Adjacent, Interleaved
from rljob_runtime.routing.policy import Policy
from rljob_runtime.trainer.outline import SampleOutline, outline_of
from tests.bench.figures import Figure, parser, record
from tests.support.simulated.simulated_job import Scenario, SimulatedJob

MEDIAN_TOKENS = 200
SIGMA = 0.9
STEPS = 60
TRAIN_SECONDS = 5.0
TIMING = FakeTiming(step_seconds=0.01, sequence_seconds=0.0001, prefill_seconds=0.00001, load_seconds=0.1)
GROUPS = 32
"""Groups of a step."""
DRAFTING = 8
"""Requests on an engine up to which it drafts, where it does."""


def length_of(request: Request) -> int:
    """Lognormal response length, in tokens."""
    return max(1, int(MEDIAN_TOKENS * np.exp(SIGMA * np.random.default_rng(request.seed).standard_normal())))


class AggregateBound(StalenessController):
    """Admission alone, as published systems have it: takes any batch that is ready, whatever is left over."""

    def select(self, step: int) -> tuple[int, ...] | None:
        size = self.batch_size()
        ready = sorted(uid for uids in self._ready.values() for uid in uids)
        return tuple(ready[:size]) if len(ready) >= size else None


def run(
    max_staleness: float,
    controller: type[StalenessController] = StalenessController,
    masks: bool = False,
    surplus: int = 0,
    policy: Callable[[], Policy] = Policy,
    **changes: Any,
) -> SimulatedJob:
    """`changes`: further fields of the scenario."""
    scenario = Scenario(
        steps=STEPS, groups_per_step=GROUPS, samples_per_prompt=8, max_staleness=max_staleness, engines=4,
        max_running=128, length_of=length_of, train_seconds=TRAIN_SECONDS, controller=controller, masks=masks,
        surplus=surplus, policy=policy,
        timing=TIMING,
    )  # fmt: skip
    return SimulatedJob(dataclasses.replace(scenario, **changes)).run()


def main() -> None:
    out = parser(__doc__).parse_args().out
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
    figures += routed_figures(sync, baseline)
    figures += shorter_figures(baseline)
    for bound in (1, 2):
        figures += masked_figures(bound, baseline)
    for bound in (0, 1, 2):
        figures += over_sampled_figures(bound, baseline)
    record("async_vs_sync", figures, out)


POLICIES: dict[str, Callable[[], Policy]] = {
    "adjacent": lambda: Adjacent(GROUPS),
    "interleaved": lambda: Interleaved(GROUPS),
    "adaptive": lambda: Adaptive(longest=100_000, plan_seconds=0.5),
}


def routed_figures(sync: SimulatedJob, baseline: float) -> list[Figure]:
    """Bound 1 under the other routing policies, and what no policy can exceed: the same lengths with every
    request at the latency of an engine that runs nothing else. `sync`: the job with bound 0."""
    figures = []
    for name, policy in POLICIES.items():
        job, what = run(1, policy=policy), f"async, hard bound 1, {name}"
        goal = "≥ 1.9 x" if name == "adaptive" else None
        figures += [
            Figure(f"{what}: samples", job.samples_per_second, "samples / virtual s", baseline, goal=goal),
            Figure(f"{what}: largest staleness", max(step.staleness_max for step in job.steps), "versions"),
        ]
    by_uid = {group.uid: max(len(sample.tokens) for sample in group.samples) for group in sync.trained}
    ended = [0.0, 0.0]
    for step in range(STEPS):
        longest = max(by_uid[uid] for uid in range(step * GROUPS, (step + 1) * GROUPS))
        generated = ended[-2] + longest * (TIMING.step_seconds + TIMING.sequence_seconds)
        ended.append(max(ended[-1], generated) + TRAIN_SECONDS)
    skipped = STEPS // 10
    rate = (STEPS - skipped) * GROUPS * 8 / (ended[-1] - ended[1 + skipped])
    name = "async, hard bound 1, every request alone on its engine: samples"
    return [*figures, Figure(name, rate, "samples / virtual s", baseline)]


@dataclasses.dataclass(frozen=True)
class Drafting(FakeTiming):
    """Engines that draft where few requests run."""

    tokens: float = 1.0
    """That a step yields each request then."""

    def step(self, running: int) -> float:
        return super().step(running) / (self.tokens if running <= DRAFTING else 1.0)


def shorter_figures(baseline: float) -> list[Figure]:
    """What shortens the slowest response itself, each alone, with bound 1 and with bound 0. `baseline`:
    samples per second of bound 0 without any of it."""
    same = dataclasses.asdict(TIMING)
    kinds: dict[str, dict[str, Any]] = {}
    for times in (2, 4):
        quick = FakeTiming(**{name: value / times for name, value in same.items()})
        kinds[f"one of four engines heavy, {times} x as fast"] = {
            "engines": 3, "heavy_engines": 1, "heavy_timing": quick, "policy": POLICIES["adaptive"],
        }  # fmt: skip
    for tokens in (1.5, 2.0):
        drafting = Drafting(**same, tokens=tokens)
        kinds[f"{tokens:g} tokens a step where at most {DRAFTING} requests run"] = {"timing": drafting}
    figures = []
    for name, changes in kinds.items():
        for bound in (0, 1):
            job, what = run(bound, **changes), f"{name}, hard bound {bound}"
            worst = max(step.staleness_max for step in job.steps)
            goal = "beyond 2.0 x" if bound else None
            figures += [
                Figure(f"{what}: samples", job.samples_per_second, "samples / virtual s", baseline, goal),
                Figure(f"{what}: largest staleness", worst, "versions"),
            ]
    return figures


def masked_figures(bound: int, baseline: float) -> list[Figure]:
    """The same job where stale tokens are masked; `baseline`: samples per second of bound 0."""
    job, name = run(bound, masks=True), f"async, stale tokens masked, bound {bound}"
    # As the trainer has them, over the whole run instead of a step.
    outlines = [outline_of(group) for group in job.trained]
    by_uid = {outline.uid: outline for outline in outlines}
    found = [
        (sample, context_tokens(sample.spans, step.step - bound))
        for step in job.steps
        for uid in step.uids
        for sample in by_uid[uid].samples
    ]
    found.sort(key=lambda each: each[0].length)
    quarters = [found[len(found) * place // 4 : len(found) * (place + 1) // 4] for place in range(4)]
    trained = 1 - masked_share(found)
    oldest = max(step.trained_age_max for step in job.steps)
    goal = "≥ 2.8 x" if bound == 1 else None
    return [
        Figure(f"{name}: samples", job.samples_per_second, "samples / virtual s", baseline, goal=goal),
        Figure(
            f"{name}: samples, weighed by their share of trained tokens", job.samples_per_second * trained,
            "samples / virtual s", baseline,
        ),
        Figure(f"{name}: oldest trained token", oldest, "versions", goal=f"≤ {bound}"),
        Figure(f"{name}: share of masked tokens", 1 - trained, "share"),
        Figure(
            f"{name}: share of responses of which no token is trained",
            sum(context == sample.length for sample, context in found) / len(found), "share",
        ),
        *(
            Figure(f"{name}: share of masked tokens, {which} quarter", masked_share(quarter), "share")
            for which, quarter in zip(("shortest", "second", "third", "longest"), quarters, strict=True)
        ),
    ]  # fmt: skip


def over_sampled_figures(bound: int, baseline: float) -> list[Figure]:
    """The same job with over-sampling by a quarter; `baseline`: samples per second of bound 0 without."""
    job = run(bound, surplus=GROUPS // 4)
    counts, name = job.rollouter.counts, f"hard bound {bound}, over-sampling 25 %"
    worst = max(step.staleness_max for step in job.steps)
    aborted = sum(counts.cancelled.values()) / counts.dispatched
    return [
        Figure(f"{name}: samples", job.samples_per_second, "samples / virtual s", baseline),
        Figure(f"{name}: largest staleness", worst, "versions"),
        Figure(f"{name}: aborted groups, of all begun", aborted, "share"),
        Figure(f"{name}: mean length of what was not aborted, of all", counts.length_bias, "ratio"),
    ]  # fmt: skip


def masked_share(found: Sequence[tuple[SampleOutline, int]]) -> float:
    """Share of the tokens of these responses that are context."""
    return sum(context for _, context in found) / sum(sample.length for sample, _ in found)


if __name__ == "__main__":
    main()
