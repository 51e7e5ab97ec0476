"""What evaluations cost training, with real engines on GPUs: one trains, the others generate with vLLM.

Jobs with evaluations and, as the baseline, without any, in turn on the same GPUs and in the order without,
with, with, without, so that what drifts is in both. All have the same forced lengths, with a tail to the cap,
and the bound 1; a random model ends no response by itself, so that each evaluated one has as many tokens as
the longest that are trained. Counted are the steps after the first evaluation. How much slower they are is
set against the evaluations' own tokens, as a share of those that are trained; beside it stands how far two
equal jobs are apart.

    python -m tests.bench.evaluation_cost_gpus --gpus 2 --out $OUT
    python -m tests.bench.evaluation_cost_gpus --out $OUT               on CPUs, to see that it runs
"""

import argparse
import tempfile
import time
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import torch  # noqa: F401 - so that `record` names the GPU

from rljob_runtime.trace.record.evaluation_log import read_evaluations
from rljob_runtime.trace.record.metrics_log import read_metrics
from tests.bench.evaluation_cost import GOAL
from tests.bench.figures import Figure, record
from tests.bench.real_runs import LARGE, LENGTHS, SMALL, copy_job, force_lengths, run_job

EVERY = 10
"""Versions from one evaluation to the next."""
ORDER = (False, True, True, False)
"""Whether a run has evaluations."""


class Ran(NamedTuple):
    """Of a run's counted steps."""

    seconds: float
    """Of a step, their mean."""
    own: float
    """Tokens of the evaluations, as a share of those that were trained."""


def job_of(options: argparse.Namespace, evaluated: bool) -> dict[str, Any]:
    gpu = options.gpus > 0
    evaluation = {
        "sets": [
            {
                "name": "held_out",
                "data": {
                    "generated": {
                        "task": "copy", "minLength": 65, "maxLength": 80, "letters": 26,
                        "rows": options.evaluated,
                    },
                    "maxPromptTokens": 128,
                },
            }
        ],
        "everyVersions": EVERY,
    }  # fmt: skip
    return copy_job(
        "evaluation-cost",
        gpu,
        LARGE if gpu else SMALL,
        {"gpuMemoryUtilization": 0.85} if gpu else {"kvCacheGiB": 0.3},
        {
            "maxResponseTokens": options.cap,
            "maxRunningRequests": 512 if gpu else 64,
            "forcedLengths": LENGTHS,
        },
        {
            "schedule": {"totalSteps": EVERY * (options.periods + 1), "promptsPerBatch": options.prompts},
            "async": {"maxStaleness": 1},
            **({"evaluation": evaluation} if evaluated else {}),
        },
        {"trainer": 1, "fastRollout": max(1, options.gpus - 1), "heavyRollout": 0},
    )


def run(folder: Path, options: argparse.Namespace, evaluated: bool, seconds: float) -> Ran:
    """Run a job to its end, within so many seconds."""
    folder.mkdir(parents=True)
    job = job_of(options, evaluated)
    steps = job["spec"]["training"]["schedule"]["totalSteps"]
    force_lengths(folder, options.prompts * steps, options.cap, 0.3 * options.cap)
    output = run_job(folder, job, seconds, "--no-live")
    rows = read_metrics(output / "metrics.jsonl").rows
    counted = [line for line in read_evaluations(output) if EVERY <= line.step < steps]
    assert len(counted) == (options.periods if evaluated else 0)
    scores = [score for line in counted for score in line.sets.values()]
    assert not any(score.unpinned for score in scores)
    tokens = sum(score.responses * score.response_length_mean for score in scores)
    return Ran(
        (rows[-1]["time"] - rows[EVERY - 1]["time"]) / (steps - EVERY),
        tokens / sum(row["response_tokens"] for row in rows[EVERY:]),
    )


def figures(without: list[Ran], beside: list[Ran]) -> list[Figure]:
    """Of the runs that there are, one of each kind at least."""
    alone, taken = (mean(each.seconds for each in runs) for runs in (without, beside))
    share = 100 * mean(each.own for each in beside)
    found = [
        Figure("a step", taken, "s", alone),
        Figure("steps are slower by", 100 * (taken / alone - 1), "%", share, GOAL),
    ]
    for name, runs in (("without", without), ("with", beside)):
        if len(runs) > 1:
            least, *_, most = sorted(each.seconds for each in runs)
            found.append(
                Figure(f"two equal jobs {name} evaluations are apart by", 100 * (most / least - 1), "%")
            )
    return found


def main() -> None:
    options = parse()
    until = time.monotonic() + options.seconds
    runs: dict[bool, list[Ran]] = {False: [], True: []}
    took = 0.0
    with tempfile.TemporaryDirectory() as scratch:
        for place, evaluated in enumerate(ORDER):
            left = until - time.monotonic()
            if took > left:
                print(f"run {place + 1}: left out, {left:.0f} s are left and the longest took {took:.0f}")
                break
            began = time.monotonic()
            ran = run(Path(scratch) / str(place), options, evaluated, left)
            took = max(took, time.monotonic() - began)
            said = "with" if evaluated else "without"
            print(f"{said} evaluations: a step {ran.seconds:.3f} s, own {100 * ran.own:.1f} %", flush=True)
            runs[evaluated].append(ran)
            if all(runs.values()):
                name = f"evaluation_cost_{options.gpus}_gpus" if options.gpus else "evaluation_cost_cpu"
                record(name, figures(runs[False], runs[True]), options.out)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpus", type=int, default=0, help="one trains; 0: one engine on CPUs")
    parser.add_argument("--periods", type=int, default=3, help=f"periods of {EVERY} steps after the first")
    parser.add_argument("--prompts", type=int, help="of a step, with 8 responses each")
    parser.add_argument("--evaluated", type=int, help="prompts of an evaluation, with a response each")
    parser.add_argument("--cap", type=int, help="tokens of the longest response")
    parser.add_argument("--seconds", type=float, default=1500, help="of all runs together")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.prompts = options.prompts or (32 if options.gpus else 4)
    options.evaluated = options.evaluated or (64 if options.gpus else 8)
    options.cap = options.cap or (512 if options.gpus else 64)
    return options


if __name__ == "__main__":
    main()
