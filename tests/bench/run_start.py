"""What makes `rljob run` start sooner on one machine, with it and, as the baseline, without it, in turn.

Ray: from its start to a node that is there, by what `site/lean_ray.py` leaves out, and as Ray starts by
itself; with no other Ray on the machine, and beside one, whose agent has the port that all agents want.
A job: from the command to the end of its first step, with workers that import what they need while the
manifest is checked, and with workers that begin when it has been. The model is on disk; vLLM on CPUs.

    python -m tests.bench.run_start
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median

import yaml

from rljob_runtime.trace.record.metrics_log import read_metrics
from tests.bench.figures import RESULTS, Figure, record
from tests.bench.peers import work
from tests.bench.peers.ours import manifest, named
from tests.bench.real_runs import RUN

_JOB = (
    '{"metadata": {"name": "start"}, "spec": {"accelerator": "cpu", "training": {"model": {"random": {}}, '
    '"tokenizer": {"characters": {}}, "data": {"generated": {"task": "copy"}}, '
    '"reward": {"function": "rljob_runtime.rewards.tasks:copy"}, "schedule": {"totalSteps": 1}}}}'
)
_RAY = f"""
import sys, time
from contextlib import nullcontext
from rljob_api import RLJob
from rljob_runtime.site import one_machine

if sys.argv[1] == "by itself":
    one_machine.lean_start, one_machine._SHORT_WAITS = nullcontext, {{}}
one_machine.prepare()
import ray
begun = time.monotonic()
with one_machine.started(RLJob.model_validate_json({_JOB!r})):
    print(time.monotonic() - begun, flush=True)
    if sys.argv[2] == "stays":
        sys.stdin.read()
"""
_RUN = """
import sys
from rljob_runtime.cli import main
from rljob_runtime.fleet import early_workers

if sys.argv.pop(1) == "later":
    early_workers.early_names = lambda *_: iter(())
sys.exit(main(sys.argv[1:]))
"""
_RAY_SECONDS = 120.0
_RUN_SECONDS = 300.0


def ray_start(how: str) -> float:
    """Seconds of one start of Ray, "lean" or "by itself"."""
    told = subprocess.run(
        [sys.executable, "-c", _RAY, how, "ends"], stdout=subprocess.PIPE, timeout=_RAY_SECONDS, check=True
    )
    return float(told.stdout)


@contextmanager
def another_ray() -> Iterator[None]:
    """As it starts by itself."""
    command = [sys.executable, "-c", _RAY, "by itself", "stays"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdin is not None
        other.stdout.readline()
        try:
            yield
        finally:
            other.stdin.close()
            other.wait(_RAY_SECONDS)


def first_step(folder: Path, prepared: Path, how: str) -> float:
    """Seconds from the command to the end of the first step, with workers that begin "early" or "later"."""
    ours = named("ours-1")
    assert ours is not None
    job = manifest(ours, replace(work.SMALL, steps=1), prepared, 0, 16384)
    job["spec"]["training"]["rollout"]["engine"] = {"vllm": {"kvCacheGiB": 0.3}}
    folder.mkdir()
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    command = [sys.executable, "-c", _RUN, how, "run", str(folder / "job.yaml"), "--output"]
    began = time.time()
    subprocess.run(
        [*command, str(folder / RUN), "--no-live"], check=True, timeout=_RUN_SECONDS,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    [row] = read_metrics(folder / RUN / "metrics.jsonl").rows
    return float(row["time"] - began)


def told(what: str, mine: Sequence[float], other: Sequence[float]) -> list[Figure]:
    return [
        Figure(f"{what}: median of {len(mine)}", median(mine), "s", median(other)),
        Figure(f"{what}: longest", max(mine), "s", max(other)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--repeats", type=int, default=8, help="starts of Ray, of each kind; half of it of jobs"
    )
    parser.add_argument("--folder", type=Path, default=RESULTS, help="where results are written")
    options = parser.parse_args()
    figures: list[Figure] = []

    def in_turn() -> tuple[list[float], list[float]]:
        both = [(ray_start("lean"), ray_start("by itself")) for _ in range(options.repeats)]
        return [lean for lean, _ in both], [plain for _, plain in both]

    figures += told("Ray, alone on the machine", *in_turn())
    with another_ray():
        figures += told("Ray, beside another one", *in_turn())
    with tempfile.TemporaryDirectory() as scratch:
        prepared = Path(scratch) / "work"
        prepared.mkdir()
        work.prepare(work.SMALL, prepared)
        jobs: dict[str, list[float]] = {"early": [], "later": []}
        for number in range(max(1, options.repeats // 2)):
            for how, found in jobs.items():
                found.append(first_step(Path(scratch) / f"{how}-{number}", prepared, how))
    figures += told("a job's first step ends after", jobs["early"], jobs["later"])
    record("run_start", figures, options.folder)


if __name__ == "__main__":
    main()
