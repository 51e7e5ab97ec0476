"""What evaluations cost training, with vLLM engines: jobs with evaluations, and without.

Jobs that are equal differ by more than evaluations cost, as what a machine is worth drifts from minute to
minute; how far they are apart is told. So each evaluation is set against the steps around it: what the four
steps from its begin took beyond the mean of the four before and the four after, as a share of what the steps
from one evaluation to the next take. All jobs have the same forced lengths, with a tail to the cap, and the
same is done at the same steps of the jobs without evaluations, which is what lengths and chance do: it is
taken off. How much slower an evaluation makes the steps is set against its own tokens, as a share of those
that are trained. A random model ends no response by itself: each evaluated one is as long as the longest
that is trained. What evaluations might do to all steps alike would show in the means of whole jobs, which run
in the order without, with, with, without.

    python -m tests.bench.evaluation_cost_real                     one engine on CPUs
    python -m tests.bench.evaluation_cost_real --gpus 2 --out $OUT     one GPU trains, one generates
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import torch  # noqa: F401 - so that `record` names the GPU

from rljob_runtime.trace.record.evaluation_log import read_evaluations
from rljob_runtime.trace.record.metrics_log import read_metrics
from tests.bench.evaluation_cost import GOAL
from tests.bench.figures import RESULTS, Figure, record
from tests.bench.real_runs import LARGE, LENGTHS, SMALL, copy_job, force_lengths, run_job

EVERY = 12
"""Versions from one evaluation to the next."""
WINDOW = 4
"""Steps that an evaluation can make longer; as many before and after. With bound 1 steps come in pairs."""


ORDER = (False, True, True, False)
"""Whether a job has evaluations."""


class Ran(NamedTuple):
    """What came of a run."""

    excess: list[float]
    """Of each evaluation that is counted, or at its steps: what it made the steps longer by, as a share."""
    step: float
    """Seconds of a step, their mean."""
    own: float
    """Tokens of those evaluations, as a share of those that were trained from each to the next."""


def excess(ends: Sequence[float], after: int) -> float:
    """What the `WINDOW` steps that follow the first `after` took beyond the mean of those before and behind
    them, as a share of `EVERY` such steps. `ends`: when each step ended, in seconds."""
    before, first, last, behind = (ends[after - 1 + place * WINDOW] for place in (-1, 0, 1, 2))
    usual = (first - before + behind - last) / 2
    return (last - first - usual) / (usual * EVERY / WINDOW)


def job_of(options: argparse.Namespace, evaluated: bool) -> dict[str, Any]:
    gpu = options.gpus > 0
    rows = {"task": "copy", "minLength": 65, "maxLength": 80, "letters": 26, "rows": options.evaluated}
    evaluation = {
        "sets": [{"name": "held_out", "data": {"generated": rows, "maxPromptTokens": 128}}],
        "everyVersions": EVERY,
    }
    return copy_job(
        "evaluation-cost",
        gpu,
        LARGE if gpu else SMALL,
        {"gpuMemoryUtilization": 0.85} if gpu else {"kvCacheGiB": 0.3},
        {
            "maxResponseTokens": options.cap, "maxRunningRequests": 512 if gpu else 128,
            "forcedLengths": LENGTHS,
        },
        {
            "schedule": {"totalSteps": steps_of(options), "promptsPerBatch": options.prompts},
            "async": {"maxStaleness": 1},
            **({"evaluation": evaluation} if evaluated else {}),
        },
        {"trainer": 1, "fastRollout": max(1, options.gpus - 1), "heavyRollout": 0},
    )  # fmt: skip


def steps_of(options: argparse.Namespace) -> int:
    return int(EVERY * options.evaluations + 2 * WINDOW)


def run(folder: Path, options: argparse.Namespace, evaluated: bool) -> Ran:
    """Run a job to its end."""
    folder.mkdir(parents=True)
    steps = steps_of(options)
    force_lengths(folder, options.prompts * steps, options.cap, 0.3 * options.cap)
    output = run_job(folder, job_of(options, evaluated), options.seconds, "--no-live")
    rows = read_metrics(output / "metrics.jsonl").rows
    ends = [row["time"] for row in rows]
    after = range(EVERY, EVERY * options.evaluations + 1, EVERY)
    counted = [line for line in read_evaluations(output) if line.step in after]
    assert len(counted) == (len(after) if evaluated else 0)
    scores = [score for line in counted for score in line.sets.values()]
    assert not any(score.unpinned for score in scores)
    trained = mean(row["response_tokens"] for row in rows) * EVERY * len(after)
    return Ran(
        [excess(ends, step) for step in after],
        (ends[-1] - ends[EVERY - 1]) / (steps - EVERY),
        sum(score.responses * score.response_length_mean for score in scores) / trained,
    )


def figures(without: Sequence[Ran], beside: Sequence[Ran]) -> list[Figure]:
    """Of as many jobs of either kind."""
    pairs = [
        (one, other)
        for ran, alone in zip(beside, without, strict=True)
        for one, other in zip(ran.excess, alone.excess, strict=True)
    ]
    apart = [100 * (one - other) for one, other in pairs]
    around, same = (100 * mean(each) for each in zip(*pairs, strict=True))
    own = 100 * mean(ran.own for ran in beside)
    step, alone_step = (mean(ran.step for ran in runs) for runs in (beside, without))
    equal = [100 * (max(steps) / min(steps) - 1) for steps in map(_steps, (without, beside))]
    return [
        Figure("steps around an evaluation are longer by", around, "%", same),
        Figure("steps are slower by", mean(apart), "%", own, GOAL),
        Figure("the same: standard error", stdev(apart) / len(apart) ** 0.5, "%"),
        Figure("a step, mean of whole jobs", step, "s", alone_step),
        Figure("two equal jobs are apart by, without evaluations", equal[0], "%"),
        Figure("two equal jobs are apart by, with evaluations", equal[1], "%"),
    ]


def _steps(runs: Sequence[Ran]) -> list[float]:
    return [ran.step for ran in runs]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpus", type=int, default=0, help="one trains; 0: one engine on CPUs")
    parser.add_argument("--evaluations", type=int, default=16, help="that are counted, 2 or more")
    parser.add_argument("--prompts", type=int, help="of a step, with 8 responses each")
    parser.add_argument("--evaluated", type=int, help="prompts of an evaluation, with a response each")
    parser.add_argument("--cap", type=int, help="tokens of the longest response")
    parser.add_argument("--seconds", type=float, default=1500, help="of each job")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.evaluations < 2:
        parser.error("--evaluations must be 2 or more")
    options.prompts = options.prompts or (32 if options.gpus else 8)
    options.evaluated = options.evaluated or (80 if options.gpus else 48)
    options.cap = options.cap or (512 if options.gpus else 128)
    with tempfile.TemporaryDirectory() as scratch:
        runs: dict[bool, list[Ran]] = {False: [], True: []}
        for place, evaluated in enumerate(ORDER):
            runs[evaluated].append(run(Path(scratch, str(place)), options, evaluated))
            if len(runs[False]) == len(runs[True]):
                name = f"evaluation_cost_{options.gpus}_gpus" if options.gpus else "evaluation_cost_real"
                record(name, figures(runs[False], runs[True]), options.out)


if __name__ == "__main__":
    main()
