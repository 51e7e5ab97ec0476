"""How far gradients of shared samples are from those of one process, and whether random plans come to an end.

Real ranks over gloo, tiny random models, random plans with groups of 1, 2 and 4 ranks in one step; each
figure is the worst of its cases. What is in float32 or bfloat16 is compared with one process in float32.

    python -m tests.bench.hdp_exact
"""

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np

from tests.bench.figures import Figure, record
from tests.support.runtime.hdp_steps import Case, FirstShare, Kind, Random, run_plans, take_step, worst
from tests.support.runtime.rank_processes import RankProcesses
from tests.support.runtime.tiny_models import hdp_model, tiny_model

SEEDS, PLANS = range(100, 110), 2000
FAMILIES = ("llama", "qwen2", "mistral, window 9", "gemma3, window 9", "one key head")


def exactness(ranks: RankProcesses, folder: Path) -> list[Figure]:
    plain = tiny_model(folder / "qwen3")
    alone = {seed: ranks.run(1, take_step, Case(plain, seed=seed))[0][1] for seed in SEEDS}
    found = []
    for kind in get_args(Kind):
        errors = [
            worst(ranks.run(4, take_step, Case(plain, Random(seed), kind, seed=seed))[0][1], alone[seed])
            for seed in SEEDS
        ]
        for family in FAMILIES:
            case = Case(hdp_model(folder / family, family), FirstShare(4), kind)
            expected = ranks.run(1, take_step, replace(case, plans=None))[0][1]
            errors.append(worst(ranks.run(4, take_step, case)[0][1], expected))
        name = f"{kind}: relative difference of a gradient in"
        found.append(Figure(f"{name} float64", float(np.max(errors)), "", goal="at most 1e-14"))
        whole = Case(plain, dtype="float32")
        exact = ranks.run(1, take_step, whole)[0][1]
        shared = replace(whole, plans=Random(3), attention=kind)
        error = worst(ranks.run(4, take_step, shared)[0][1], exact)
        found.append(Figure(f"{name} float32", error, "", goal="at most 1e-5"))
        half = worst(ranks.run(1, take_step, replace(whole, dtype="bfloat16"))[0][1], exact)
        error = worst(ranks.run(4, take_step, replace(shared, dtype="bfloat16"))[0][1], exact)
        found.append(Figure(f"{name} bfloat16, against one process in it", error, "", half, "no worse"))
    case = Case(plain, FirstShare(4), seed=SEEDS[0], without_others=True)
    broken = worst(ranks.run(4, take_step, case)[0][1], alone[SEEDS[0]])
    return [*found, Figure("the same without what other ranks add to keys", broken, "", goal="must be seen")]


def main() -> None:
    ranks = RankProcesses(8)
    try:
        with tempfile.TemporaryDirectory() as folder:
            figures = exactness(ranks, Path(folder))
        start, done, part = time.perf_counter(), 0, 200
        for seed in range(PLANS // part):
            ranks.run(8, run_plans, part, 1000 + seed)
            done += part
        seconds = time.perf_counter() - start
        figures.append(Figure("random plans of 8 ranks that came to their end", done, f"of {PLANS}"))
        figures.append(Figure("seconds that they took", seconds, "s"))
    finally:
        ranks.close()
    record("hdp_exact", figures)


if __name__ == "__main__":
    main()
