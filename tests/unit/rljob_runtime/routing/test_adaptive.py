"""Routing by length: in which order requests begin, which engines are heavy and what they take."""

import math
import random
from dataclasses import replace

import pytest

from rljob_runtime.routing.adaptive import Adaptive
from rljob_runtime.routing.requests import EngineShape, GroupRequest, RequestKey
from tests.support.simulated.routed import Routed
from tests.support.simulated.routed_by_length import (
    CAP,
    LONG,
    SHORT,
    STEEP,
    divided,
    learn,
    mixed,
    policy,
    site,
)

# Order


def many(of: Routed, uids: range, samples: int = 4) -> Routed:
    """So many responses that their order is by length."""
    for uid in uids:
        of.router.dispatch(GroupRequest(uid, uid, 10, samples), of.now)
    of.decide(2)
    assert policy(of).order.longest_first
    return of


def drained(of: Routed, lengths: dict[int, int]) -> list[tuple[int, int]]:
    """The order in which responses begin as others end, each the oldest on its engine."""
    while of.where:
        key = min(of.where, key=of.placed.index)
        of.finish(*key, lengths.get(key.uid, 100))
    return [(key.uid, key.sample) for key in of.placed]


def test_in_a_large_batch_probes_begin_first_then_the_longest() -> None:
    of = site(fast=2, limit=1)
    lengths = {0: 100, 1: 5000, 2: 1000, 3: 3000}
    learn(policy(of), lengths.items())
    order = drained(many(of, range(4)), lengths)
    assert [key for key in order if key[1] == 0] == order[:4] == [(uid, 0) for uid in range(4)]
    assert [uid for uid, _ in order[4:]] == [1] * 3 + [3] * 3 + [2] * 3 + [0] * 3


def test_what_was_interrupted_goes_before_everything_else() -> None:
    of = many(site(fast=2, limit=1), range(4))
    of.progress({(1, 0): 7})
    of.interrupt(RequestKey(1, 0))
    of.decide()
    assert of.placed[-1] == RequestKey(1, 0)


@pytest.mark.parametrize(("samples", "by_length"), [(5, False), (6, True)])
def test_the_order_is_by_length_from_six_waves_on(samples: int, by_length: bool) -> None:
    of = site(fast=2, limit=4)
    of.dispatch(range(8), samples=samples)
    of.decide(2)
    assert policy(of).order.longest_first is by_length


@pytest.mark.parametrize(
    ("groups_per_step", "by_length"), [(None, True), (11, False), (12, True), (24, True)]
)
def test_only_what_one_step_trains_counts_for_the_order(groups_per_step: int | None, by_length: bool) -> None:
    """In an asynchronous job groups of several steps are under way."""
    of = Routed(Adaptive(CAP, groups_per_step=groups_per_step), fast=2, limit=4)
    of.dispatch(range(24), samples=4)
    of.decide(2)
    assert policy(of).order.longest_first is by_length


def test_the_longest_of_a_later_step_do_not_go_before_what_the_next_one_trains() -> None:
    of = Routed(Adaptive(CAP, groups_per_step=2), fast=2, limit=1)
    lengths = {0: 100, 1: 1000, 2: 5000, 3: 9000}
    learn(policy(of), lengths.items())
    order = drained(many(of, range(4), samples=6), lengths)
    assert [uid for uid, _ in order] == [0, 1, *[1] * 5, *[0] * 5, 2, 3, *[3] * 5, *[2] * 5]


