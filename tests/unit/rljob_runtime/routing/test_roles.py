"""Which engines are for long responses, and which pool helps out the other one."""

from dataclasses import replace

import pytest

from rljob_runtime.routing.cost_fit import UNMEASURED
from rljob_runtime.routing.drain import Load, drain_seconds
from rljob_runtime.routing.policy import Lane
from rljob_runtime.routing.requests import RequestKey
from rljob_runtime.routing.roles import Roles, choose_heavy, comparable, decide_roles
from rljob_runtime.routing.split import Split
from tests.support.simulated.routed import Engines, faster
from tests.support.simulated.routed_by_length import STEEP

BOTH = Roles(Split(1, 4000.0, 10.0, 10.0), frozenset({1}), pooled=True)
"""Engine 1 is the heavy pool."""


@pytest.mark.parametrize(
    ("heavy_seconds", "fast_seconds", "full", "heavy_takes", "fast_takes"),
    [
        (10.0, 10.0, (), ("heavy",), ("any",)),
        (7.9, 10.0, (), ("heavy", "any"), ("any",)),
        (8.0, 10.0, (), ("heavy",), ("any",)),
        (10.0, 8.0, (), ("heavy",), ("any",)),
        (10.0, 7.9, (), ("heavy",), ("any", "heavy")),
        (10.0, 10.0, ("heavy",), ("heavy",), ("any", "heavy")),
        (10.0, 10.0, ("fast",), ("heavy", "any"), ("any",)),
    ],
)
def test_a_pool_that_finishes_much_earlier_or_has_room_alone_takes_from_the_other_ones_lane(
    heavy_seconds: float,
    fast_seconds: float,
    full: tuple[str, ...],
    heavy_takes: tuple[Lane, ...],
    fast_takes: tuple[Lane, ...],
) -> None:
    roles = replace(BOTH, ends=(heavy_seconds, fast_seconds), full=frozenset(full))
    assert (roles.lanes(1), roles.lanes(0)) == (heavy_takes, fast_takes)


@pytest.mark.parametrize("full", [(), ("fast",)])
def test_engines_that_are_only_heavy_for_a_while_do_not_lend(full: tuple[str, ...]) -> None:
    roles = Roles(BOTH.split, frozenset({1}), full=frozenset(full), ends=(1.0, 10.0))
    assert roles.lanes(1) == ("heavy",)


@pytest.mark.parametrize(
    ("heavy", "fast", "heavy_takes", "fast_takes"),
    [
        # By the plan the long ones are the heavy engine's, and both are done at about the same time.
        ([], [500] * 4 + [750] * 5, ("heavy", "any"), ("any",)),
        ([750] * 5, [500] * 4, ("heavy",), ("any",)),
        ([500] * 4 + [750] * 5, [], ("heavy",), ("any", "heavy")),
    ],
    ids=["all on the fast engine", "each where it is planned", "all on the heavy engine"],
)
def test_what_a_pool_has_to_do_is_what_it_runs(
    heavy: list[int], fast: list[int], heavy_takes: tuple[Lane, ...], fast_takes: tuple[Lane, ...]
) -> None:
    found = Engines([fast, heavy], cost=STEEP)
    found.engines[1].shape = found.engines[1].shape._replace(pool="heavy", cost=faster(STEEP, 1.8))
    sample = [
        (request, float(found.left[request.key]))
        for engine in found.engines
        for request in engine.running.values()
    ]
    roles = decide_roles(Roles(), found.engines, sample, 1, set())
    assert (roles.lanes(1), roles.lanes(0)) == (heavy_takes, fast_takes)


def test_a_pool_has_finished_what_it_runs_and_what_comes_to_it_with_the_longest() -> None:
    """The heavy engine runs one response that is longer than the two that are to come to it."""
    found = Engines([[7000] * 2 + [500] * 20, [9000]], cost=STEEP)
    heavy = found.engines[1].shape = found.engines[1].shape._replace(pool="heavy", cost=faster(STEEP, 2))
    sample = [
        (request, float(found.left[request.key]))
        for engine in found.engines
        for request in engine.running.values()
    ]
    roles = decide_roles(Roles(), found.engines, sample, 1, set())
    assert roles.ends == (
        pytest.approx(drain_seconds(heavy, [Load(2, 7000, 11), Load(1, 9000, 11)])),
        pytest.approx(drain_seconds(found.engines[0].shape, [Load(20, 500, 11)])),
    )


