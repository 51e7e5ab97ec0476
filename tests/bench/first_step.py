"""How long a user waits for the first step after `rljob run`, with the model on disk.

The job and its work are those of `tests/bench/peers`: a random model of Qwen3-0.6B's shape, 64 prompts of 8
responses of up to 1,024 tokens. First with empty caches (of vLLM, of torch.compile and of Triton), as on a
new machine; then with those that this run filled, which is the second figure, and its baseline the first.

    python -m tests.bench.first_step --gpus 2 --out $OUT
    python -m tests.bench.first_step                        a small model on a CPU, to see that it runs
"""

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch  # noqa: F401 - so that `record` names the GPU

from rljob_runtime.trace.record.metrics_log import read_metrics
from tests.bench.figures import RESULTS, Figure, record
from tests.bench.peers import work as peers_work
from tests.bench.peers.ours import manifest, named
from tests.bench.real_runs import RUN, run_job

STEPS = 2
GOAL = "<= 60 s"
CACHES = ("VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
"""Environment variables that name where things that were compiled are kept."""


@contextmanager
def own_caches(folder: Path) -> Iterator[None]:
    """In the body, all caches are in a folder."""
    before = {name: os.environ.get(name) for name in CACHES}
    os.environ.update({name: str(folder / name.lower()) for name in CACHES})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value


def first_step(folder: Path, prepared: Path, options: argparse.Namespace) -> tuple[float, str]:
    """Run the job in a folder; seconds until its first step had ended, and what was said of its start."""
    ours = named(options.job)
    if ours is None:
        raise SystemExit(f"--job {options.job}: allowed are ours-BOUND, ours-BOUND-shared")
    work = peers_work.LARGE if options.gpus else peers_work.SMALL
    job = manifest(ours, replace(work, steps=STEPS), prepared, options.gpus, 16384)
    if not options.gpus:
        job["spec"]["training"]["rollout"]["engine"] = {"vllm": {"kvCacheGiB": 0.3}}
    folder.mkdir()
    began = time.time()
    # One GPU is the trainer's and the engine's.
    shared = ["--share"] if ours.shared or options.gpus == 1 else []
    run_job(folder, job, options.seconds, "--no-live", *shared)
    [first, *_] = read_metrics(folder / RUN / "metrics.jsonl").rows
    said = [line for line in (folder / RUN / "driver.log").read_text().splitlines() if "ready after" in line]
    return first["time"] - began, said[0] if said else ""


def main() -> None:
    options = parse()
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as scratch:
        prepared = Path(scratch) / "work"
        prepared.mkdir()
        peers_work.prepare(peers_work.LARGE if options.gpus else peers_work.SMALL, prepared)
        with own_caches(Path(scratch) / "caches"):
            for name in ("empty caches", "filled caches"):
                took, said = first_step(Path(scratch) / name.replace(" ", "_"), prepared, options)
                print(f"{name}: {said}", flush=True)
                base = figures[0].value if figures else None
                figures.append(Figure(f"the first step ends after, {name}", took, "s", base, GOAL))
                record(f"first_step_{options.gpus or 'cpu'}", figures, options.out)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpus", type=int, default=0, help="0: a CPU, with little work")
    parser.add_argument("--job", default="ours-1", help="as the contenders of tests/bench/peers")
    parser.add_argument("--seconds", type=float, default=300, help="of each run")
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
