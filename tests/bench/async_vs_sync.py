"""Asynchronous against synchronous training, in virtual time: the real loops, fake engines.

The regime is generation-bound with heavy-tailed lengths: lognormal with p99 / median = 8.1, 32 prompts of 8
responses per step, 4 engines, one token per 10 ms and 0.1 ms more for each running request, training
a fifth of the generation's time. The baseline is the same code with maxStaleness 0, in the same run, on the
same lengths, of ten seeds.

    python -m tests.bench.async_vs_sync [PART ...]
"""

import dataclasses
import os
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rljob_runtime.engines.fake import FakeTiming
from rljob_runtime.engines.protocol import Request
from rljob_runtime.groups.masking import context_tokens
from rljob_runtime.groups.responses import response_seed
from rljob_runtime.groups.staleness import StalenessController
from rljob_runtime.routing.adaptive import Adaptive
from rljob_runtime.routing.book import Book, EngineState, RequestState
from rljob_runtime.routing.fixed import Adjacent, Interleaved
from rljob_runtime.routing.policy import Entry, Lane, Policy
from rljob_runtime.routing.requests import RequestKey
from rljob_runtime.simulate.workload import Lengths
from rljob_runtime.trainer.outline import SampleOutline, outline_of
from tests.bench.figures import Figure, parser, record, take_names
from tests.bench.routing_clairvoyant import told
from tests.support.simulated.simulated_job import Scenario, SimulatedJob

MEDIAN_TOKENS = 200
SIGMA = 0.9
STEPS = 60
SEEDS = range(10)
TRAIN_SECONDS = 5.0
TIMING = FakeTiming(step_seconds=0.01, sequence_seconds=0.0001, prefill_seconds=0.00001, load_seconds=0.1)
GROUPS = 32
"""Groups of a step."""
SAMPLES = 8
LONGEST = 100_000
"""Tokens of a response, at most."""
DRAFTING = 8
"""Requests on an engine up to which it drafts, where it does."""
QUARTERS = ("shortest", "second", "third", "longest")


def length(seed: int, of: int) -> int:
    """Lognormal response length, in tokens, by the job's seed and the response's own."""
    drawn = np.random.default_rng((seed, of) if seed else of).standard_normal()
    return max(1, int(MEDIAN_TOKENS * np.exp(SIGMA * drawn)))


def length_of(request: Request, seed: int = 0) -> int:
    """The same of a request."""
    return length(seed, request.seed)


def lengths(seed: int) -> Lengths:
    """All lengths of a job: [groups, samples]."""
    return np.array(
        [
            [length(seed, response_seed(0, uid, index)) for index in range(SAMPLES)]
            for uid in range(STEPS * GROUPS)
        ]
    )


class AggregateBound(StalenessController):
    """Admission alone, as published systems have it: takes any batch that is ready, whatever is left over."""

    def select(self, step: int) -> tuple[int, ...] | None:
        size = self.batch_size()
        ready = sorted(uid for uids in self._ready.values() for uid in uids)
        return tuple(ready[:size]) if len(ready) >= size else None


class Kept(Policy):
    """Some responses run on the heavy pool, the others on the fast one, whatever becomes of them."""

    eager = True

    def __init__(self, heavy: Collection[RequestKey]) -> None:
        self._heavy = heavy

    def serves(self, engine: EngineState, book: Book) -> tuple[Lane, ...]:
        return ("heavy",) if engine.shape.pool == "heavy" else ("fast",)

    def entry(self, request: RequestState, book: Book) -> Entry | None:
        return Entry("heavy" if request.key in self._heavy else "fast", request.key)


@dataclass(frozen=True)
class Drafting(FakeTiming):
    """Engines that draft where few requests run."""

    tokens: float = 1.0
    """That a step yields each request then."""

    def step(self, running: int) -> float:
        return super().step(running) / (self.tokens if running <= DRAFTING else 1.0)


# Policies, by the seed of a job


def least_in_flight(seed: int) -> Policy:
    return Policy()


def adjacent(seed: int) -> Policy:
    return Adjacent(GROUPS)


def interleaved(seed: int) -> Policy:
    return Interleaved(GROUPS)


def adaptive(seed: int) -> Policy:
    return Adaptive(LONGEST, plan_seconds=0.5)


def adaptive_masked(seed: int) -> Policy:
    """Where no step waits for a deadline."""
    return Adaptive(LONGEST, plan_seconds=0.5, waits=False)


def adaptive_told(seed: int) -> Policy:
    return told(lengths(seed), LONGEST)


def longest_percent(seed: int) -> Policy:
    drawn = lengths(seed)
    places = np.argwhere(drawn >= np.percentile(drawn, 99))
    return Kept({RequestKey(int(uid), int(sample)) for uid, sample in places})


# Jobs


