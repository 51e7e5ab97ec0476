"""P-DSR, as its authors describe it: probe, sort, offload the top 20 %, break the circuit at 1.5 times the
cut, run again on the heavy pool. And what they do not describe: groups that do not come."""

import math

import pytest

from rljob_runtime.routing.probe import longest
from rljob_runtime.routing.requests import GroupRequest, RequestKey
from tests.support.simulated.probe_site import FAST, HEAVY, LENGTHS, Site


@pytest.mark.parametrize(
    ("lengths", "share", "chosen"),
    [
        ([10, 50, 30, 20, 40], 0.2, [1]),
        (LENGTHS, 0.2, [1, 7]),
        (LENGTHS, 0.5, [1, 7, 8, 6, 5]),
        ([7, 7, 7, 7, 7], 0.2, [0]),
        ([1, 2, 3], 0.2, [2]),
        ([1, 2], 0.2, []),
        ([9], 0.2, []),
        ([9], 0.6, [0]),
        ([], 0.2, []),
    ],
    ids=[
        "top 20 % of five", "of ten", "half", "of equals the first", "0.6 of a group is one", "0.4 is none",
        "one group alone is not long", "unless half of it is", "no group",
    ],
)  # fmt: skip
def test_the_longest_share(lengths: list[int], share: float, chosen: list[int]) -> None:
    assert longest(lengths, share) == chosen


def test_all_workers_probe_first() -> None:
    """One response of each prompt, on the fast pool; nothing else begins before the last probe has ended."""
    site = Site()
    site.dispatch(range(10))
    assert site.on(FAST) == {(uid, 0) for uid in range(10)} and not site.on(HEAVY)
    for uid in range(9):
        site.finish(uid, 0, LENGTHS[uid])
        assert site.groups_on(FAST) == set(range(uid + 1, 10)) and not site.on(HEAVY)


def test_the_top_20_percent_go_to_the_heavy_pool_and_the_others_stay() -> None:
    site = Site().probed()
    assert site.on(HEAVY) == {(uid, sample) for uid in (1, 7) for sample in (1, 2, 3)}
    assert site.groups_on(FAST) == {0, 2, 3, 4, 5, 6, 8, 9}
    assert len(site.on(FAST)) == 8 * 3


@pytest.mark.parametrize(
    ("uid", "tokens", "trips"),
    [(6, 1200, False), (6, 1201, True), (0, 1201, True), (1, 5000, False), (7, 1201, False)],
    ids=["at the cap", "above it", "whatever its own probe", "on the heavy pool there is none", "nor there"],
)
def test_the_circuit_breaks_at_1_5_times_the_cut(uid: int, tokens: int, trips: bool) -> None:
    site = Site().probed()
    site.progress(uid, 2, tokens)
    assert site.leaving == ({RequestKey(uid, 2): True} if trips else {})
    site.progress(uid, 2, tokens + 1000)
    assert len(site.leaving) <= 1, "it is told once"


@pytest.mark.parametrize("restart", [True, False])
def test_what_trips_runs_again_on_the_heavy_pool(restart: bool) -> None:
    site = Site(restart=restart).probed()
    site.progress(6, 2, 1300)
    assert site.interrupt(6, 2, 1310) == restart
    assert site.where[RequestKey(6, 2)] == HEAVY
    site.progress(6, 2, 9000)
    assert not site.leaving, "it does not trip there"
    assert site.where[RequestKey(6, 1)] == FAST, "its siblings stay"


def test_what_the_probe_tells_is_what_is_expected_of_its_siblings() -> None:
    site = Site()
    site.dispatch(range(10))
    policy = site.router.policy
    assert policy.division == (frozenset({HEAVY}), math.inf)
    assert policy.expects(site.router.book.request(RequestKey(6, 1))) is None, "no probe has ended"
    site = Site().probed()
    policy = site.router.policy
    assert policy.division == (frozenset({HEAVY}), 800)
    for uid, length in ((6, LENGTHS[6]), (1, LENGTHS[1])):
        assert policy.expects(site.router.book.request(RequestKey(uid, 1))) == (length, 800)


def test_what_trips_is_told_to_leave_for_that_reason() -> None:
    site = Site().probed()
    site.progress(6, 2, 1300)
    assert site.router.book.request(RequestKey(6, 2)).reason == "tripped"


