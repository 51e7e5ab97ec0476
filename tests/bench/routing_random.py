"""Adaptive routing against least in flight on random workloads: engines, limits, KV caches, costs, lengths
and batch sizes are all drawn. What must not happen is that a workload becomes slower.

A workload is a distribution, of which several batches are drawn and compared by their summed times: of a
single batch, luck decides which policy happens to begin its longest response first.

    python -m tests.bench.routing_random
    python -m tests.bench.routing_random --part WORKLOADS FIRST > FILE
    python -m tests.bench.routing_random --collect FILE ...
"""

import random
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from rljob_runtime.routing.cost import StepCost
from rljob_runtime.simulate.physics import Physics
from rljob_runtime.simulate.workload import LengthModel
from tests.bench.figures import Figure, record
from tests.bench.routing_sites import VLLM_GRAPHS, Site

WORKLOADS = 240
BATCHES = 3
"""Of each workload."""
_MOST_GROUPS = 384


def draw(seed: int) -> Site:
    """The site of one seed."""
    r = random.Random(seed)
    cap = r.choice((512, 2048, 8192, 32768))
    lengths = LengthModel(
        mean=cap * r.uniform(0.05, 0.5), cap=cap, between=r.uniform(0, 1.2), within=r.uniform(0, 1.0),
        order=r.choice((0.0, 0.0, 0.7)), prompt_tokens=r.choice((16, 128, 1024)),
    )  # fmt: skip
    fixed = r.choice((0.005, 0.01, 0.03, 0.1))
    cost = StepCost(
        fixed, per_request=fixed * r.choice((0.0, 0.001, 0.01)), per_kv_token=fixed * 10 ** r.uniform(-7, -5),
        per_prefill_token=fixed / r.choice((50, 200, 1000)), gears=r.choice(((), VLLM_GRAPHS, (8, 64, 256))),
    )  # fmt: skip
    engines, limit = r.choice((1, 2, 3, 4, 8, 16)), r.choice((4, 16, 64, 256))
    longest = cap + lengths.prompt_tokens
    kv = int(max(1.1 * longest, limit * lengths.mean * r.choice((0.5, 1.0, 4.0))))
    groups = min(_MOST_GROUPS, max(4, int(engines * limit * 10 ** r.uniform(-0.7, 0.7)) // 8))
    return Site(
        f"{engines} engines of {limit}, {groups} x 8 responses of {lengths.mean:.0f} tokens, cap {cap}, "
        f"log-deviations {lengths.between:.2f} and {lengths.within:.2f}, KV {kv}",
        groups, 8, engines, limit, kv, lengths, cost,
        Physics(report_seconds=fixed * lengths.mean / 20),
    )  # fmt: skip


def measure(count: int, first: int) -> dict[int, float]:
    """By seed, times as fast as least in flight. Prints each."""
    ratios: dict[int, float] = {}
    for seed in range(first, first + count):
        site = draw(seed)
        batches = range(BATCHES * seed, BATCHES * (seed + 1))
        base, ours = (
            sum(site.run({policy: {}}, batch).wall for batch in batches)
            for policy in ("leastInFlight", "adaptive")
        )
        ratios[seed] = base / ours
        print(seed, ratios[seed], site.name if ratios[seed] < 0.99 else "", flush=True)
    return ratios


def collected(files: Sequence[str]) -> dict[int, float]:
    """The ratios that parts have printed."""
    lines = [line.split(maxsplit=2) for file in files for line in Path(file).read_text().splitlines()]
    return {int(seed): float(ratio) for seed, ratio, *_ in lines}


def main() -> None:
    match sys.argv[1:]:
        case ["--part", count, first]:
            measure(int(count), int(first))
        case ["--collect", *files]:
            tell(collected(files))
        case _:
            tell(measure(WORKLOADS, 0))


def tell(ratios: dict[int, float]) -> None:
    count, slowest = len(ratios), min(ratios, key=lambda seed: ratios[seed])
    values = sorted(ratios.values())
    record(
        "routing_random",
        [
            Figure(f"slowest of {count} workloads (seed {slowest})", values[0], "x", goal="at least 0.99"),
            Figure("workloads slower by more than 1 %", sum(v < 0.99 for v in values), "workloads", goal="0"),
            Figure("5th percentile", values[int(0.05 * count)], "x"),
            Figure("median", statistics.median(values), "x"),
            Figure("95th percentile", values[int(0.95 * count)], "x"),
            Figure("mean", statistics.mean(values), "x"),
        ],
    )


if __name__ == "__main__":
    main()