@pytest.mark.parametrize(
    ("engines", "lengths", "kv_tokens", "by_length"),
    [
        (2, (100, 100), None, True),
        (1, (100, 100), None, False),
        (2, (100, 100), 4 * 110 + 20, True),
        (2, (100, 100), 4 * 110 - 20, False),
        (2, (50, 200), 4 * 137 + 8, True),
        (2, (50, 200), 4 * 137 - 8, False),
    ],
    ids=[
        "by length", "one engine", "as many long ones fit", "a cache for short ones", "the mean ones fit",
        "a cache for the median ones",
    ],
)  # fmt: skip
def test_the_order_is_by_length_only_where_as_many_long_ones_fit(
    engines: int, lengths: tuple[int, int], kv_tokens: int | None, by_length: bool
) -> None:
    """After a prompt of 10 tokens 100 are expected where all had that many, and 127, the mean of a lognormal
    length, where one half had 50 and the other one 200."""
    of = Routed(Adaptive(CAP))
    learn(policy(of), [(row, lengths[row % 2]) for row in range(20)])
    for number in range(engines):
        of.router.join(number, EngineShape("fast", 4, kv_tokens, STEEP))
    of.dispatch(range(12))
    of.decide(2)
    assert policy(of).order.longest_first is by_length


def test_an_order_by_length_stays_until_everything_has_begun() -> None:
    of = many(site(fast=2, limit=4), range(12))
    while of.router.book.waiting > 1:
        of.finish(*min(of.where), 100)
    of.decide(2)
    assert policy(of).order.longest_first
    of.finish(*min(of.where), 100)
    of.decide(20)
    assert not policy(of).order.longest_first


def test_in_a_small_batch_the_oldest_group_goes_first() -> None:
    of = site(fast=2, limit=2)
    learn(policy(of), [(0, 100), (1, 5000), (2, 1000)])
    of.dispatch(range(3))
    order = drained(of, {})
    assert order == sorted(order)


def test_what_the_next_step_waits_for_goes_before_everything_else() -> None:
    of = site(fast=1, limit=1)
    of.dispatch([0], samples=1)
    of.dispatch([1], samples=2, deadline=5)
    of.dispatch([2], samples=2, deadline=4)
    assert drained(of, {}) == [(0, 0), (2, 0), (2, 1), (1, 0), (1, 1)]


def test_a_finished_sibling_changes_the_place_in_the_queue() -> None:
    of = site(fast=2, limit=1)
    learn(policy(of), [(row, 300 + 20 * row) for row in range(20)])
    many(of, range(3))
    for uid, tokens in ((0, 20), (1, 9000), (2, 500)):
        of.finish(uid, 0, tokens)
    assert of.placed[-2:] == [RequestKey(1, 1), RequestKey(1, 2)]


def test_a_sibling_that_runs_long_raises_the_others() -> None:
    of = site(fast=2, limit=1)
    learn(policy(of), [(0, 1000), (1, 1000)])
    many(of, range(2), samples=6)
    of.progress({(0, 0): 10, (1, 0): 9900})
    of.finish(0, 0, 5000)
    assert of.placed[-1].uid == 1


def test_what_waits_takes_another_place_at_once_when_open_groups_are_not_last_any_more() -> None:
    """Of four groups three are open, for which nine responses wait; then two, for which six wait. No plan is
    made since."""
    of = many(site(fast=2, limit=1), range(4))
    of.finish(0, 0, 9000)
    assert policy(of).order.open_last == {0}
    of.finish(1, 0, 100)
    assert policy(of).order.open_last == frozenset()
    of.finish(2, 0, 500)
    assert of.placed[-1] == RequestKey(0, 1), "the longest, of a group of which no news came"


def newcomers(of: Routed, samples: int) -> int:
    """How many groups more are dispatched before the router decides."""
    first = count = 1 + max(of.router.book.groups, default=-1)
    while of.router.wants_group():
        of.router.dispatch(GroupRequest(count, count, 10, samples), of.now)
        count += 1
    return count - first


@pytest.mark.parametrize(
    ("limit", "samples", "groups"),
    [(4, 1, 8), (4, 3, 3), (4, 4, 2), (4, 20, 1)],
)
def test_where_the_oldest_group_goes_first_no_other_comes_before_it_has_its_places(
    limit: int, samples: int, groups: int
) -> None:
    """One that waits all the same has a deadline of before its first token, and a step waits for it."""
    assert newcomers(site(fast=2, limit=limit), samples) == groups


