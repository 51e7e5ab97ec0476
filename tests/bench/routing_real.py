"""Routing policies on real engines, whole jobs on the same forced lengths: one step after the other, so that
a step waits for its last response.

Lengths are lognormal with a heavy tail, one trace for all policies. The baseline is least in flight, in the
same run. Every run is a job of its own: engines start, the first step warms up and is not counted.

    python -m tests.bench.routing_real [--gpus 3] [--steps 6] [--policies adaptive interleaved]
"""

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch  # noqa: F401 - so that `record` names the GPU

from rljob_runtime.data.length_trace import LENGTHS_FILE, read_length_trace
from rljob_runtime.trace.record.metrics_log import read_metrics
from tests.bench.figures import Figure, record
from tests.bench.real_runs import LARGE, LENGTHS, SAMPLES, SMALL, copy_job, force_lengths, run_job

SKIPPED = 1
"""First steps, in which engines warm up."""


def run(folder: Path, options: argparse.Namespace, routing: dict[str, Any], heavy: int) -> dict[str, float]:
    """Rate and latencies of the steps that count."""
    folder.mkdir(parents=True)
    gpu = options.gpus > 0
    engines, cap = options.gpus or 2, 8192 if gpu else 512
    force_lengths(folder, options.prompts * options.steps, cap, mean=0.12 * cap)
    job = copy_job(
        "routing-real",
        gpu,
        LARGE if gpu else SMALL,
        {"gpuMemoryUtilization": 0.35} if gpu else {"kvCacheGiB": 0.5},
        {
            "maxResponseTokens": cap, "maxRunningRequests": options.limit, "forcedLengths": LENGTHS,
            "routing": routing,
        },
        {
            "schedule": {"totalSteps": options.steps, "promptsPerBatch": options.prompts},
            "async": {"maxStaleness": 0},
            "parallel": {"maxTokensPerMicroBatch": 2 * cap},
        },
        {"fastRollout": engines - heavy, "heavyRollout": heavy},
    )  # fmt: skip
    # The trainer shares a GPU with an engine; it works while the engines wait.
    output = run_job(folder, job, options.seconds, "--share")
    rows = read_metrics(output / "metrics.jsonl").rows
    trace = read_length_trace(output / LENGTHS_FILE)
    steps = (-1, options.prompts, SAMPLES)
    begun = trace.begun.reshape(steps)[SKIPPED:]
    ended = (trace.begun + trace.seconds).reshape(steps)[SKIPPED:]
    # Generation alone: the same steps are trained whatever the routing is.
    seconds = (ended.max(axis=(1, 2)) - begun.min(axis=(1, 2))).tolist()
    latency = ended.max(axis=2) - begun.min(axis=2)
    return {
        "rate": options.prompts * SAMPLES / statistics.mean(seconds),
        "sd": statistics.stdev(seconds) / statistics.mean(seconds),
        "p99": float(np.percentile(latency, 99)),
        "moves": rows[-1]["requests"]["continued"],
    }


POLICIES: dict[str, tuple[dict[str, Any], int]] = {
    "least in flight": ({"leastInFlight": {}}, 0),
    "adaptive": ({"adaptive": {}}, 0),
    "adaptive, one engine heavy": ({"adaptive": {}}, 1),
    "interleaved": ({"interleaved": {}}, 0),
    "adjacent": ({"adjacent": {}}, 0),
    "P-DSR, one engine heavy": ({"probe": {}}, 1),
}
BASELINE = "least in flight"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", type=int, default=0, help="engines on GPUs; 0: two on CPUs")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--limit", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=500)
    parser.add_argument("--policies", nargs="*", default=["adaptive"], choices=sorted(POLICIES))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        found = {
            name: run(Path(scratch) / str(place), options, *POLICIES[name])
            for place, name in enumerate([BASELINE, *options.policies])
        }
    base, figures = found[BASELINE], []
    for name, one in found.items():
        what = f"{name} (steps vary by {100 * one['sd']:.0f} %, {one['moves']:.0f} moves)"
        figures += [
            Figure(f"{what}: generated", one["rate"], "samples/s", base["rate"]),
            Figure(f"{name}: group latency, p99", one["p99"], "s", base["p99"]),
        ]
    kind = f"{options.gpus}_gpus" if options.gpus else "cpu"
    record(f"routing_real_{kind}", figures, **({"folder": options.out} if options.out else {}))


if __name__ == "__main__":
    main()
