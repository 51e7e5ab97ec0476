"""The whole loop on GPUs: a random model of the 0.5 B class; on one GPU trainer and engine share the device.

Measures response tokens and samples per second over the steady steps, the idle shares of trainer and engine,
and the time of a weight update. The baseline is the same job with maxStaleness 0, in the same run.

    python -m tests.bench.gpu_loop [--steps 12] [--transport nccl]      (nccl: two GPUs)
"""

import argparse
import statistics
import tempfile
from pathlib import Path

import torch  # noqa: F401 - so that `record` names the GPU

from rljob_runtime.trace.analyse.event_files import Tally, read_steps
from rljob_runtime.trace.record.event_log import EVENTS_FOLDER
from rljob_runtime.trace.record.metrics_log import read_metrics
from tests.bench.figures import Figure, record
from tests.bench.real_runs import LARGE, copy_job, run_job

SKIPPED = 3
"""First steps, which fill the pipeline and warm kernels up."""


def run(folder: Path, steps: int, max_staleness: float, transport: str) -> Path:
    """The run's folder."""
    folder.mkdir()
    job = copy_job(
        "gpu-loop",
        True,
        LARGE | {"maxPositionEmbeddings": 2048, "vocabularySize": 151936},
        {"gpuMemoryUtilization": 0.35},
        {"maxResponseTokens": 512, "maxRunningRequests": 512},
        {
            "schedule": {"totalSteps": steps, "promptsPerBatch": 64},
            "async": {"maxStaleness": max_staleness, "weightSync": {"push": {}, "transport": transport}},
            "parallel": {"maxTokensPerMicroBatch": 32768},
        },
    )
    return run_job(folder, job, 500, "--share")


def steady(run_folder: Path) -> dict[str, float]:
    """Rates and idle shares over the steady steps."""
    rows = read_metrics(run_folder / "metrics.jsonl").rows
    first, last, counted = rows[SKIPPED - 1]["time"], rows[-1]["time"], rows[SKIPPED:]
    elapsed = last - first
    idle: dict[str, float] = {}
    loads = []
    for event in (one for _, found in read_steps(run_folder / EVENTS_FOLDER, Tally()) for one in found):
        overlap = min(event.end, last) - max(event.start, first)
        if event.event == "idle" and overlap > 0 and event.pool in ("trainer", "fast"):
            idle[event.pool] = idle.get(event.pool, 0.0) + overlap
        if event.event in ("weight_pause", "weight_load", "weight_resume", "weight_swap") and overlap > 0:
            loads.append((event.event, event.duration))
    update = sum(
        statistics.median(seconds for name, seconds in loads if name == event)
        for event in {name for name, _ in loads}
    )
    # Steps after the first: their responses come from weights that were sent over the transport. With bound 1
    # hardly a response is drawn wholly with the weights that its step begins with, so bound 0 tells.
    parity = [row["parity_mean"] for row in rows[1:] if row["parity_mean"] is not None]
    return {
        "tokens": sum(row["response_tokens"] for row in counted) / elapsed,
        "samples": sum(row["samples"] for row in counted) / elapsed,
        "trainer": idle.get("trainer", 0.0) / elapsed,
        "fast": idle.get("fast", 0.0) / elapsed,
        "update": update,
        "parity": statistics.mean(parity) if parity else float("nan"),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--transport", choices=["auto", "nccl"], default="auto")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        sync = steady(run(Path(scratch) / "sync", options.steps, 0, options.transport))
        bound1 = steady(run(Path(scratch) / "async", options.steps, 1, options.transport))
    figures = [
        Figure("response tokens trained, bound 1", bound1["tokens"], "tokens/s", sync["tokens"]),
        Figure("samples trained, bound 1", bound1["samples"], "samples/s", sync["samples"]),
        Figure("trainer idle, bound 1", bound1["trainer"], "share", sync["trainer"]),
        Figure("engine without requests, bound 1", bound1["fast"], "share", sync["fast"]),
        Figure("weight update of the engine, bound 1", bound1["update"], "s", sync["update"]),
        Figure("mean |engine - trainer| log-probability after updates, bf16", sync["parity"], "nats"),
    ]
    name = "gpu_loop" if options.transport == "auto" else f"gpu_loop_{options.transport}"
    record(name, figures, **({"folder": options.out} if options.out else {}))


if __name__ == "__main__":
    main()
