"""Pool sizes that a search tries, beside all that there are."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rljob_api import RLJob
from rljob_runtime.simulate.site import Sizes
from rljob_runtime.simulate.size_search import MOST_TRIED, Room, peak, search
from tests.support.jobs import job

Rate = Callable[[Sizes], float]


def room(accelerators: int, changes: dict[str, Any] | None = None, **known: Any) -> Room:
    nvidia = {"accelerator": "nvidia", "training.schedule.promptsPerBatch": 64}
    return Room(RLJob.model_validate(job(nvidia | (changes or {}))).spec, accelerators, **known)


def workers(trainer: int, fast: int, heavy: int) -> dict[str, Any]:
    """Accelerators of a worker of each pool."""
    sizes = {"trainer": trainer, "fastRollout": fast, "heavyRollout": heavy}
    return {f"pools.{pool}.acceleratorsPerWorker": count for pool, count in sizes.items()}


def everything(of: Room) -> Iterator[Sizes]:
    """All that the job may have."""
    for trainer in range(1, of.accelerators + 1):
        for heavy in range(of.accelerators + 1):
            for fast in range(of.accelerators + 1):
                if of.allows(sizes := Sizes(trainer, fast, heavy)):
                    yield sizes


def model(heavy: float, train: float, tail: float) -> Rate:
    """A trainer whose work is shared, beside engines that share theirs and all wait for the longest response.
    A heavy engine does so many times as much as a fast one; training takes so many times as long as
    generating does; so much of that is the longest response on one fast engine."""

    def rate(sizes: Sizes) -> float:
        fastest = heavy if sizes.heavy else 1.0
        engines = sizes.fast + heavy * sizes.heavy
        return 1 / (max(train / sizes.trainer, 1 / engines) + tail / fastest)

    return rate


SHAPES = [(1, 1, 1), (1, 1, 2), (1, 1, 4), (1, 2, 4), (2, 1, 8), (4, 4, 4)]


@pytest.mark.parametrize(
    ("shape", "accelerators"),
    [*((shape, count) for count in (9, 16) for shape in SHAPES), ((1, 1, 4), 33), ((2, 1, 8), 33)],
    ids=str,
)
def test_what_is_found_is_as_fast_as_anything(shape: tuple[int, int, int], accelerators: int) -> None:
    of = room(accelerators, workers(*shape))
    known = list(everything(of))
    assert known
    for heavy in (0.5, 1.0, 1.6, 2.6, 6.0):
        for train in (0.05, 1.0, 20.0):
            for tail in (0.0, 0.05, 1.0):
                rate = model(heavy, train, tail)
                tried = search(of, rate)
                assert max(tried.values()) >= 0.98 * max(map(rate, known)), (heavy, train, tail)


@pytest.mark.parametrize("accelerators", [400, 12_288])
def test_many_accelerators_take_a_bounded_number_of_tries(accelerators: int) -> None:
    of = room(accelerators, {"training.schedule.promptsPerBatch": 4096})
    rate = model(1.6, 3.0, 0.001)
    tried = search(of, rate)
    assert len(tried) <= MOST_TRIED
    alone = (of.divided(trainer, part) for trainer in of.trainers for part in (0, 1))
    assert max(tried.values()) >= 0.98 * max(rate(sizes) for sizes in alone if sizes is not None)


def test_no_pool_is_tried_with_more_workers_than_it_may_have() -> None:
    of = room(20_000, workers(16, 1, 1), suits=lambda sizes: sizes.trainer == 600)
    tried = search(of, model(1.6, 1.0, 0.1))
    assert {sizes.fast for sizes in tried if not sizes.heavy} == {4096}
    assert {sizes.heavy for sizes in tried if not sizes.fast} == {4096}
    assert max(max(sizes.fast, sizes.heavy) for sizes in tried) == 4096


def test_no_surface_takes_more_tries() -> None:
    """Each sizes that are tried are faster than all before."""
    tried: list[Sizes] = []

    def rate(sizes: Sizes) -> float:
        tried.append(sizes)
        return float(len(tried))

    assert len(search(room(2000, workers(1, 1, 2)), rate)) == len(tried) == len(set(tried)) <= MOST_TRIED


@pytest.mark.parametrize(
    ("own", "accelerators", "first"),
    [
        ((8, 0, 2), 16, Sizes(8, 0, 2)),
        ((3, 3, 1), 16, Sizes(3, 3, 1)),
        ((8, 1, 2), 16, None),
    ],
    ids=["as many accelerators", "fewer", "more"],
)
def test_the_job_s_own_sizes_are_tried_first(
    own: tuple[int, int, int], accelerators: int, first: Sizes | None
) -> None:
    pools = zip(("trainer", "fastRollout", "heavyRollout"), own, strict=True)
    changes = {f"pools.{pool}.replicas": count for pool, count in pools}
    order = list(search(room(accelerators, workers(1, 1, 4) | changes), model(2.6, 1.0, 0.1)))
    assert (order[0] == first) == (first is not None)
    assert (Sizes(*own) in order) == (first is not None)


@pytest.mark.parametrize(
    ("changes", "empty"),
    [
        ({}, {"fast", "heavy"}),
        ({"training.rollout.routing": {"probe": {}}, "training.rollout.samplesPerPrompt": 8}, set()),
    ],
    ids=["may be empty", "routing needs both"],
)
def test_each_rollout_pool_is_tried_empty_where_the_job_may_have_it_so(
    changes: dict[str, Any], empty: set[str]
) -> None:
    both = {"pools.fastRollout.replicas": 2, "pools.heavyRollout.replicas": 1}
    tried = search(room(12, workers(1, 1, 2) | both | changes), model(1.6, 1.0, 0.1))
    assert tried
    assert {pool for pool in ("fast", "heavy") if any(not getattr(sizes, pool) for sizes in tried)} == empty


def test_only_sizes_are_tried_that_are_wanted() -> None:
    of = room(16, workers(1, 1, 4), suits=lambda sizes: not sizes.fast and sizes.trainer <= 8)
    tried = search(of, model(2.6, 1.0, 0.1))
    assert {sizes.fast for sizes in tried} == {0}
    assert {Sizes(8, 0, 2), Sizes(4, 0, 3)} <= set(tried) and max(sizes.trainer for sizes in tried) == 8


def test_a_job_that_may_have_no_sizes_has_none() -> None:
    wide = {"training.parallel": {"tensorParallel": 4}, "pools.trainer.replicas": 4}
    of = room(4, wide)
    assert search(of, lambda _: 1.0) == {} and of.problem is None
    assert of.refusal is not None and "tensorParallel must divide" in of.refusal


@pytest.mark.parametrize(
    ("shape", "accelerators", "told"),
    [
        ((1, 1, 1), 1, "1 accelerator is too few for one trainer worker and one engine, which have 2"),
        ((4, 8, 2), 5, "5 accelerators are too few for one trainer worker and one engine, which have 6"),
        ((4, 8, 2), 6, None),
        ((1, 1, 4), 6 * 4096 + 1, "24577 accelerators are more than a job may have: 24576, with 4096"),
    ],
)
def test_too_few_and_too_many_accelerators_are_told(
    shape: tuple[int, int, int], accelerators: int, told: str | None
) -> None:
    problem = room(accelerators, workers(*shape)).problem
    assert problem is None if told is None else problem is not None and problem.startswith(told)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 12, 100, 10_000])
def test_a_peak_is_found_by_few_looks(count: int) -> None:
    for top in {0, 1, count // 3, count // 2, count - 2, count - 1} & set(range(count)):
        looked: set[int] = set()

        def value(place: int, top: int = top, looked: set[int] = looked) -> float:
            looked.add(place)
            return -abs(place - top)

        assert peak(count, value) == top
        assert len(looked) <= 2 + 1.5 * math.log2(count)