def test_what_trips_waits_where_the_heavy_pool_is_full() -> None:
    site = Site(heavy=6).probed()
    site.progress(6, 2, 1300)
    site.interrupt(6, 2, 1300)
    assert RequestKey(6, 2) not in site.where
    site.finish(7, 1, 2000)
    assert site.where[RequestKey(6, 2)] == HEAVY


def test_every_constant_counts() -> None:
    site = Site(cohort=5, probes=2, heavy_share=0.4, cap_factor=2.0, restart=False)
    site.dispatch(range(5))
    assert site.on(FAST) == {(uid, sample) for uid in range(5) for sample in (0, 1)}
    for uid, (first, second) in enumerate([(5, 50), (10, 1), (40, 3), (20, 20), (2, 30)]):
        site.finish(uid, 0, first)
        site.finish(uid, 1, second)
    assert site.groups_on(HEAVY) == {0, 2}, "the longest of its probes counts"
    site.progress(1, 2, 80)
    assert not site.leaving, "the cut is 40"
    site.progress(1, 2, 81)
    assert site.leaving == {RequestKey(1, 2): False}


@pytest.mark.parametrize(("places", "groups"), [(3, 2), (4, 2), (1, 1)])
def test_a_group_is_wanted_where_its_first_probe_has_a_place(places: int, groups: int) -> None:
    site = Site(fast=places, probes=2)
    assert site.router.policy.newcomer_room(site.router.book) == groups


def test_cohorts_are_compared_apart_and_in_any_order() -> None:
    site = Site(cohort=5)
    site.dispatch(range(10))
    assert len(site.on(FAST)) == 10, "the second one probes while the first one waits"
    for uid in (9, 8, 7, 6, 5):
        site.finish(uid, 0, 10 * uid)
    assert site.groups_on(HEAVY) == {9} and site.groups_on(FAST) == set(range(9))
    assert len(site.on(FAST)) == 5 + 4 * 3
    for uid in range(5):
        site.finish(uid, 0, 1000 + uid)
    assert site.groups_on(HEAVY) == {9, 4}
    site.progress(8, 1, 136)
    site.progress(3, 1, 136)
    assert site.leaving == {RequestKey(8, 1): True}, "1.5 * 90 is the cap of the second cohort alone"


def test_a_cohort_does_not_wait_for_groups_that_are_not_dispatched() -> None:
    """The next one may be admitted only after these are trained."""
    site = Site(cohort=10)
    site.dispatch(range(5))
    for uid in range(5):
        site.finish(uid, 0, 100 * (uid + 1))
    assert site.groups_on(HEAVY) == {4} and site.groups_on(FAST) == {0, 1, 2, 3}
    site.dispatch([5])
    assert RequestKey(5, 0) in site.where
    site.finish(5, 0, 10_000)
    assert (5, 1) in site.on(FAST), "it is the first of another one, and alone it is not long"


def test_a_cohort_waits_for_more_groups_while_the_fast_pool_has_no_place_for_siblings() -> None:
    site = Site(cohort=5, fast=6, heavy_share=0.5)
    site.dispatch(range(6))
    for uid in range(5):
        site.finish(uid, 0, 100 + uid)
    assert site.groups_on(HEAVY) == {2, 3, 4} and site.groups_on(FAST) == {0, 1, 5}
    site.finish(5, 0, 50)
    assert site.groups_on(FAST) == {0, 1} and 5 not in site.groups_on(HEAVY)
    site.router.dispatch(GroupRequest(6, 6, 16, 4), site.now)
    site.finish(0, 1, 10)
    site.finish(6, 0, 60)
    assert 6 in site.groups_on(HEAVY) and (5, 1) in site.on(FAST), "two groups were compared"


def test_a_cohort_takes_those_that_are_dispatched_while_its_probes_run() -> None:
    site = Site(cohort=10, fast=4)
    site.dispatch([0], samples=5)
    site.finish(0, 0, 10)
    assert site.on(FAST) == {(0, sample) for sample in (1, 2, 3, 4)}, "a cohort of its own"
    site.dispatch([1, 2, 3])
    site.finish(0, 1, 10)
    site.finish(1, 0, 50)
    site.finish(2, 0, 40)
    assert site.on(FAST) == {(0, 2), (0, 3), (0, 4), (3, 0)}
    site.dispatch([4])
    for sample in (2, 3, 4):
        site.finish(0, sample, 10)
    site.finish(3, 0, 60)
    assert site.on(FAST) == {(4, 0)}
    site.finish(4, 0, 30)
    assert site.groups_on(HEAVY) == {3}, "four groups were compared"


