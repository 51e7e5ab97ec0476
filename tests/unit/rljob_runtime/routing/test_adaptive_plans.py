"""Routing by length: when plans are made, what they look at, what moves, and that nothing waits for an engine
that does not come."""

import itertools
import math
import random

import pytest

from rljob_runtime.routing import plan_times
from rljob_runtime.routing.adaptive import Adaptive
from rljob_runtime.routing.book import Book
from rljob_runtime.routing.cost import StepCost
from rljob_runtime.routing.requests import EngineShape, GroupRequest, Move, RequestKey
from rljob_runtime.routing.roles import Roles
from rljob_runtime.routing.split import NO_SPLIT
from tests.support.simulated.routed import Engines, Routed, group_of
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


def plans(of: Routed, seconds: float, step: float) -> list[float]:
    """When plans are made within so much time, with a decision each step."""
    times: list[float] = []
    for _ in range(round(seconds / step)):
        before = policy(of)._times.plans
        of.decide(step)
        times += [of.now] * (policy(of)._times.plans - before)
    return times


@pytest.mark.parametrize("plan_seconds", [0.5, 2.0])
def test_a_plan_is_not_made_more_often_than_asked_for(plan_seconds: float) -> None:
    of = mixed(site(fast=4, plan_seconds=plan_seconds), long=0)
    times = plans(of, 20, 0.1)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    pause = max(plan_seconds, policy(of).roles.split.seconds / 100)
    assert all(pause - 1e-6 <= gap <= pause + 0.2 for gap in gaps)
    assert len(times) > 5


def test_a_plan_for_nothing_holds_up_none_for_what_comes() -> None:
    """Between two steps nothing may be under way; the next step's groups begin by a plan of their own."""
    of = site(fast=2, heavy=1, limit=64)
    of.decide(2)
    assert not policy(of).roles.heavy
    of = mixed(of)
    assert policy(of).roles.heavy == {2}
    assert of.where[RequestKey(0, 0)] == 2, "the long one, at once and not by a move"
    assert RequestKey(0, 0) not in of.leaving


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_engines_that_come_back_one_by_one_have_their_roles_at_once(order: tuple[int, ...]) -> None:
    """A weight update takes all of them out together; they join again when each is done."""
    of = mixed(site(fast=2, heavy=1, limit=64))
    for number in range(3):
        of.router.leave(number)
    for key in list(of.where):
        of.interrupt(key)
    of.decide(0.3)
    assert not of.where
    for number in order:
        of.router.join(number, of.engine(number).shape)
        of.decide(0.01)
    assert policy(of).roles.heavy == {2}


@pytest.mark.parametrize(("came", "plans"), [(1, 0), (2, 1)])
def test_a_plan_is_made_at_once_when_many_engines_come_beside_a_heavy_pool(came: int, plans: int) -> None:
    """Beside five engines: what did not pay with them may pay with more."""
    of = mixed(site(fast=4, heavy=1, limit=64))
    of.decide(2)
    before = policy(of)._times.plans
    for number in range(5, 5 + came):
        of.router.join(number, of.engine(0).shape)
    of.decide(0.01)
    assert policy(of)._times.plans == before + plans


@pytest.mark.parametrize("heavy", [True, False], ids=["divided by length", "not divided"])
def test_pools_that_share_their_steps_are_levelled_each_by_itself(heavy: bool) -> None:
    of = mixed(site(fast=2, heavy=2, limit=64), long=0, short=8)
    for number in range(4):
        of.router.join(number, of.engine(number).shape._replace(lockstep=True))
    members = list(of.router.book.members())
    parts = (members[2:], members[:2]) if heavy else ([], members)
    assert policy(of)._levelled_together(members, *parts) == [members[2:], members[:2]]


