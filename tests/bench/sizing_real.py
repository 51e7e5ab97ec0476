"""What the report proposes on pool sizes, against what comes of it: a job runs with given sizes, the
simulator proposes others from what that run measured, and the job runs again with those, on the same forced
lengths.

On CPUs all workers share the machine's cores, which the simulator does not know: there the first figure alone
means something, and the proposal is taken as if each worker had a machine of its own.

    python -m tests.bench.sizing_real [--gpus --trainer 2 --fast 2 --heavy 0]
"""

import argparse
import tempfile
from pathlib import Path

import torch  # noqa: F401 - so that `record` names the GPU

from rljob_runtime.manifest.load import read
from rljob_runtime.simulate.site import Site, Sizes
from rljob_runtime.trace.analyse.analysis import analyse_run
from rljob_runtime.trace.forecast.measured_run import MeasuredRun, first_step, measured_rate, measured_run
from rljob_runtime.trace.forecast.sizing import Proposal, propose
from rljob_runtime.trace.forecast.workloads import recorded
from tests.bench.figures import Figure, record
from tests.bench.real_runs import LARGE, LENGTHS, SMALL, copy_job, force_lengths, run_job


def run(folder: Path, options: argparse.Namespace, sizes: Sizes) -> Path:
    """The folder of a run with these sizes."""
    folder.mkdir(parents=True)
    cap = 4096 if options.gpus else 512
    force_lengths(folder, options.prompts * options.steps, cap, mean=0.15 * cap)
    job = copy_job(
        "sizing-real",
        options.gpus,
        LARGE if options.gpus else SMALL,
        {"gpuMemoryUtilization": 0.6} if options.gpus else {"kvCacheGiB": 0.3},
        {"maxResponseTokens": cap, "maxRunningRequests": options.limit, "forcedLengths": LENGTHS},
        {
            "schedule": {"totalSteps": options.steps, "promptsPerBatch": options.prompts},
            "parallel": {"maxTokensPerMicroBatch": 4 * cap},
        },
        {"trainer": sizes.trainer, "fastRollout": sizes.fast, "heavyRollout": sizes.heavy},
    )
    return run_job(folder, job, options.seconds, "--no-live")


def measure(folder: Path, options: argparse.Namespace) -> tuple[MeasuredRun | None, float]:
    """What a run tells the simulator, and its samples per second."""
    analysis = analyse_run(folder)
    if not options.gpus:
        for pool in analysis.pools:
            for worker in pool.workers:
                worker.host = worker.worker
    rate = measured_rate(analysis, first_step(analysis))
    assert rate is not None, "the run has too few steps"
    return measured_run(folder, read(folder / "job.yaml").job.spec, analysis), rate


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", action="store_true", help="a worker on each GPU; else all on CPUs")
    parser.add_argument("--trainer", type=int, default=1)
    parser.add_argument("--fast", type=int, default=1)
    parser.add_argument("--heavy", type=int, default=1)
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--limit", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=500, help="most for each run")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    sizes = Sizes(options.trainer, options.fast, options.heavy)
    with tempfile.TemporaryDirectory() as scratch:
        first = run(Path(scratch) / "first", options, sizes)
        measured, before = measure(first, options)
        if measured is None:
            raise SystemExit("the run does not suffice to fit costs")
        # Time enough: what is measured is the proposal, not the search.
        spec = read(first / "job.yaml").job.spec
        found = propose(spec, measured, seconds=120.0)
        site = Site(spec, measured.assumptions, options.steps)
        simulated = site.run(recorded(measured.trace)(site, 0)).samples_per_second
        figures = [
            Figure(f"{_named(sizes)}: simulated, beside what was measured", simulated, "samples/s", before)
        ]
        if isinstance(found, Proposal):
            _, after = measure(run(Path(scratch) / "then", options, found.then), options)
            error = 100 * found.gain.deviation
            figures += [
                Figure(f"{_named(found.then)}: gain, simulated (± {error:.1f})", 100 * found.gain.mean, "%"),
                Figure(f"{_named(found.then)}: gain, measured", 100 * (after / before - 1), "%"),
            ]
    kind = "gpus" if options.gpus else "cpu"
    record(f"sizing_real_{kind}", figures, **({"folder": options.out} if options.out else {}))


def _named(sizes: Sizes) -> str:
    return f"trainer {sizes.trainer}, fast {sizes.fast}, heavy {sizes.heavy}"


if __name__ == "__main__":
    main()
