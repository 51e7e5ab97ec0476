"""How far gradients of shared samples are from those of one process, and whether random plans come to an end.

Real ranks over gloo, tiny random models, random plans with groups of 1, 2 and 4 ranks in one step; each
figure is the worst of its cases. What is in float32 or bfloat16 is compared with one process in float32.

    python -m tests.bench.hdp_exact
    python -m tests.bench.hdp_exact --gpus 2      the gradients alone, over NCCL, in groups of 1 and 2
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np

from tests.bench.figures import RESULTS, Figure, record
from tests.support.runtime.hdp_steps import Case, FirstShare, Kind, Random, run_plans, take_step, worst
from tests.support.runtime.rank_processes import RankProcesses
from tests.support.runtime.tiny_models import hdp_model, tiny_model

SEEDS, PLANS = range(100, 110), 2000
GPU_SEEDS = range(100, 103)
FAMILIES = ("llama", "qwen2", "mistral, window 9", "gemma3, window 9", "one key head")


def exactness(ranks: RankProcesses, folder: Path, gpus: int | None) -> Iterator[Figure]:
    """Each as soon as it is there."""
    count, seeds, where = (gpus, GPU_SEEDS, f"{gpus} GPUs, ") if gpus else (4, SEEDS, "")
    plain = Case(tiny_model(folder / "qwen3"), accelerator="nvidia" if gpus else "cpu")
    alone = {seed: ranks.run(1, take_step, replace(plain, seed=seed))[0][1] for seed in seeds}
    for kind in get_args(Kind):
        name = f"{where}{kind}: relative difference of a gradient in"
        whole = replace(plain, dtype="float32")
        exact = ranks.run(1, take_step, whole)[0][1]
        shared = replace(whole, plans=Random(3), attention=kind)
        error = worst(ranks.run(count, take_step, shared)[0][1], exact)
        yield Figure(f"{name} float32", error, "", goal="at most 1e-5")
        half = worst(ranks.run(1, take_step, replace(whole, dtype="bfloat16"))[0][1], exact)
        error = worst(ranks.run(count, take_step, replace(shared, dtype="bfloat16"))[0][1], exact)
        yield Figure(f"{name} bfloat16, against one process in it", error, "", half, "no worse")
        errors = [
            worst(ranks.run(count, take_step, each)[0][1], alone[each.seed])
            for each in (replace(plain, plans=Random(seed), attention=kind, seed=seed) for seed in seeds)
        ]
        for family in FAMILIES:
            case = replace(
                plain, folder=hdp_model(folder / family, family), plans=FirstShare(count), attention=kind
            )
            expected = ranks.run(1, take_step, replace(case, plans=None))[0][1]
            errors.append(worst(ranks.run(count, take_step, case)[0][1], expected))
        yield Figure(f"{name} float64", float(np.max(errors)), "", goal="at most 1e-14")
    case = replace(plain, plans=FirstShare(count), seed=seeds[0], without_others=True)
    broken = worst(ranks.run(count, take_step, case)[0][1], alone[seeds[0]])
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
    options = parser.parse_args()
    ranks = RankProcesses(options.gpus or 8)
    try:
        with tempfile.TemporaryDirectory() as folder:
            for figure in exactness(ranks, Path(folder), options.gpus):
                record("hdp_exact", [figure], options.out, keep=True)
        if not options.gpus:
            record("hdp_exact", plans(ranks), options.out, keep=True)
    finally:
        ranks.close()


if __name__ == "__main__":
    main()