@pytest.mark.parametrize(
    ("ends", "full", "idle", "together"),
    [
        ((10.0, 10.0), "", False, False),
        ((1.0, 10.0), "", False, True),
        ((10.0, 1.0), "", False, True),
        ((10.0, 10.0), "fast", False, True),
        ((10.0, 10.0), "heavy", False, True),
        ((10.0, 10.0), "", True, True),
    ],
    ids=["both are busy", "heavy is done first", "fast is", "fast is full", "heavy is", "an engine is idle"],
)
def test_a_pool_that_has_time_is_levelled_together_with_the_other_one(
    ends: tuple[float, float], full: str, idle: bool, together: bool
) -> None:
    of = mixed(site(fast=2, heavy=2, limit=64), long=0, short=8)
    members = list(of.router.book.members())
    for uid, sample in of.on(0) if idle else ():
        of.finish(uid, sample, SHORT)
    policy(of).roles = Roles(NO_SPLIT, frozenset({2, 3}), True, frozenset({full}), ends)
    fast, heavy = members[:2], members[2:]
    found = policy(of)._levelled_together(members, heavy, fast)
    assert found == ([[*heavy, *fast]] if together else [heavy, fast])


@pytest.mark.parametrize(
    ("more", "tokens", "full"), [(24, LONG, "heavy"), (30, SHORT, "fast"), (3, LONG, None)]
)
def test_between_two_plans_others_take_what_waits_for_engines_that_are_full(
    monkeypatch: pytest.MonkeyPatch, more: int, tokens: int, full: str | None
) -> None:
    monkeypatch.setattr(plan_times, "_GROWTH", math.inf)
    of = site(fast=2, heavy=1, limit=20, plan_seconds=1000)
    of.decide(2)
    of = mixed(of, short=24)
    assert policy(of).roles.heavy == {2}
    made = policy(of)._times.plans
    learn(policy(of), [(uid, tokens) for uid in range(100, 100 + more)])
    of.dispatch(range(100, 100 + more), samples=1)
    assert of.router.book.waiting == 0 and policy(of)._times.plans == made
    assert policy(of).roles.full == ({full} if full else set())


def test_where_responses_take_hours_plans_are_made_less_often() -> None:
    of = mixed(Routed(Adaptive(CAP), fast=2, cost=StepCost(1.0)))
    assert policy(of).roles.split.seconds > 1000
    assert len(plans(of, 100, 1.0)) <= 100 / (policy(of).roles.split.seconds / 100)


def test_of_many_groups_a_plan_is_made_less_often_and_looks_at_some() -> None:
    of = Routed(Adaptive(10), fast=2, limit=4000)
    for uid in range(5000):
        of.router.dispatch(GroupRequest(uid, uid, 10, 1), 0.0)
    for now, made in ((0.0, 1), (1.9, 1), (2.1, 2)):
        of.router.decide(now)
        assert policy(of)._times.plans == made
    sample, every = policy(of)._sample(of.router.book)
    assert (len(sample), every) == (500, 10)


def test_every_group_is_looked_at_in_turn() -> None:
    of = Adaptive(CAP)
    book = Book()
    for uid in range(1200):
        book.add(GroupRequest(uid, uid, 10, 1))
    seen: set[int] = set()
    for of._times.plans in range(3):
        sample, every = of._sample(book)
        assert (len(sample), every) == (400, 3)
        seen |= {request.key.uid for request, _ in sample}
    assert len(seen) == 1200


@pytest.mark.parametrize(("groups", "every"), [(0, 1), (1, 1), (512, 1), (513, 2), (1025, 3)])
def test_a_sample_is_of_every_group_as_long_as_there_are_few(groups: int, every: int) -> None:
    book = Book()
    for uid in range(groups):
        book.add(GroupRequest(uid, uid, 10, 1))
    sample, found = Adaptive(CAP)._sample(book)
    assert found == every and len(sample) >= groups // every


def test_windows_of_many_engines_overlap_and_cover_all() -> None:
    of, engines = Adaptive(CAP), Engines([[]] * 200).engines
    windows = []
    for of._times.plans in range(5):
        windows.append([engine.number for engine in of._window(engines)])
    assert [len(set(window)) for window in windows] == [64] * 5
    assert windows[0] == [*range(64)] and windows[1] == [*range(48, 112)]
    assert windows[4] == [192, 193, 194, 195, 196, 197, 198, 199, *range(56)]
    assert set().union(*windows) == set(range(200))
    of._times.plans = 1
    assert list(of._window(engines[:64])) == engines[:64], "all of them, as they are"


