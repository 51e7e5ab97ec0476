"""The whole loop on several GPUs: one trains, the others generate, one of them as the heavy pool; with the
hard bound 0 to 3, with stale tokens masked, and with all engines as equals that get the least-loaded
request.

All runs have the same forced lengths: lognormal with a heavy tail (p99 is ten times the median), to a cap.
Each is a job of its own, run as a user runs one; its first steps warm up and are not counted. The baseline is
the same job with bound 0. Beside each measured ratio stands the one that the simulator predicts from the
lengths and from costs that are fitted to the run with bound 0. Figures are written as soon as each run has
ended; none begins that would not end within `--seconds` if it took half as long as the one before (the first
one compiles for all), and one that has no time left is ended.

    python -m tests.bench.loop_pools --gpus 4 --seconds 700 --out $OUT
    python -m tests.bench.loop_pools                              two engines on CPUs, to see that it runs
"""

import argparse
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch  # noqa: F401 - so that `record` names the GPU

from rljob_api import RLJob
from rljob_runtime.data.length_trace import LENGTHS_FILE, read_length_trace
from rljob_runtime.simulate.assumptions import Assumptions
from rljob_runtime.simulate.site import Site
from rljob_runtime.simulate.workload import LengthModel
from rljob_runtime.trace.analyse.event_files import Tally, read_steps
from rljob_runtime.trace.forecast.workloads import recorded
from rljob_runtime.trace.record.event_log import EVENTS_FOLDER
from rljob_runtime.trace.record.metrics_log import read_metrics
from tests.bench.figures import Figure, record
from tests.bench.real_runs import LENGTHS, SAMPLES, SEED, SMALL, copy_job, run_job, write_lengths
from tests.bench.routing_predicted import fitted

_QWEN3: dict[str, Any] = {
    "layers": 28, "attentionHeads": 16, "keyValueHeads": 8, "headDim": 128, "maxPositionEmbeddings": 32768,
    "vocabularySize": 151936,
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "0.6b": {**_QWEN3, "hiddenSize": 1024, "intermediateSize": 3072},
    "1.7b": {**_QWEN3, "hiddenSize": 2048, "intermediateSize": 6144},
}


class Variant(NamedTuple):
    """What differs between runs."""

    bound: int
    tokens: str
    """`async.staleTokens`."""
    routing: str
    heavy: int
    """Engines that are the heavy pool."""
    skipped: int
    """First steps, which warm engines up and fill the pipeline."""
    counted: int


BASELINE = "bound 0"
VARIANTS = {
    BASELINE: Variant(0, "wait", "adaptive", 1, 2, 4),
    "bound 1": Variant(1, "wait", "adaptive", 1, 4, 6),
    "bound 1, least in flight": Variant(1, "wait", "leastInFlight", 0, 4, 6),
    "bound 2": Variant(2, "wait", "adaptive", 1, 6, 9),
    "bound 3": Variant(3, "wait", "adaptive", 1, 8, 12),
    "masked": Variant(1, "mask", "adaptive", 1, 4, 8),
}
"""With bound 1 steps come in pairs, with bound 2 in threes, and so on: as many are counted as cut none."""


@dataclass(frozen=True)
class Ran:
    """What came of a run."""

    variant: Variant
    job: dict[str, Any]
    trace: Path
    """Of the lengths."""
    rate: float
    """Response tokens trained per second, of the counted steps."""
    samples: float
    """Samples per second, likewise."""
    busy: dict[str, float]
    """Share of the counted time in which the trainer trained, and an engine had requests, by pool."""
    oldest: int
    """Age of the oldest token that was trained, in weight versions."""
    masked: float
    """Share of the tokens that were not trained."""
    first_step: float
    """Seconds from the command to the end of its first step."""


def job_of(options: argparse.Namespace, variant: Variant) -> dict[str, Any]:
    gpu, engines = options.gpus > 0, max(2, options.gpus - 1)
    return copy_job(
        "loop-pools",
        gpu,
        SHAPES[options.shape] if gpu else SMALL,
        {"gpuMemoryUtilization": 0.85} if gpu else {"kvCacheGiB": 0.3},
        {
            "maxResponseTokens": options.cap, "maxRunningRequests": 512 if gpu else 16,
            "forcedLengths": LENGTHS, "routing": {variant.routing: {}},
        },
        {
            "schedule": {
                "totalSteps": variant.skipped + variant.counted, "promptsPerBatch": options.prompts,
            },
            "async": {"maxStaleness": variant.bound, "staleTokens": variant.tokens},
            "parallel": {"maxTokensPerMicroBatch": options.micro_batch},
        },
        {"trainer": 1, "fastRollout": engines - variant.heavy, "heavyRollout": variant.heavy},
    )  # fmt: skip


def run(folder: Path, options: argparse.Namespace, variant: Variant, seconds: float) -> Ran:
    """Run a job to its end, within so many seconds."""
    folder.mkdir(parents=True)
    job = job_of(options, variant)
    most = max(each.skipped + each.counted for each in VARIANTS.values())
    lengths = LengthModel(0.15 * options.cap, options.cap, between=0.9, within=0.5, prompt_tokens=64)
    write_lengths(folder, lengths.draw(options.prompts * most, SAMPLES, SEED).lengths, options.cap)
    began = time.time()
    output = run_job(folder, job, seconds, "--no-live")
    rows = read_metrics(output / "metrics.jsonl").rows
    counted = rows[variant.skipped :]
    first, last = rows[variant.skipped - 1]["time"], rows[-1]["time"]
    masks = [row["masked"] for row in counted if row.get("masked")]
    return Ran(
        variant, job, output / LENGTHS_FILE,
        sum(row["response_tokens"] for row in counted) / (last - first),
        sum(row["samples"] for row in counted) / (last - first),
        busy_shares(output, first, last),
        int(max([each["oldest_trained"] for each in masks] or [row["staleness_max"] for row in counted])),
        float(np.mean([each["tokens"] for each in masks] or [0.0])),
        rows[0]["time"] - began,
    )  # fmt: skip