def test_where_probes_begin_first_siblings_that_wait_keep_no_group_away() -> None:
    of = many(site(fast=2, limit=1), range(4))
    assert newcomers(of, samples=4) == 0
    for key in list(of.where):
        of.router.finished(key, 100, of.now)
    assert of.router.book.waiting > 2
    assert newcomers(of, samples=4) == 0, "two other probes wait"
    of = many(site(fast=3, limit=1), range(3), samples=8)
    for key in list(of.where):
        of.router.finished(key, 100, of.now)
    assert newcomers(of, samples=4) == 3


def test_groups_that_the_next_step_awaits_are_dispatched_whatever_room_there_is() -> None:
    of = site(fast=2, limit=1)
    of.dispatch(range(5))
    assert (of.router.wants_group(), of.router.wants_group(awaited=True)) == (False, True)


def test_a_single_engine_gets_no_group_before_it_can_begin_it() -> None:
    """Nothing is ordered by length there: groups that are begun sooner are older. With a second engine, and
    until it is gone, the step's groups are dispatched at once."""
    of = site(fast=1, limit=1)
    of.dispatch(range(5))
    wants = [of.router.wants_group(awaited=True)]
    of.router.join(1, EngineShape("heavy", 1))
    wants.append(of.router.wants_group(awaited=True))
    of.lose(1)
    wants.append(of.router.wants_group(awaited=True))
    assert wants == [False, True, False]


def test_nothing_is_divided_or_expected_of_a_single_engine() -> None:
    of = mixed(site(fast=1, limit=16))
    of.decide(2)
    first = of.router.book.groups[0].requests[0]
    assert (policy(of).division, policy(of).expects(first)) == (None, None)


def test_what_a_single_engine_has_told_of_lengths_divides_when_a_heavy_one_joins() -> None:
    of = mixed(site(fast=1, limit=16), short=15)
    of.decide(2)
    assert of.on(0) == {(uid, 0) for uid in range(16)}
    of.router.join(1, EngineShape("heavy", 16, cost=STEEP))
    of.decide()
    of.arrive()
    assert policy(of).roles.heavy == {1}
    assert (0, 0) in of.on(1)


@pytest.mark.parametrize(
    ("running", "slowness", "places"), [(0, 1.0, 0), (4, 1.0, 4), (0, 2.0, 1), (3, 2.0, 7)]
)
@pytest.mark.parametrize("limit", [8, 16])
def test_a_slower_engine_counts_as_one_that_runs_more(
    running: int, slowness: float, places: int, limit: int
) -> None:
    """With its next request it ends as late as an ordinary one that runs `places`, with its next."""
    of = site(fast=1, limit=limit)
    of.router.join(0, of.engine(0).shape._replace(slowness=slowness))
    of.dispatch(range(running), samples=1)
    assert policy(of).score(of.engine(0)) == places / limit


# Roles


def test_without_a_heavy_pool_no_engine_is_heavy_while_nothing_is_known() -> None:
    of = site(fast=4)
    of.dispatch(range(8))
    of.decide(5)
    assert policy(of).roles.heavy == frozenset() and policy(of).roles.split.heavy == 0


def test_engines_become_heavy_for_as_long_as_that_pays() -> None:
    of = divided()
    heavy = policy(of).roles.heavy
    assert len(heavy) <= 2
    assert of.where[RequestKey(0, 0)] in heavy
    of.finish(0, 0, LONG)
    of.decide(2)
    assert policy(of).roles.heavy == frozenset()


def test_a_role_is_kept_while_long_responses_run() -> None:
    """Their estimate shrinks with every token, and others come: the engine does not change."""
    of = divided()
    for tokens in range(500, CAP, 500):
        before = policy(of).roles.heavy
        held = {of.where[RequestKey(0, 0)]}
        assert held <= before
        of.progress({(0, 0): tokens}, seconds=2)
        assert held <= policy(of).roles.heavy
        of.arrive()