def test_a_response_that_turns_out_to_be_long_moves_to_the_heavy_pool_with_its_tokens() -> None:
    of = site(fast=1, heavy=1, limit=16)
    learn(policy(of), [(row, 100) for row in range(12)])
    for row in range(100, 110):
        for count in range(1, 5):
            policy(of).estimates.lengths.finished(group_of([100, 1000, 4000, 9000][:count], row=row))
    of.dispatch(range(12), samples=1)
    of.decide(2)
    for uid, sample in of.on(1):
        of.finish(uid, sample, 100)
    key = min(of.where)
    of.progress({key: 3000}, seconds=2)
    assert of.leaving == {key: 1} and of.reasons[key] == "long"
    of.arrive()
    assert of.where[key] == 1
    assert of.router.book.request(key).tokens == 3000
    assert key in policy(of)._long


def test_moves_are_proposed_once_for_a_plan() -> None:
    of = divided()
    assert not [action for action in of.decide(0.1) if isinstance(action, Move)]


def test_when_nothing_waits_engines_are_levelled() -> None:
    """Two long responses on one engine, and one that has nothing left to do."""
    of = site(fast=2, limit=4)
    learn(policy(of), [(uid, 100) for uid in range(4)])
    learn(policy(of), [(uid, 9000) for uid in (0, 2)])
    of.dispatch(range(4), samples=1)
    first = of.where[RequestKey(0, 0)]
    assert of.where[RequestKey(2, 0)] == first, "as they came"
    of.progress({(0, 0): 500, (2, 0): 500})
    for uid in (1, 3):
        of.finish(uid, 0, 100)
    of.decide(2)
    of.arrive()
    assert of.where[RequestKey(0, 0)] != of.where[RequestKey(2, 0)]
    assert set(of.reasons.values()) == {"levelled"}


@pytest.mark.parametrize("lockstep", [True, False])
def test_engines_that_share_their_steps_are_levelled_by_the_fullest(lockstep: bool) -> None:
    """Five long requests on one and two on the other. A step for four is shorter than one for five, if all
    engines take it."""
    of = site(fast=2, limit=8)
    of.dispatch(range(10), samples=1)
    for number in range(2):
        of.router.join(number, of.engine(number).shape._replace(lockstep=lockstep))
    for uid, _ in sorted(of.on(1))[2:]:
        of.finish(uid, 0, 5000)
    of.decide(100)
    of.arrive()
    assert (len(of.on(0)), len(of.on(1))) == (4, 3)


# Nothing is stranded


def waits_with_room(of: Routed) -> bool:
    return of.router.book.waiting > 0 and of.router.book.room > 0


@pytest.mark.parametrize("gone", [True, False], ids=["lost", "pause"])
@pytest.mark.parametrize("lost", ["heavy", "fast"])
@pytest.mark.parametrize("pools", [(4, 0), (3, 1), (3, 2)])
def test_when_all_engines_of_a_kind_leave_the_others_take_what_waits_at_once(
    pools: tuple[int, int], lost: str, gone: bool
) -> None:
    of = mixed(site(*pools, limit=16))
    of.decide(2)
    of.arrive()
    heavy = policy(of).roles.heavy
    assert heavy
    for number in range(sum(pools)):
        if (number in heavy) == (lost == "heavy"):
            of.router.remove(number) if gone else of.router.leave(number)
            for key in [key for key, engine in of.where.items() if engine == number]:
                of.interrupt(key)
    of.decide()
    assert not waits_with_room(of)
    joined = sum(engine.joined for engine in of.router.book.members())
    assert len([key for key in of.where if of.engine(of.where[key]).joined]) == min(33, 16 * joined)


