"""What every plan of shared passes keeps, and a model of ranks that run one."""

import random
from collections import deque
from collections.abc import Sequence

from rljob_runtime.parallel.hdp_plan import Plan, PlannedBatch


def largest(world: int) -> int:
    return int(1 << (world.bit_length() - 1))


def check(plan: Plan, lengths: Sequence[int], world: int, cap: int) -> None:
    """Every guarantee that a plan gives by itself."""
    assert len(plan.ranks) == world
    for rank, passes in enumerate(plan.ranks):
        degrees = [each.degree for each in passes]
        assert degrees == sorted(degrees, reverse=True)
        for each in passes:
            assert each.degree & (each.degree - 1) == 0
            assert each.first % each.degree == 0
            assert each.first <= rank < each.first + each.degree <= world
            assert each.samples and list(each.samples) == sorted(set(each.samples))
            twice = 2 * each.degree if each.degree > 1 else 1
            assert sum(-(-lengths[i] // twice) * twice for i in each.samples) <= cap * each.degree
    assert sorted(index for each in plan.passes for index in each.samples) == list(range(len(lengths)))
    for each in plan.passes:
        group = range(each.first, each.first + each.degree)
        of_group = [
            [p for p in plan.ranks[r] if (p.first, p.degree) == (each.first, each.degree)] for r in group
        ]
        assert all(own == of_group[0] for own in of_group)


def run(ranks: Sequence[Sequence[PlannedBatch]], choose: random.Random) -> int:
    """How many passes are left when nothing can go on: a pass runs when it is next on all ranks of its
    group, and of those that can run any may be first."""
    left = [deque(passes) for passes in ranks]
    while True:
        ready = [
            each
            for rank, queue in enumerate(left)
            if queue and (each := queue[0]).first == rank
            and all(other and other[0] == each for other in list(left)[rank : rank + each.degree])
        ]  # fmt: skip
        if not ready:
            return sum(map(len, left))
        each = choose.choice(ready)
        for rank in range(each.first, each.first + each.degree):
            left[rank].popleft()
