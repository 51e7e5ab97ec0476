"""Routing policies on real engines, whole jobs on the same forced lengths: one step after the other, so that
a step waits for its last response.

Lengths are lognormal with a heavy tail, one trace for all policies. Every step has prompts of the same
spread, each time in another order; else most of what differs would be which prompts a step happened to get.
Engines run few requests at a time, so that most wait and their order matters. The baseline is least in
flight, in the same run. Every run is a job of its own: engines start, the first step warms up and is not
counted. Beside each measured ratio stands the one that the simulator predicts from the lengths and the
engine's costs, which are fitted to the baseline's run; and what it predicts with costs that are fitted to the
policy's own run, which differ where the machine had other work meanwhile. Figures are written as soon as each
policy has run; no policy begins that would not end within `--seconds` if it took as long as the one before.
"least in flight, again" at the end tells whether the machine is as fast as at the beginning.

    python -m tests.bench.routing_real --gpus 4 --engines 3 --prompts 96 --seconds 600 --out $OUT
    python -m tests.bench.routing_real [--policies adaptive interleaved]                two engines on CPUs
"""

import argparse
import math
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch  # noqa: F401 - so that `record` names the GPU

from rljob_runtime.data.length_trace import LENGTHS_FILE
from rljob_runtime.simulate.assumptions import Assumptions
from rljob_runtime.simulate.workload import Lengths, fit_mu
from rljob_runtime.trace.record.metrics_log import read_metrics
from tests.bench.figures import Figure, record
from tests.bench.real_runs import LARGE, LENGTHS, SAMPLES, SEED, SMALL, copy_job, run_job, write_lengths
from tests.bench.routing_predicted import Generation, fitted, measured, predicted

SKIPPED = 1
"""First steps, in which engines warm up."""
PROMPT_TOKENS = 128


@dataclass(frozen=True)
class Work:
    """What all policies generate."""

    prompts: int
    cap: int
    mean: float
    limit: int
    """Requests that an engine runs at a time."""


GPU, CPU = Work(64, 8192, 500.0, 16), Work(32, 512, 40.0, 8)
"""All slots together have as many tokens to generate as the longest response: the order of requests decides
most there. A random model of the 0.3 B class whose KV cache is small, so that a step takes as long whatever
runs, and time is in the number of steps."""
SHAPE = {**LARGE, "keyValueHeads": 2}


BETWEEN, WITHIN = 1.2, 0.3
"""Deviations of the logarithm of lengths, between prompts and between the responses to one."""


def lengths(work: Work, steps: int) -> Lengths:
    """[prompts, samples]: of the prompts of a step each has one of as many quantiles."""
    random = np.random.default_rng(SEED)
    mu = fit_mu(work.mean, math.hypot(BETWEEN, WITHIN), work.cap)
    quantiles = (np.arange(work.prompts) + 0.5) / work.prompts
    deviations = np.array([statistics.NormalDist().inv_cdf(each) for each in quantiles])
    prompts = np.concatenate([random.permutation(deviations) for _ in range(steps)])
    logs = mu + BETWEEN * prompts[:, None] + WITHIN * random.standard_normal((len(prompts), SAMPLES))
    found: Lengths = np.clip(np.rint(np.exp(np.minimum(logs, math.log(work.cap)))), 1, work.cap)
    return found.astype(np.int64)


@dataclass(frozen=True)
class Ran:
    """What came of a policy."""

    folder: Path
    job: dict[str, Any]
    generation: Generation
    moves: float


def job_of(options: argparse.Namespace, work: Work, routing: dict[str, Any], heavy: int) -> dict[str, Any]:
    gpu = options.gpus > 0
    return copy_job(
        "routing-real",
        gpu,
        SHAPE if gpu else SMALL,
        {"gpuMemoryUtilization": 0.35} if gpu else {"kvCacheGiB": 0.5},
        {
            "maxResponseTokens": work.cap, "maxRunningRequests": work.limit, "forcedLengths": LENGTHS,
            "routing": routing,
        },
        {
            "schedule": {"totalSteps": options.steps, "promptsPerBatch": work.prompts},
            "async": {"maxStaleness": 0},
            "parallel": {"maxTokensPerMicroBatch": work.cap + PROMPT_TOKENS},
        },
        {"fastRollout": options.engines - heavy, "heavyRollout": heavy},
    )  # fmt: skip


def run(folder: Path, job: dict[str, Any], work: Work, seconds: float) -> Ran:
    """Run a job to its end, within so many seconds."""
    folder.mkdir(parents=True)
    write_lengths(folder, lengths(work, job["spec"]["training"]["schedule"]["totalSteps"]), work.cap)
    # Where there is no GPU for the trainer alone it shares one with an engine, and works while engines wait.
    output = run_job(folder, job, seconds, "--share")
    rows = read_metrics(output / "metrics.jsonl").rows
    generation = measured(output, work.prompts).after(SKIPPED)
    return Ran(output, job, generation, rows[-1]["requests"]["continued"])


