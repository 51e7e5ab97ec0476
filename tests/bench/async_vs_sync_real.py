"""Asynchronous against synchronous training through real vLLM engines on CPUs.

An untrained model ends a response with about the same probability at each token, so lengths are geometric:
heavy-tailed, though less than real ones. The learning rate is too small to change that. The baseline is the
same job with maxStaleness 0, in the same run.

    python -m tests.bench.async_vs_sync_real
"""

import tempfile
from pathlib import Path
from typing import Any

from tests.bench.figures import Figure, parser, record
from tests.bench.real_runs import run_example

STEPS, SKIPPED = 30, 5


def samples_per_second(rows: list[dict[str, Any]]) -> float:
    """Over the steady steps."""
    counted = rows[SKIPPED:]
    samples: int = sum(row["samples"] for row in counted)
    return samples / float(rows[-1]["time"] - rows[SKIPPED - 1]["time"])


def main() -> None:
    out = parser(__doc__).parse_args().out
    rates = {}
    with tempfile.TemporaryDirectory() as scratch:
        for bound in (0, 1, 2):
            rows = run_example(
                Path(scratch) / f"bound-{bound}",
                {
                    "async": {"maxStaleness": bound},
                    "rollout": {"engine": {"vllm": {}}, "samplesPerPrompt": 8, "maxResponseTokens": 200},
                    "optimizer": {"learningRate": 1e-9},
                    "schedule": {"totalSteps": STEPS, "promptsPerBatch": 8},
                    "checkpoint": {"everySteps": 1000},
                },
            )
            rates[bound] = samples_per_second(rows)
    record(
        "async_vs_sync_real",
        [
            Figure(f"vLLM on CPUs, hard bound {bound}: samples", rates[bound], "samples/s", rates[0])
            for bound in (1, 2)
        ],
        out,
    )


if __name__ == "__main__":
    main()
