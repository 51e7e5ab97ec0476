"""P-DSR while pools come and go, which its authors do not describe."""

import pytest

from rljob_runtime.routing.requests import EngineShape, RequestKey
from tests.support.simulated.probe_site import FAST, HEAVY, Site


def test_without_a_heavy_engine_the_fast_pool_does_it_all_without_a_cap() -> None:
    site = Site(heavy=0).probed()
    assert len(site.on(FAST)) == 10 * 3
    site.progress(6, 2, 10_000)
    assert not site.leaving
    site.router.join(HEAVY, EngineShape("heavy", 100))
    site.act()
    site.progress(6, 2, 10_001)
    site.progress(1, 2, 10_001)
    site.progress(5, 2, 1201)
    assert site.leaving == {RequestKey(5, 2): True}, "what is long, or was let go above the cap, may stay"
    site.interrupt(6, 2, 10_001)
    assert site.where[RequestKey(6, 2)] == FAST
    site.interrupt(1, 2, 10_001)
    assert site.where[RequestKey(1, 2)] == HEAVY


def test_without_a_fast_engine_the_heavy_pool_does_it_all() -> None:
    site = Site(cohort=10, fast=0)
    assert site.router.wants_group()
    site.dispatch(range(3))
    for uid in range(3):
        site.finish(uid, 0, 10 * uid + 10)
    assert site.groups_on(HEAVY) == {0, 1, 2}, "this cohort does not wait for others either"
    site.progress(0, 1, 1000)
    assert not site.leaving


def test_several_changes_of_the_pools_at_a_time() -> None:
    site = Site(cohort=5, fast=3, heavy=1)
    site.dispatch(range(3))
    for uid in range(3):
        site.finish(uid, 0, uid + 1)
    while site.on(FAST):
        site.finish(*min(site.on(FAST)), tokens=1)
    assert site.on(HEAVY) == {(2, 1)}
    site.router.remove(HEAVY)
    site.router.join(2, EngineShape("fast", 1))
    site.act()
    assert site.on(FAST) | site.on(2) == {(2, 2), (2, 3)}, "the engine that was there serves both lanes too"


@pytest.mark.parametrize("lost", [FAST, HEAVY])
def test_what_waits_for_a_lost_pool_goes_to_the_other(lost: int) -> None:
    site = Site(cohort=5, fast=2, heavy=2)
    site.dispatch(range(5))
    for _ in range(5):
        (uid, _), *_ = sorted(site.on(FAST))
        site.finish(uid, 0, uid + 1)
    assert len(site.on(FAST)) == len(site.on(HEAVY)) == 2
    site.router.remove(lost)
    for uid, sample in site.on(lost):
        site.interrupt(uid, sample, 1)
    ended = set()
    while site.where:
        (uid, sample), *_ = sorted(site.where)
        ended.add((uid, sample))
        site.finish(uid, sample, 1)
    assert ended == {(uid, sample) for uid in range(5) for sample in (1, 2, 3)}


def test_a_heavy_engine_that_comes_gets_what_waits() -> None:
    site = Site(fast=10, heavy=0).probed([1, 2, 3, 4, 5])
    assert len(site.on(FAST)) == 10
    site.router.join(HEAVY, EngineShape("heavy", 100))
    site.act()
    assert site.on(HEAVY) == {(4, 1), (4, 2), (4, 3)}
    site.finish(0, 1, 1)
    assert (3, 2) in site.on(FAST), "it serves its own requests only"