POLICIES: dict[str, tuple[dict[str, Any], int]] = {
    "least in flight": ({"leastInFlight": {}}, 0),
    "least in flight, again": ({"leastInFlight": {}}, 0),
    "adaptive": ({"adaptive": {}}, 0),
    "adaptive, one engine heavy": ({"adaptive": {}}, 1),
    "interleaved": ({"interleaved": {}}, 0),
    "adjacent": ({"adjacent": {}}, 0),
    "P-DSR, one engine heavy": ({"probe": {}}, 1),
}
BASELINE = "least in flight"
GOALS = {"adaptive": ("≥ 1.15 x", "≤ 0.7 x")}


def step_ms(assumptions: Assumptions, work: Work) -> float:
    """Milliseconds of a step of a fast engine with as many requests as it runs at a time."""
    costs = assumptions.engines.fast
    return 1000 * (costs.fixed_seconds + work.limit * costs.seconds_per_request)


def figures(
    name: str, ran: Ran, own: Assumptions, base: Ran, assumptions: Assumptions, work: Work
) -> list[Figure]:
    """Measured, beside the baseline; then predicted, by the costs of the baseline and by its own."""
    found, before = ran.generation, base.generation
    seconds = found.seconds.tolist()
    samples = work.prompts * SAMPLES
    varies = 100 * statistics.stdev(seconds) / statistics.mean(seconds) if len(seconds) > 1 else 0.0
    faster, sooner = GOALS.get(name, (None, None))
    what = f"{name} ({len(seconds)} steps, which vary by {varies:.0f} %; {ran.moves:.0f} moves)"
    rate, base_rate = samples / found.seconds.mean(), samples / before.seconds.mean()
    foreseen = predicted(ran.job, assumptions, base.folder / LENGTHS_FILE).after(SKIPPED)
    foreseen_base = predicted(base.job, assumptions, base.folder / LENGTHS_FILE).after(SKIPPED)
    by_own = predicted(ran.job, own, base.folder / LENGTHS_FILE).after(SKIPPED)
    measured_ratio = before.seconds.sum() / found.seconds.sum()
    return [
        Figure(f"{what}: generated", rate, "samples/s", base_rate, faster),
        Figure(f"{name}: group complete, from the step's begin, p99", found.p99, "s", before.p99, sooner),
        Figure(f"{name}: a step, predicted", foreseen.seconds.mean(), "s", found.seconds.mean()),
        Figure(
            f"{name}: a step, predicted by its own costs", by_own.seconds.mean(), "s", found.seconds.mean()
        ),
        Figure(
            f"{name}: an engine's step, by its own costs",
            step_ms(own, work),
            "ms",
            step_ms(assumptions, work),
        ),
        Figure(
            f"{name}: times as fast, predicted, beside measured",
            foreseen_base.seconds.sum() / foreseen.seconds.sum(),
            "x",
            measured_ratio,
            "within 5 %",
        ),
        Figure(f"{name}: p99, predicted", foreseen.p99, "s", found.p99),
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", type=int, default=0, help="0: on CPUs")
    parser.add_argument("--engines", type=int, help="default: one on each GPU, or two on CPUs")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--prompts", type=int)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--mean", type=float)
    parser.add_argument("--seconds", type=float, default=900)
    parser.add_argument("--policies", nargs="*", default=["adaptive"], choices=sorted(POLICIES))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    options.engines = options.engines or options.gpus or 2
    usual = GPU if options.gpus else CPU
    work = Work(
        options.prompts or usual.prompts, usual.cap, options.mean or usual.mean, options.limit or usual.limit
    )
    kind = f"{options.gpus}_gpus" if options.gpus else "cpu"
    until, took = time.monotonic() + options.seconds, 0.0
    with tempfile.TemporaryDirectory() as scratch:
        shown: list[Figure] = []
        base: Ran | None = None
        for place, name in enumerate([BASELINE, *options.policies]):
            left = until - time.monotonic()
            if took > left:
                print(f"{name}: left out, {left:.0f} s are left and the last one took {took:.0f} s")
                continue
            began = time.monotonic()
            job = job_of(options, work, *POLICIES[name])
            ran = run(Path(scratch) / str(place), job, work, left)
            took = time.monotonic() - began
            print(f"{name}: {took:.0f} s, steps of {ran.generation.seconds.round(1).tolist()} s", flush=True)
            own = fitted(ran.folder)
            if base is None:
                base, assumptions = ran, own
            shown += figures(name, ran, own, base, assumptions, work)
            record(f"routing_real_{kind}", shown, **({"folder": options.out} if options.out else {}))


if __name__ == "__main__":
    main()
