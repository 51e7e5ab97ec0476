"""Balance of lengths that have many sizes, by itself and in a simulated training step.

Baselines in the same run: Karmarkar–Karp as a heap of states (`tests/support/heap_karmarkar_karp.py`, the
usual form), and the published pipeline: equally many samples for each rank by Karmarkar–Karp, then
micro-batches of each rank by Karmarkar–Karp, one more of them until all are below the cap. Times are the
best of three, of the processor; memory is the largest of a process that does nothing else. A simulated step
counts each pass by the cost model before any measurement (8B parameters); ranks wait for each other after
each pass.

    python -m tests.bench.balance
"""

import multiprocessing
import resource
import time
from collections.abc import Callable, Sequence

import numpy as np

from rljob_runtime.parallel.cost_model import CostModel, ModelShape
from rljob_runtime.parallel.karmarkar_karp import karmarkar_karp
from rljob_runtime.parallel.loads import Ints, loads_of, members_of
from rljob_runtime.parallel.longest_first import balance, longest_first
from rljob_runtime.parallel.micro_batches import Item, MicroBatch, plan_micro_batches
from rljob_runtime.parallel.mini_batches import BatchOrder, split_groups
from rljob_runtime.simulate.workload import LengthModel
from tests.bench.figures import Figure, parser, record
from tests.support.heap_karmarkar_karp import heap_karmarkar_karp
from tests.support.imbalance import imbalance, planned_imbalance

SEEDS = range(3)
LENGTHS = LengthModel(7345, 32768, 0.8, 0.5)
COST = CostModel.prior(ModelShape(36, 7_570_000_000, 4096, 1024), 1)
PUBLISHED_SECONDS, PUBLISHED_GIGABYTES = 217.0, 10.9
"""Of verl 0.9.1's `karmarkar_karp` at 65,536 samples on 1,024 ranks, measured on another machine of this
kind: too long for this run."""

Method = Callable[[Ints, int, bool], Ints]
Plan = list[list[MicroBatch]]


def heap(costs: Ints, bins: int, equal: bool) -> Ints:
    bin_of = np.empty(len(costs), np.int64)
    for index, members in enumerate(heap_karmarkar_karp(costs.tolist(), bins, equal)):
        bin_of[list(members)] = index
    return bin_of


METHODS: dict[str, Method] = {
    "heap of states": heap,
    "Karmarkar–Karp": karmarkar_karp,
    "longest first": longest_first,
    "longest first, exchanges": balance,
}