def test_one_of_several_heavy_engines_leaves_and_no_plan_is_made() -> None:
    """A weight update pauses engine after engine."""
    of = mixed(site(3, 2))
    of.decide(2)
    before = policy(of)._times.next
    of.router.leave(3)
    of.decide(0.1)
    of.router.join(3, of.engine(3).shape)
    of.decide(0.1)
    assert policy(of)._times.next == before


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_everything_ends(seed: int) -> None:
    """Engines of both pools come, pause and go while responses of all lengths run; a request waits
    only while all engines are full that are not kept for long ones, and none of a heavy pool is kept;
    afterwards nothing is remembered."""
    rng = random.Random(seed)
    pooled = seed % 2
    of = site(fast=3, heavy=pooled, limit=4, plan_seconds=0.5)
    lengths: dict[int, int] = {}
    engines, pools = 3 + pooled, ["fast", "heavy"][: 1 + pooled]
    for turn in range(400):
        chance = rng.random()
        joined = sorted(engine.number for engine in of.router.book.members() if engine.joined)
        if chance < 0.05 and len(joined) > 1:
            of.lose(rng.choice(joined))
        elif chance < 0.1:
            of.router.join(engines, EngineShape(rng.choice(pools), 4, 40_000, STEEP))
            engines += 1
        elif chance < 0.2 and len(joined) > 1:
            number = rng.choice(joined)
            of.router.leave(number)
            of.decide(rng.random())
            of.router.join(number, of.engine(number).shape)
        elif chance < 0.25 and lengths and of.router.book.groups:
            uid = rng.choice(sorted(of.router.book.groups))
            of.router.cancel(uid)
            for key in [key for key in of.where if key.uid == uid]:
                del of.where[key]
                of.leaving.pop(key, None)
        elif of.router.wants_group() and turn < 300:
            lengths[turn] = rng.choice([50, 100, 200, 8000])
            of.dispatch([turn], samples=4, row=turn % 7)
        elif of.where:
            key = rng.choice(sorted(of.where))
            if rng.random() < 0.5:
                of.finish(*key, max(of.tokens.get(key, 1), lengths[key.uid]))
            else:
                grown = min(of.tokens.get(key, 0) + 500, lengths[key.uid])
                of.progress({key: grown}, seconds=rng.random())
        of.arrive()
        of.decide(rng.random())
        kept = 0 if policy(of).roles.pooled else policy(of)._kept
        assert of.router.book.waiting == 0 or of.router.book.room <= kept
        if not policy(of).roles.heavy:
            caches = [each for each in of.router.book.members() if policy(of).score(each) is None]
            assert not waits_with_room(of) or caches
    for _ in range(5000):
        if not of.where:
            break
        of.arrive()
        of.finish(*min(of.where), 8000)
        of.decide(1.0)
    assert not of.router.book.groups
    decided = policy(of)
    assert not (decided._long or decided.estimates._groups or decided.estimates._grown or decided._reenter)


@pytest.mark.parametrize(("pool", "rows"), [("heavy", LONG), ("fast", SHORT)])
def test_what_waits_while_its_pool_is_full_goes_to_the_one_with_room(pool: str, rows: int) -> None:
    """Whatever the plan expects of the two: nobody waits beside an engine that has nothing to do."""
    of = mixed(site(fast=1, heavy=1, limit=4), long=3, short=3)
    for _ in range(4):
        of.decide(2)
        of.arrive()
    full = 1 if pool == "heavy" else 0
    learn(policy(of), [(uid, rows) for uid in range(100, 110)])
    of.dispatch(range(100, 110), samples=1)
    for _ in range(3):
        of.decide(2)
        of.arrive()
    book = of.router.book
    assert book.waiting and not of.engine(full).room
    assert not of.engine(1 - full).room, "the other pool is full as well by now"


@pytest.mark.parametrize("lockstep", [False, True])
def test_when_a_pool_is_done_it_takes_over_from_the_other_one(lockstep: bool) -> None:
    """Unless the engines of a pool share their steps."""
    of = mixed(site(fast=1, heavy=1, limit=16, speed=2), long=6, short=6)
    for number in range(2):
        of.router.join(number, of.engine(number).shape._replace(lockstep=lockstep))
    for _ in range(4):
        of.decide(2)
        of.arrive()
    heavy = [key for key in of.where if of.where[key] == 1]
    assert len(heavy) > 1
    for key in [key for key in of.where if of.where[key] == 0]:
        of.finish(*key, SHORT)
    for _ in range(6):
        of.decide(2)
        of.arrive()
    if lockstep:
        assert not of.on(0)
        return
    assert 1 <= len(of.on(0)) < len(heavy)
    assert {of.reasons[RequestKey(*key)] for key in of.on(0)} == {"stolen"}