def busy_shares(output: Path, first: float, last: float) -> dict[str, float]:
    """By pool, of the time between two instants: the share in which its workers were not idle, their mean."""
    idle: dict[str, dict[str, float]] = {}
    for event in (one for _, found in read_steps(output / EVENTS_FOLDER, Tally()) for one in found):
        if event.pool not in ("trainer", "fast", "heavy"):
            continue
        workers = idle.setdefault(event.pool, {})
        workers.setdefault(event.worker, 0.0)
        if event.event == "idle":
            workers[event.worker] += max(0.0, min(event.end, last) - max(event.start, first))
    return {pool: 1 - sum(workers.values()) / len(workers) / (last - first) for pool, workers in idle.items()}


def simulated(ran: Ran, assumptions: Assumptions) -> float:
    """Samples per second that the simulator predicts of a run's counted steps."""
    spec = RLJob.model_validate(ran.job).spec
    steps = ran.variant.skipped + ran.variant.counted
    site = Site(spec, assumptions, steps)
    ends = site.run(recorded(read_length_trace(ran.trace))(site, 0)).steps
    samples = ran.variant.counted * spec.training.groups_per_step * SAMPLES
    return samples / (ends[-1] - ends[ran.variant.skipped - 1])


def figures(name: str, ran: Ran, base: Ran, equals: Ran | None, assumptions: Assumptions) -> list[Figure]:
    """Of a run, beside bound 0; `equals`: that with all engines as equals, of the same bound."""
    goal = ">= 2.8 x" if name in ("bound 2", "bound 3", "masked") else None
    shares = {pool: Figure(f"{name}: {pool} busy", 100 * share, "%") for pool, share in ran.busy.items()}
    predicted = simulated(ran, assumptions) / simulated(base, assumptions)
    found = [
        Figure(f"{name}: response tokens trained", ran.rate, "tokens/s", base.rate, goal),
        Figure(f"{name}: samples trained", ran.samples, "samples/s", base.samples),
        *(shares[pool] for pool in ("trainer", "fast", "heavy") if pool in shares),
        Figure(f"{name}: age of the oldest token that was trained", ran.oldest, "versions"),
        Figure(f"{name}: first step ended after", ran.first_step, "s"),
    ]
    if ran.variant.tokens == "mask":
        found.append(Figure(f"{name}: tokens that were not trained", 100 * ran.masked, "%"))
    if ran is not base:
        ratio = ran.samples / base.samples
        said = f"{name}: times the samples of bound 0, predicted, beside measured"
        found.append(Figure(said, predicted, "x", ratio, "within 5 %"))
    if equals is not None:
        said = f"{name}: samples trained, beside least in flight"
        found.append(Figure(said, ran.samples, "samples/s", equals.samples, ">= 1.15 x"))
    return found


def spread(trace: Path) -> float:
    """p99 over median of the lengths."""
    median, most = np.percentile(read_length_trace(trace).tokens, (50, 99))
    return float(most / median)


def main() -> None:
    options = parse()
    until, took = time.monotonic() + options.seconds, 0.0
    ran: dict[str, Ran] = {}
    shown: list[Figure] = []
    with tempfile.TemporaryDirectory() as scratch:
        for place, name in enumerate([BASELINE, *options.variants]):
            left = until - time.monotonic()
            if took / 2 > left:
                print(f"{name}: left out, {left:.0f} s are left and the last one took {took:.0f} s")
                continue
            began = time.monotonic()
            try:
                ran[name] = run(Path(scratch) / str(place), options, VARIANTS[name], left)
            except subprocess.SubprocessError as error:
                print(f"{name}: {error}", flush=True)
                if name == BASELINE:
                    raise
                continue
            took = time.monotonic() - began
            print(f"{name}: {took:.0f} s", flush=True)
            base = ran[BASELINE]
            if name == BASELINE:
                assumptions = fitted(base.trace.parent)
                shown.append(Figure("p99 of lengths over their median", spread(base.trace), "x", goal=">= 8"))
            same = ran.get("bound 1, least in flight") if name == "bound 1" else None
            shown += figures(name, ran[name], base, same, assumptions)
            record(f"loop_pools_{options.gpus or 'cpu'}", shown, options.out)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpus", type=int, default=0, help="one trains; 0: two engines on CPUs")
    others = [name for name in VARIANTS if name != BASELINE]
    parser.add_argument("--variants", nargs="*", choices=others, help="in this order; default: all")
    parser.add_argument("--shape", choices=SHAPES, default="1.7b", help="Qwen3's of this size; on GPUs")
    parser.add_argument("--prompts", type=int, help="of a step, with 8 responses each")
    parser.add_argument("--cap", type=int, help="tokens of the longest response")
    parser.add_argument("--micro-batch", type=int, default=16384, help="tokens of a forward pass")
    parser.add_argument("--seconds", type=float, default=1500, help="of all runs together")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.variants is None:
        options.variants = ["masked", "bound 1, least in flight", "bound 1", "bound 2"]
    options.prompts = options.prompts or (64 if options.gpus else 4)
    options.cap = options.cap or (2048 if options.gpus else 200)
    return options


if __name__ == "__main__":
    main()
