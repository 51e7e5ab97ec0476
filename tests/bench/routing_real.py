"""Routing policies on real engines, whole jobs on the same forced lengths: one step after the other, so that
a step waits for its last response.

Lengths are lognormal with a heavy tail, one trace for all policies. The baseline is least in flight, in the
same run. Every run is a job of its own: engines start, the first step warms up and is not counted.

    python -m tests.bench.routing_real [--gpus 3] [--steps 6] [--policies adaptive interleaved]
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch  # noqa: F401 - so that `record` names the GPU
import yaml

from rljob_runtime.data.length_trace import FORMAT, LENGTHS_FILE, read_length_trace
from rljob_runtime.simulate.workload import LengthModel
from rljob_runtime.trace.record.metrics_log import read_metrics
from tests.bench.figures import Figure, record

SAMPLES, SKIPPED, SEED = 8, 1, 7
MODELS: dict[bool, dict[str, Any]] = {
    True: {
        "hiddenSize": 1024, "intermediateSize": 3072, "layers": 16, "attentionHeads": 16,
        "keyValueHeads": 8, "headDim": 128, "maxPositionEmbeddings": 16384, "vocabularySize": 32768,
    },
    False: {"maxPositionEmbeddings": 1024},
}  # fmt: skip
"""On GPUs one of the 0.3 B class, on CPUs the smallest."""


def manifest(options: argparse.Namespace, routing: dict[str, Any], heavy: int) -> dict[str, Any]:
    gpu = options.gpus > 0
    engines, longest = options.gpus or 2, 8192 if gpu else 512
    engine: dict[str, Any] = {"gpuMemoryUtilization": 0.35} if gpu else {"kvCacheGiB": 0.5}
    return {
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "routing-real"},
        "spec": {
            "accelerator": "nvidia" if gpu else "cpu",
            "pools": {"fastRollout": {"replicas": engines - heavy}, "heavyRollout": {"replicas": heavy}},
            "training": {
                "model": {"random": MODELS[gpu], **({"dtype": "bfloat16"} if gpu else {})},
                "tokenizer": {"characters": {}},
                "data": {
                    "generated": {"task": "copy", "minLength": 8, "maxLength": 64, "letters": 26},
                    "maxPromptTokens": 128,
                },
                "reward": {"function": "rljob_runtime.rewards.tasks:copy"},
                "rollout": {
                    "engine": {"vllm": engine}, "samplesPerPrompt": SAMPLES,
                    "maxResponseTokens": longest, "maxRunningRequests": options.limit,
                    "forcedLengths": "lengths.jsonl", "routing": routing,
                },
                "optimizer": {"learningRate": 1e-6},
                "schedule": {"totalSteps": options.steps, "promptsPerBatch": options.prompts},
                "async": {"maxStaleness": 0},
                "parallel": {"maxTokensPerMicroBatch": 2 * longest},
                "checkpoint": {"everySteps": 1000},
            },
        },
    }  # fmt: skip


def write_trace(file: Path, options: argparse.Namespace) -> None:
    """Lengths with a tail to the cap."""
    cap = 8192 if options.gpus else 512
    model = LengthModel(cap * 0.12, cap, between=0.8, within=0.5, prompt_tokens=64)
    drawn = model.draw(options.prompts * options.steps, SAMPLES, SEED).lengths
    header = {"format": FORMAT, "samples_per_prompt": SAMPLES, "max_response_tokens": cap}
    lines = [json.dumps(header)]
    for (uid, index), tokens in np.ndenumerate(drawn):
        lines.append(json.dumps({"uid": uid, "index": index, "response_tokens": int(tokens)}))
    file.write_text("\n".join(lines) + "\n")


def run(folder: Path, options: argparse.Namespace, routing: dict[str, Any], heavy: int) -> dict[str, float]:
    """Rate and latencies of the steps that count."""
    folder.mkdir(parents=True)
    write_trace(folder / "lengths.jsonl", options)
    (folder / "job.yaml").write_text(yaml.safe_dump(manifest(options, routing, heavy)))
    command = [sys.executable, "-m", "rljob_runtime.cli", "run", str(folder / "job.yaml")]
    output = folder / "run"
    # The trainer shares a GPU with an engine; it works while the engines wait.
    subprocess.run([*command, "--share", "--output", str(output)], check=True, timeout=options.seconds)
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