def test_the_heavy_pool_is_heavy_and_takes_the_long_ones() -> None:
    of = mixed(site(fast=2, heavy=1, limit=4, speed=2), long=4)
    of.decide(2)
    assert policy(of).roles.heavy == {2}
    for _ in range(12):
        done = [key for key in of.where if key.uid >= 4]
        if done:
            of.finish(*done[0], SHORT)
        of.arrive()
        of.decide(2)
    assert {(uid, 0) for uid in range(4)} & of.on(2)
    assert policy(of).division == (frozenset({2}), policy(of).roles.split.cut)


def test_what_is_expected_of_a_response_is_told_and_changes_nothing() -> None:
    of = mixed(site(fast=2, heavy=1, limit=4, speed=2), long=4)
    of.decide(2)
    cut = policy(of).division.cut
    known = dict(policy(of).estimates._groups)
    for uid, length in ((3, LONG), (30, SHORT)):
        policy(of).estimates._groups.pop(uid, None)
        told = policy(of).expects(of.router.book.request(RequestKey(uid, 0)))
        assert told.tokens == pytest.approx(length, rel=0.1) and told.cut == cut
        assert (told.tokens >= cut) == (uid == 3)
    assert dict(policy(of).estimates._groups) == {
        uid: each for uid, each in known.items() if uid not in (3, 30)
    }


def test_without_engines_for_long_responses_none_would_count_as_long() -> None:
    of = mixed(site(fast=2), long=0)
    of.decide(2)
    assert policy(of).division == (frozenset(), math.inf)
    assert policy(of).expects(of.router.book.request(RequestKey(31, 0))).cut == math.inf


def test_before_any_length_is_known_nothing_is_divided_and_nothing_moves() -> None:
    """A heavy pool that is fast enough would have everything: what is expected is a guess, and the same of
    all."""
    of = site(fast=2, heavy=1, limit=16, speed=4)
    of.dispatch(range(12), samples=1)
    of.decide(2)
    assert not policy(of).roles.heavy and not of.leaving
    assert [len(of.on(number)) for number in range(3)] == [4, 4, 4]
    of.finish(*min(of.where), SHORT)
    of.decide(2)
    assert set(of.leaving.values()) == {2}


def test_a_heavy_pool_alone_takes_everything() -> None:
    of = mixed(site(heavy=2, limit=16))
    of.decide(2)
    assert policy(of).roles.heavy == frozenset()
    assert len(of.where) == 32


def test_room_of_heavy_engines_is_not_offered_to_newcomers() -> None:
    """Counted from every change, and equal to a look at every engine."""
    of, rng = divided(), random.Random(0)
    uid, ever = 100, 0
    for _ in range(300):
        of.decide(0.4)
        if rng.random() < 0.5 and of.where:
            key = rng.choice(sorted(of.where))
            of.finish(*key, LONG if key.uid < 1 else SHORT)
        elif rng.random() < 0.3:
            learn(policy(of), [(uid, rng.choice([SHORT, SHORT, LONG]))])
            of.dispatch([uid], samples=1)
            uid += 1
        of.arrive()
        number = rng.randrange(4)
        if rng.random() < 0.1:
            of.router.leave(number)
            of.decide()
            of.router.join(number, of.engine(number).shape)
        heavy = sum(of.engine(number).room for number in policy(of).roles.heavy)
        ever += heavy
        assert policy(of).newcomer_room(of.router.book) == of.router.book.room - heavy
    assert uid > 110 and ever


def test_room_of_a_heavy_pool_is_offered_to_newcomers_when_the_others_are_full() -> None:
    """It would stand idle otherwise, while groups might begin."""
    of = mixed(site(fast=2, heavy=1, limit=64))
    of.decide(2)
    assert policy(of).roles.heavy == {2}
    policy(of).roles = replace(policy(of).roles, ends=(10.0, 10.0))
    assert not policy(of).roles.heavy_lends
    assert policy(of).newcomer_room(of.router.book) == of.router.book.room