@dataclass(frozen=True)
class Kind:
    """Jobs of one kind."""

    bound: int
    goal: str | None = None
    """Of its samples, beside those of bound 0."""
    policy: Callable[[int], Policy] = least_in_flight
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the scenario."""

    def run(self, seed: int) -> SimulatedJob:
        # With least in flight nothing is to know how far responses are.
        routed: dict[str, Any] = {}
        if self.policy is not least_in_flight:
            routed["policy"] = lambda: self.policy(seed)
        scenario = Scenario(
            steps=STEPS, groups_per_step=GROUPS, samples_per_prompt=SAMPLES, max_staleness=self.bound,
            engines=4, max_running=128, length_of=lambda request: length_of(request, seed),
            train_seconds=TRAIN_SECONDS, timing=TIMING,
        )  # fmt: skip
        return SimulatedJob(dataclasses.replace(scenario, **routed, **self.changes)).run()


def heavy(times: float) -> dict[str, Any]:
    """One of the four engines is the heavy pool, and so many times as fast."""
    quick = {name: value / times for name, value in dataclasses.asdict(TIMING).items()}
    return {"engines": 3, "heavy_engines": 1, "heavy_timing": FakeTiming(**quick)}


def drafting(tokens: float) -> dict[str, Any]:
    return {"timing": Drafting(**dataclasses.asdict(TIMING), tokens=tokens)}


HARD = "async, hard bound 1"
MASKED = "async, stale tokens masked, bound {}"
DRAFTS = "{:g} tokens a step where at most " + f"{DRAFTING} requests run"
BOUNDS = {
    HARD: Kind(1),
    "async, hard bound 2": Kind(2),
    "async, hard bound 4": Kind(4),
    "async, aggregate bound 1 (admission only)": Kind(1, changes={"controller": AggregateBound}),
}
ROUTED = {
    f"{HARD}, adjacent": Kind(1, policy=adjacent),
    f"{HARD}, interleaved": Kind(1, policy=interleaved),
    f"{HARD}, adaptive": Kind(1, goal="≥ 1.9 x", policy=adaptive),
    f"{HARD}, adaptive, one of four engines heavy, as fast as the others": Kind(
        1, goal="≥ 1.9 x", policy=adaptive, changes=heavy(1)
    ),
    f"{HARD}, adaptive, lengths known": Kind(1, policy=adaptive_told),
    f"{HARD}, one of four engines for the longest percent, lengths known": Kind(
        1, policy=longest_percent, changes=heavy(1)
    ),
}
SHORTER = {
    f"{name}, hard bound {bound}": Kind(bound, "beyond 2.0 x" if bound else None, policy, changes)
    for name, policy, changes in (
        ("one of four engines heavy, 2 x as fast", adaptive, heavy(2)),
        ("one of four engines heavy, 4 x as fast", adaptive, heavy(4)),
        (DRAFTS.format(1.5), least_in_flight, drafting(1.5)),
        (DRAFTS.format(2.0), least_in_flight, drafting(2.0)),
    )
    for bound in (0, 1)
}
"""What shortens the slowest response itself, each alone."""
GOAL_MASKED = "≥ 2.8 x"
MASKING = {
    MASKED.format(1): Kind(1, GOAL_MASKED, changes={"masks": True}),
    **{
        f"{MASKED.format(1)}, {name}": Kind(1, GOAL_MASKED, policy, {"masks": True, **changes})
        for name, policy, changes in (
            ("adjacent", adjacent, {}),
            ("interleaved", interleaved, {}),
            ("adaptive", adaptive_masked, {}),
            ("adaptive, one of four engines heavy, as fast as the others", adaptive_masked, heavy(1)),
            ("adaptive, one of four engines heavy, 2 x as fast", adaptive_masked, heavy(2)),
            (DRAFTS.format(1.5), least_in_flight, drafting(1.5)),
        )
    },
    MASKED.format(2): Kind(2, changes={"masks": True}),
}
OVER_SAMPLED = {
    f"hard bound {bound}, over-sampling 25 %": Kind(bound, changes={"surplus": GROUPS // 4})
    for bound in (0, 1, 2)
}
PARTS = {
    "bounds": BOUNDS, "routed": ROUTED, "shorter": SHORTER, "masked": MASKING, "over-sampled": OVER_SAMPLED,
}  # fmt: skip
SYNC = "sync"
KINDS = {SYNC: Kind(0)} | {name: kind for part in PARTS.values() for name, kind in part.items()}


# What comes of them


@dataclass(frozen=True)
class Outcome:
    """Of one job."""

    rate: float
    """Samples per second."""
    step: float
    """Mean seconds of a step."""
    stalest: int
    """Age of the oldest first token, in versions."""
    oldest: int
    """Age of the oldest token that is trained."""
    masked: tuple[float, ...]
    """Share of the tokens that are masked: of all, and of each quarter of the responses by length."""
    untrained: float
    """Share of the responses of which no token is trained."""
    aborted: float
    """Share of the groups that were aborted, of all begun."""
    bias: float
    """Mean length of what was not aborted, by that of all."""


def outcome(task: tuple[str, int]) -> Outcome:
    """A job of this kind, with the lengths of this seed."""
    name, seed = task
    kind = KINDS[name]
    job = kind.run(seed)
    ended = [step.ended for step in job.steps]
    # As the trainer has them, over the whole run instead of a step.
    by_uid = {outline.uid: outline for outline in map(outline_of, job.trained)}
    found = [
        (sample, context_tokens(sample.spans, step.step - kind.bound) if job.scenario.masks else 0)
        for step in job.steps
        for uid in step.uids
        for sample in by_uid[uid].samples
    ]
    found.sort(key=lambda each: each[0].length)
    quarters = [found[len(found) * place // 4 : len(found) * (place + 1) // 4] for place in range(4)]
    counts = job.rollouter.counts
    return Outcome(
        job.samples_per_second,
        (ended[-1] - ended[0]) / (len(ended) - 1),
        max(step.staleness_max for step in job.steps),
        max(step.trained_age_max for step in job.steps),
        (masked_share(found), *map(masked_share, quarters)),
        sum(context == sample.length for sample, context in found) / len(found),
        sum(counts.cancelled.values()) / counts.dispatched,
        counts.length_bias,
    )


def masked_share(found: Sequence[tuple[SampleOutline, int]]) -> float:
    """Share of the tokens of these responses that are context."""
    return sum(context for _, context in found) / sum(sample.length for sample, _ in found)


def alone(seed: int) -> float:
    """Samples per second with bound 1 that no routing exceeds: each response has an engine to itself."""
    longest = lengths(seed).reshape(STEPS, -1).max(axis=1)
    ended = [0.0, 0.0]
    for most in longest:
        generated = ended[-2] + float(most) * (TIMING.step_seconds + TIMING.sequence_seconds)
        ended.append(max(ended[-1], generated) + TRAIN_SECONDS)
    skipped = STEPS // 10
    return (STEPS - skipped) * GROUPS * SAMPLES / (ended[-1] - ended[1 + skipped])


def rates(name: str, found: Sequence[float], base: Sequence[float], goal: str | None) -> list[Figure]:
    """Samples per second of jobs of one kind; `base`: of those of bound 0, with the same lengths."""
    ratios = [one / other for one, other in zip(found, base, strict=True)]
    unit = f"x (± {statistics.stdev(ratios):.2g}, {len(ratios)} jobs)"
    return [
        Figure(name, statistics.mean(found), "samples / virtual s", statistics.mean(base), goal),
        Figure(f"{name}: times bound 0, job by job", statistics.mean(ratios), unit, goal=goal),
    ]


def figures_of(name: str, found: Sequence[Outcome], sync: Sequence[Outcome]) -> list[Figure]:
    """`sync`: bound 0, on the same lengths."""
    kind, base = KINDS[name], [each.rate for each in sync]
    figures = rates(f"{name}: samples", [each.rate for each in found], base, kind.goal)
    if kind.changes.get("masks"):
        trained = [each.rate * (1 - each.masked[0]) for each in found]
        what = f"{name}: samples, weighed by their share of trained tokens"
        figures += rates(what, trained, base, kind.goal)
        oldest = max(each.oldest for each in found)
        figures.append(Figure(f"{name}: oldest trained token", oldest, "versions", goal=f"≤ {kind.bound}"))
        for place, which in enumerate(["", *(f", {quarter} quarter" for quarter in QUARTERS)]):
            share = statistics.mean(each.masked[place] for each in found)
            figures.append(Figure(f"{name}: share of masked tokens{which}", share, "share"))
        untrained = statistics.mean(each.untrained for each in found)
        figures.append(Figure(f"{name}: share of responses of which no token is trained", untrained, "share"))
        return figures
    stalest = max(each.stalest for each in found)
    figures.append(Figure(f"{name}: largest staleness", stalest, "versions"))
    if kind.changes.get("surplus"):
        aborted = statistics.mean(each.aborted for each in found)
        bias = statistics.mean(each.bias for each in found)
        figures += [
            Figure(f"{name}: aborted groups, of all begun", aborted, "share"),
            Figure(f"{name}: mean length of what was not aborted, of all", bias, "ratio"),
        ]
    return figures


def main() -> None:
    """All parts, or those that are named; figures of the others are kept."""
    line = parser(__doc__)
    take_names(line, PARTS, "PART")
    options = line.parse_args()
    kinds = [name for part in options.names or PARTS for name in PARTS[part]]
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        found = {name: pool.map(outcome, [(name, seed) for seed in SEEDS]) for name in [SYNC, *kinds]}
        sync = list(found.pop(SYNC))
        first = lengths(SEEDS[0])
        figures = [
            Figure("lengths p99 / median", float(np.percentile(first, 99) / np.median(first)), "ratio"),
            Figure("sync step", statistics.mean(each.step for each in sync), "virtual s"),
        ]
        for name, outcomes in found.items():
            figures += figures_of(name, list(outcomes), sync)
            if name == HARD:
                what = f"{HARD}, every request alone on its engine: samples"
                limits = [alone(seed) for seed in SEEDS]
                figures += rates(what, limits, [each.rate for each in sync], None)
    record("async_vs_sync", figures, options.out, keep=bool(options.names))


if __name__ == "__main__":
    main()
