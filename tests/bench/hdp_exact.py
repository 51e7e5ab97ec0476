"""How far gradients of shared samples are from those of one process, and whether random plans come to an end.

Real ranks over gloo, tiny random models, random plans with groups of 1, 2 and 4 ranks in one step; each
figure is the worst of its cases. What is in float32 or bfloat16 is compared with one process in float32.

    python -m tests.bench.hdp_exact
    python -m tests.bench.hdp_exact --gpus 2      the gradients alone, over NCCL, in groups of 1 and 2
    python -m tests.bench.hdp_exact --gpus 2 --ways ulysses "layers split" "copies of the model"
"""

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from tests.bench.figures import RESULTS, Figure, record
from tests.support.runtime.hdp_steps import Case, FirstShare, Kind, Random, run_plans, take_step, worst
from tests.support.runtime.rank_processes import RankProcesses
from tests.support.runtime.tiny_models import hdp_model, tiny_model

SEEDS, PLANS = range(100, 110), 2000
FAMILIES = ("llama", "qwen2", "mistral, window 9", "gemma3, window 9", "one key head")
SHAPES: dict[str, dict[str, Any]] = {
    "layers split": {"plans": None, "tensor": 2, "pass_tokens": 128},
    "copies of the model": {"plans": None, "copy": 1},
    "layers split, allGather": {"tensor": 2},
    "layers split, ulysses": {"tensor": 2, "attention": "ulysses"},
}
"""Two ranks have each layer together, or each a whole copy; without plans they share no samples."""
BROKEN = "without"
WAYS = (*get_args(Kind), *SHAPES, BROKEN)
GPU_SEEDS, GPU_FAMILIES = range(100, 102), ("mistral, window 9", "one key head")


def exactness(ranks: RankProcesses, folder: Path, gpus: int | None, ways: Sequence[str]) -> Iterator[Figure]:
    """Each as soon as it is there."""
    families: tuple[str, ...] = FAMILIES
    count, seeds, where = 4, SEEDS, ""
    if gpus:
        count, seeds, families, where = gpus, GPU_SEEDS, GPU_FAMILIES, f"{gpus} GPUs, "

    def alone(case: Case) -> Any:
        return ranks.run(1, take_step, replace(case, plans=None))[0][1]

    def error(case: Case, expected: Any) -> float:
        return worst(ranks.run(count, take_step, case)[0][1], expected)

    plain = Case(tiny_model(folder / "qwen3"), accelerator="nvidia" if gpus else "cpu")
    cases = [replace(plain, plans=Random(seed), seed=seed) for seed in seeds]
    cases += [
        replace(plain, folder=hdp_model(folder / family, family), plans=FirstShare(count))
        for family in families
    ]
    in_float32 = replace(plain, dtype="float32", plans=Random(3))
    in_bfloat16 = replace(in_float32, dtype="bfloat16")
    expected, exact = [alone(case) for case in cases], alone(in_float32)
    half = worst(alone(in_bfloat16), exact)
    for kind in (each for each in get_args(Kind) if each in ways):
        name = f"{where}{kind}: relative difference of a gradient in"
        errors = [
            error(replace(case, attention=kind), each) for case, each in zip(cases, expected, strict=True)
        ]
        yield Figure(f"{name} float64", float(np.max(errors)), "", goal="at most 1e-14")
        single = error(replace(in_float32, attention=kind), exact)
        yield Figure(f"{name} float32", single, "", goal="at most 1e-5")
        shared = error(replace(in_bfloat16, attention=kind), exact)
        yield Figure(f"{name} bfloat16, against one process in it", shared, "", half, "no worse")
    for way in (each for each in SHAPES if each in ways):
        shape = SHAPES[way]
        if "plans" not in shape and count // shape["tensor"] < 2:
            # A pair has no other to share samples with.
            continue
        # Not every family has key heads for two ranks.
        pairs = list(zip(cases, expected, strict=True))[: len(seeds)]
        errors = [error(replace(case, **shape), each) for case, each in pairs]
        name = f"{where}{way}: relative difference of a gradient in"
        yield Figure(f"{name} float64", float(np.max(errors)), "", goal="at most 1e-14")
        single = error(replace(in_float32, **shape), exact)
        yield Figure(f"{name} float32", single, "", goal="at most 1e-5")
    if BROKEN not in ways:
        return
    broken = error(replace(plain, plans=FirstShare(count), seed=seeds[0], without_others=True), expected[0])
    yield Figure(f"{where}the same without what other ranks add to keys", broken, "", goal="must be seen")


def plans(ranks: RankProcesses) -> list[Figure]:
    """Whether random plans end."""
    start, done, part = time.perf_counter(), 0, 200
    for seed in range(PLANS // part):
        ranks.run(8, run_plans, part, 1000 + seed)
        done += part
    seconds = time.perf_counter() - start
    return [
        Figure("random plans of 8 ranks that came to their end", done, f"of {PLANS}"),
        Figure("seconds that they took", seconds, "s"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--gpus", type=int, help="a power of two; default: ranks on CPUs")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument(
        "--ways",
        nargs="+",
        choices=WAYS,
        default=WAYS,
        help="to share the work; default: all, and random plans",
    )
    options = parser.parse_args()
    # Ends the ranks, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    ranks = RankProcesses(options.gpus or 8)
    try:
        with tempfile.TemporaryDirectory() as folder:
            for figure in exactness(ranks, Path(folder), options.gpus, options.ways):
                record("hdp_exact", [figure], options.out, keep=True)
        if not options.gpus and options.ways == WAYS:
            record("hdp_exact", plans(ranks), options.out, keep=True)
    finally:
        ranks.close()


if __name__ == "__main__":
    main()