@pytest.mark.parametrize(
    ("speed", "left", "heavy"),
    [(1.0, 800, {1}), (2.0, 800, {1}), (0.6, 800, set()), (1.0, 110, set())],
    ids=["as fast", "twice as fast", "slower", "lengths much alike"],
)
def test_a_heavy_pool_is_for_long_responses_where_that_pays(speed: float, left: int, heavy: set[int]) -> None:
    """Else both pools take everything, as by least in flight."""
    found = Engines([[left, *[100] * 12], []], cost=STEEP)
    found.engines[1].shape = found.engines[1].shape._replace(pool="heavy", cost=faster(STEEP, speed))
    sample = [(request, float(found.left[key])) for key, request in found.engines[0].running.items()]
    roles = decide_roles(BOTH, found.engines, sample, 1, set())
    assert roles.heavy == heavy and roles.pooled
    if not heavy:
        assert (roles.lanes(0), roles.lanes(1)) == (("any",), ("any",))


@pytest.mark.parametrize(("held", "heavy"), [({1}, {1, 2}), (set(), {2, 3})])
def test_engines_with_long_responses_become_heavy_and_those_that_are_it_stay(
    held: set[int], heavy: set[int]
) -> None:
    """Two engines are to be heavy, and two others have the longest responses."""
    found = Engines([[5000], [100], [9000], [9000]], cost=STEEP)
    sample = [
        (request, float(found.left[request.key]))
        for engine in found.engines
        for request in engine.running.values()
    ]
    split = Split(2, 4000.0, 0.0, 0.0)
    assert choose_heavy(split, found.engines, frozenset(held), sample) == heavy


@pytest.mark.parametrize("lockstep", [False, True])
def test_no_engine_is_kept_for_long_responses_where_all_share_their_steps(lockstep: bool) -> None:
    """It would run fewer, and take its steps no sooner."""
    found = Engines([[9000, *[1500] * 8], [1500] * 8, [1500] * 8, [1500] * 8], cost=STEEP)
    for engine in found.engines:
        engine.shape = engine.shape._replace(lockstep=lockstep)
    sample = [
        (request, float(found.left[request.key]))
        for engine in found.engines
        for request in engine.running.values()
    ]
    roles = decide_roles(Roles(), found.engines, sample, 1, set())
    assert bool(roles.heavy) is not lockstep
    assert not roles.pooled
    assert roles.ends == ((0.0, 0.0) if lockstep else (roles.split.heavy_seconds, roles.split.fast_seconds))
    assert roles.split.seconds > 0, "plans are made as often as what is under way asks for"


@pytest.mark.parametrize(
    ("before", "long", "stays"),
    [({0}, 0, True), ({0}, 99, False), (set(), 0, False), ({0, 1}, 0, True)],
    ids=["it runs a long one", "its long ones have ended", "it was not heavy", "only those with long ones"],
)
def test_engines_stay_heavy_by_the_plan_that_made_them_so_until_their_long_responses_have_ended(
    before: set[int], long: int, stays: bool
) -> None:
    """A new plan would keep as many engines."""
    found = Engines([[9000, *[1500] * 8], [1500] * 8, [1500] * 8, [1500] * 8], cost=STEEP)
    sample = [
        (request, float(found.left[request.key]))
        for engine in found.engines
        for request in engine.running.values()
    ]
    old = Roles(Split(1, 123.0, 1.0, 1.0), frozenset(before))
    roles = decide_roles(old, found.engines, sample, 1, {RequestKey(long, 0)})
    assert roles.heavy == {0}
    assert (roles.split == old.split) is stays


def test_nothing_to_do_no_roles() -> None:
    found = Engines([[], []])
    assert decide_roles(BOTH, found.engines, [], 1, set()) == Roles()
    assert decide_roles(BOTH, [], [], 1, set()) == Roles()
    found.engines[1].shape = found.engines[1].shape._replace(pool="heavy")
    assert decide_roles(Roles(), found.engines, [], 1, set()) == Roles(pooled=True)


@pytest.mark.parametrize(
    ("pools", "known", "compared"),
    [
        (("fast", "heavy"), (True, True), True),
        (("fast", "heavy"), (True, False), False),
        (("fast", "heavy"), (False, True), False),
        (("fast", "heavy"), (False, False), False),
        (("fast", "fast"), (True, False), True),
    ],
)
def test_pools_are_compared_when_it_is_known_what_both_cost(
    pools: tuple[str, str], known: tuple[bool, bool], compared: bool
) -> None:
    """Engines of one pool are ordinary ones of it."""
    engines = Engines([[1], [1]], cost=STEEP).engines
    for engine, pool, told in zip(engines, pools, known, strict=True):
        cost = STEEP if told else UNMEASURED
        engine.shape = engine.shape._replace(pool=pool, cost=cost)
    assert comparable(engines) == compared