def drawn(model: LengthModel, samples: int, seed: int) -> Ints:
    return model.draw(samples // 16, 16, seed).lengths.ravel()


def measured(name: str, samples: int, bins: int, equal: bool) -> tuple[float, float, float]:
    """Seconds, MiB and largest load by mean, the latter the worst of the seeds, in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_measure, (name, samples, bins, equal))


def _measure(name: str, samples: int, bins: int, equal: bool) -> tuple[float, float, float]:
    spent, worst = [], 1.0
    for seed in SEEDS:
        lengths = drawn(LENGTHS, samples, seed)
        began = time.process_time()
        bin_of = METHODS[name](lengths, bins, equal)
        spent.append(time.process_time() - began)
        worst = max(worst, imbalance(loads_of(bin_of, lengths, bins)))
    return min(spent), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, worst


def partitions() -> list[Figure]:
    figures = large_instance()
    for samples, bins, equal in ((8192, 128, False), (8192, 1024, True), (512, 128, True)):
        what = f"{samples:,} samples, {bins:,} ranks, {'equal sizes' if equal else 'free'}"
        base = measured("heap of states", samples, bins, equal)
        for name in ("Karmarkar–Karp", "longest first, exchanges"):
            seconds, mebibytes, worst = measured(name, samples, bins, equal)
            goal = "0.003" if (bins, name) == (1024, "longest first, exchanges") else None
            figures += [
                Figure(f"{what}, {name}: time", 1e3 * seconds, "ms", 1e3 * base[0]),
                Figure(f"{what}, {name}: memory of the process", mebibytes, "MiB", base[1]),
                Figure(f"{what}, {name}: largest load above the mean", worst - 1, "of it", base[2] - 1, goal),
            ]
    return figures


def large_instance() -> list[Figure]:
    figures: list[Figure] = []
    for name in list(METHODS)[1:]:
        seconds, mebibytes, worst = measured(name, 65536, 1024, False)
        goals = ("< 0.6 s", "< 200 MB", "1e-5") if name == "longest first, exchanges" else (None,) * 3
        what = f"65,536 samples, 1,024 ranks, free, {name}"
        figures += [
            Figure(f"{what}: time", seconds, "s", PUBLISHED_SECONDS, goals[0]),
            Figure(f"{what}: memory of the process", mebibytes, "MiB", PUBLISHED_GIGABYTES * 1024, goals[1]),
            Figure(f"{what}: largest load above the mean", worst - 1, "of it", goal=goals[2]),
        ]
    return figures


def published(lengths: Ints, ranks: int, cap: int) -> Plan:
    """The published pipeline."""
    work = 24576 * lengths + lengths**2
    shares = [np.array(each) for each in members_of(karmarkar_karp(work, ranks, equal=True), ranks)]
    passes = max(min(len(each), -(-int(lengths[each].sum()) // cap)) for each in shares)
    while True:
        bins = [karmarkar_karp(work[each], passes) for each in shares]
        if all(
            loads_of(bin_of, lengths[each], passes).max() <= cap
            for each, bin_of in zip(shares, bins, strict=True)
        ):
            break
        passes += 1
    plan: Plan = []
    for each, bin_of in zip(shares, bins, strict=True):
        found = [tuple(each[list(inside)].tolist()) for inside in members_of(bin_of, passes)]
        plan.append(sorted(found, key=lambda batch: -work[list(batch)].sum()))
    return plan


def in_order(lengths: Ints, ranks: int, cap: int) -> Plan:
    """Each rank has its part of the samples as they come, filled up one after the other."""
    plan: Plan = []
    for share in np.array_split(np.arange(len(lengths)), ranks):
        batches: list[list[int]] = [[]]
        for index in share.tolist():
            if lengths[batches[-1]].sum() + lengths[index] > cap:
                batches.append([])
            batches[-1].append(index)
        plan.append(list(map(tuple, batches)))
    passes = max(map(len, plan))
    return [[*rank, *[()] * (passes - len(rank))] for rank in plan]


def ours(lengths: Ints, ranks: int, cap: int) -> Plan:
    costs = COST.sample_seconds(lengths, 1)
    return plan_micro_batches(_items(lengths), cap, ranks, costs, COST.pass_seconds(1))


def by_tokens(lengths: Ints, ranks: int, cap: int) -> Plan:
    return plan_micro_batches(_items(lengths), cap, ranks)


def _items(lengths: Ints) -> list[Item]:
    return [Item(0, index, int(length)) for index, length in enumerate(lengths)]


def step_time(plan: Plan, lengths: Ints) -> float:
    """Of the simulated step, by that of samples without passes that are spread evenly."""
    costs = COST.sample_seconds(lengths, 1)
    passes = len(plan[0]) * COST.pass_seconds(1) * len(plan) / float(costs.sum())
    return planned_imbalance(plan, costs.tolist()) + passes


def steps() -> list[Figure]:
    figures = []
    for mean, between, within in ((1500, 0.8, 0.4), (7345, 0.6, 0.2), (7345, 0.8, 0.5)):
        model = LengthModel(mean, 32768, between, within)
        for samples, ranks, cap in (
            (512, 8, 34816),
            (512, 32, 34816),
            (8192, 128, 34816),
            (8192, 128, 69632),
        ):
            found: dict[str, list[float]] = {}
            spent = []
            for seed in SEEDS:
                lengths = drawn(model, samples, seed)
                for method in (in_order, published, by_tokens, ours):
                    began = time.process_time()
                    plan = method(lengths, ranks, cap)
                    if method is ours:
                        spent.append(time.process_time() - began)
                    found.setdefault(method.__name__, []).append(step_time(plan, lengths))
            times = {name: float(np.mean(values)) for name, values in found.items()}
            lengths_of = f"{samples:,} samples of {mean:,} tokens (deviation {np.hypot(between, within):.2f})"
            what = f"{lengths_of}, {ranks} ranks, cap {cap // 1024}k"
            goal = "1.03" if (samples, ranks, mean) == (512, 32, 1500) else None
            base = times["published"]
            figures += [
                Figure(f"{what}: step", times["ours"], "of perfect", base, goal),
                Figure(f"{what}: step, planned by tokens", times["by_tokens"], "of perfect", base),
                Figure(f"{what}: step, no balance", times["in_order"], "of perfect", base),
                Figure(
                    f"{what}: planning", 1e3 * min(spent), "ms", None, "< 50 ms" if samples == 512 else None
                ),
            ]
    return figures


def updates() -> list[Figure]:
    figures = []
    orders: Sequence[BatchOrder] = ("level", "shortEnds")
    for groups, size in ((256, 64), (512, 32)):
        most: dict[BatchOrder, list[float]] = {}
        for seed in SEEDS:
            tokens = LENGTHS.draw(groups, 16, seed).lengths.sum(axis=1)
            for order in ("data", *orders):
                split = split_groups(tokens.tolist(), size, order)
                loads = [int(tokens[list(update)].sum()) for update in split]
                most.setdefault(order, []).append(imbalance(loads))
        figures += [
            Figure(
                f"{groups // size} updates of {size} prompts, {order}: tokens of the largest",
                float(np.mean(most[order])),
                "of the mean",
                float(np.mean(most["data"])),
            )
            for order in orders
        ]
    return figures


def main() -> None:
    out = parser(__doc__).parse_args().out
    record("balance", [*partitions(), *steps(), *updates()], out)


if __name__ == "__main__":
    main()