def test_a_cohort_too_small_for_a_heavy_share_has_no_cap() -> None:
    site = Site()
    site.dispatch([0])
    site.finish(0, 0, 5)
    assert site.groups_on(FAST) == {0}
    site.progress(0, 1, 100_000)
    assert not site.leaving


def test_a_group_that_is_given_up_leaves_its_cohort() -> None:
    site = Site(cohort=5)
    site.dispatch(range(5))
    for uid in range(4):
        site.finish(uid, 0, uid + 1)
    del site.where[RequestKey(4, 0)]
    site.router.cancel(4)
    site.act()
    assert site.groups_on(HEAVY) == {3}, "nobody waits for its probe"
    site.router.progressed({RequestKey(0, 1): 10, RequestKey(1, 1): 10}, site.now)
    site.router.finished(RequestKey(1, 1), 11, site.now)
    site.router.cancel(0)
    site.act()
    assert not site.leaving, "what was to be taken out has ended, or is given up"
    assert not site.router.book.groups.keys() & {0, 4}


def test_of_a_group_that_is_given_up_only_probes_that_run_are_not_waited_for() -> None:
    site = Site(cohort=2, probes=2, heavy_share=0.5)
    site.dispatch([0, 1])
    site.finish(0, 0, 5)
    site.router.cancel(0)
    site.act()
    site.finish(1, 0, 5)
    assert site.on(HEAVY) == set(), "the second probe of group 1 runs"
    site.finish(1, 1, 5)
    assert site.on(HEAVY) == {(1, 2), (1, 3)}


def test_what_is_interrupted_above_the_cap_goes_on_on_the_heavy_pool() -> None:
    """A weight update took it out, before its length was told."""
    site = Site().probed()
    assert not site.interrupt(6, 2, 1300)
    assert site.where[RequestKey(6, 2)] == HEAVY
    site.progress(6, 2, 1400)
    assert not site.leaving
    site.interrupt(5, 2, 1200)
    assert site.where[RequestKey(5, 2)] == FAST, "at the cap is not above it"
    site.router.progressed({RequestKey(4, 2): 1300}, site.now)
    assert not site.interrupt(4, 2, 1300), "it had left before it was told to"
    assert site.where[RequestKey(4, 2)] == HEAVY and not site.leaving


def test_the_oldest_group_goes_first() -> None:
    site = Site(cohort=5, fast=5, heavy=1)
    site.dispatch(range(5))
    for uid in range(5):
        site.finish(uid, 0, 10 - uid)
    assert site.on(FAST) == {(1, 1), (1, 2), (1, 3), (2, 1), (2, 2)} and site.on(HEAVY) == {(0, 1)}
    site.router.dispatch(GroupRequest(5, 5, 16, 4), site.now)
    site.finish(1, 1, 10)
    assert (2, 3) in site.on(FAST) and (5, 0) not in site.on(FAST), "a later probe waits behind them"


def test_what_was_interrupted_goes_before_later_groups_that_have_waited_longer() -> None:
    site = Site(fast=1)
    site.dispatch([0, 1])
    site.interrupt(0, 0, 10)
    assert site.on(FAST) == {(0, 0)}


@pytest.mark.parametrize(
    ("fast", "probes", "dispatched"),
    [(4, 1, 4), (4, 2, 2), (5, 2, 3), (1, 2, 1)],
    ids=["a probe for each place", "two for two", "one that has room for a half", "no room for a whole one"],
)
def test_groups_are_dispatched_as_far_as_their_probes_have_room_on_the_fast_pool(
    fast: int, probes: int, dispatched: int
) -> None:
    site = Site(fast=fast, probes=probes)
    uid = 0
    while site.router.wants_group():
        site.router.dispatch(GroupRequest(uid, uid, 16, 4), site.now)
        uid += 1
    assert uid == dispatched
    site.act()
    assert len(site.on(FAST)) == fast and not site.on(HEAVY)
    assert not site.router.wants_group()
