"""Evaluations on engines that are set aside, in virtual time: training goes on beside them, and they keep to
their weights whatever is lost, scaled or stopped."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from rljob_runtime.engines.protocol import PauseMode, Request
from rljob_runtime.rollout.engine_slot import EngineSlot
from rljob_runtime.trace.record.evaluation_log import EvaluationLine, read_evaluations
from tests.support.simulated.losable_parts import Losses, WatchedEngine
from tests.support.simulated.losing_job import LosingSession, run_losing

PLANS: list[tuple[PauseMode | None, bool]] = [
    ("keep", False),
    ("abort", False),
    ("wait", False),
    (None, False),
    ("keep", True),
    ("abort", True),
]


def slow(request: Request) -> int:
    """The responses of an evaluation take as long as some steps."""
    return 300 if request.request_id.startswith("-") else 10


def unpinned(line: EvaluationLine) -> int:
    (score,) = line.sets.values()
    assert (score.prompts, score.responses, score.failed) == (6, 12, 0)
    return score.unpinned


async def until(condition: Callable[[], bool]) -> None:
    # In virtual time, where nothing is lost by looking often.
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def until_set_aside(session: LosingSession, version: int = 0) -> EngineSlot:
    """The engine that is set aside for the evaluation of `version`, once it is at it."""

    def at_it() -> bool:
        return any(slot.version == version and slot.requests for slot in session.pool.aside_slots)

    await until(at_it)
    return session.pool.aside_slots[0]


async def leaves(session: LosingSession, slot: EngineSlot) -> None:
    """The pool is made smaller by this engine."""
    await session.pool.clear(slot, 60)
    await session.parts.sync.remove(slot)
    await slot.engine.close()


@pytest.mark.parametrize(("in_flight", "collective"), PLANS)
def test_training_goes_on_with_newer_versions_meanwhile(
    tmp_path: Path, in_flight: PauseMode | None, collective: bool
) -> None:
    seen: list[tuple[int, set[int], int]] = []

    async def look(session: LosingSession) -> None:
        slot = await until_set_aside(session, version=8)
        await until(lambda: not slot.joined)
        seen.append(
            (slot.version, {each.version for each in session.pool.training_slots}, session.losable.steps)
        )
        await until(lambda: slot.entered)
        assert slot.version in {each.version for each in session.pool.training_slots if each is not slot}

    session = run_losing(
        Losses(
            folder=tmp_path, evaluate_every=8, set_aside=1, engines=3, length=slow, in_flight=in_flight,
            collective=collective, script=look, steps=20, checkpoint_every=20,
        )
    )  # fmt: skip
    # It has the weights of step 8 still when it is over, and the others those of a later one.
    ((version, versions, steps),) = seen
    assert version == 8 and min(versions - {8}) > 8 and steps > 9
    lines = read_evaluations(tmp_path)
    assert [(line.version, line.engines) for line in lines] == [(0, 1), (8, 1), (16, 1), (20, 0)]
    assert [unpinned(line) for line in lines] == [0] * 4
    assert session.lost == [] and session.said == []
    assert max(session.losable.ages) <= 2


def test_the_bound_of_staleness_holds_beside_them(tmp_path: Path) -> None:
    session = run_losing(
        Losses(
            folder=tmp_path, evaluate_every=3, set_aside=1, max_staleness=0.0, engines=3, length=slow,
            checkpoint_every=12,
        )
    )  # fmt: skip
    assert set(session.losable.ages) == {0}
    assert [unpinned(line) for line in read_evaluations(tmp_path)] == [0] * 5


def test_others_that_hold_the_version_take_the_place_of_those_that_are_lost(tmp_path: Path) -> None:
    async def kill(session: LosingSession) -> None:
        await (await until_set_aside(session)).engine.close()

    session = run_losing(
        # No version is published before the third step.
        Losses(folder=tmp_path, evaluate_every=4, set_aside=1, engines=3, script=kill, steps_per_version=3)
    )
    assert [unpinned(line) for line in read_evaluations(tmp_path)] == [0, 0]
    assert session.said == [
        "the engines of the evaluation of version 0 are gone; others of the fast pool go on"
    ]


def test_where_no_engine_holds_it_any_more_the_rest_is_told_as_unpinned(tmp_path: Path) -> None:
    async def kill(session: LosingSession) -> None:
        slot = await until_set_aside(session)
        await until(lambda: all(each.version >= 2 for each in session.pool.training_slots))
        await slot.engine.close()

    session = run_losing(
        Losses(
            folder=tmp_path, evaluate_every=6, set_aside=1, engines=3, length=slow, script=kill,
            checkpoint_every=12,
        )
    )  # fmt: skip
    first, *others = read_evaluations(tmp_path)
    assert 0 < unpinned(first) <= 12 and [unpinned(line) for line in others] == [0, 0]
    assert session.said == [
        "the engines of the evaluation of version 0 are gone; others of the fast pool go on, which hold "
        "version 2: what they say is unpinned"
    ]


def test_the_last_engine_goes_on_with_it_and_training_waits(tmp_path: Path) -> None:
    async def kill(session: LosingSession) -> None:
        slot = await until_set_aside(session)
        await slot.engine.close()
        await until(lambda: not slot.alive and bool(session.pool.aside_slots))
        (last,) = session.pool.slots
        assert last.aside and not session.pool.training_slots

    run_losing(Losses(folder=tmp_path, evaluate_every=6, set_aside=1, length=slow, script=kill))
    assert len(read_evaluations(tmp_path)) == 3


def test_a_pool_that_was_made_too_small_has_them_on_shared_engines(tmp_path: Path) -> None:
    async def shrink(session: LosingSession) -> None:
        await leaves(session, (await until_set_aside(session)))

    session = run_losing(Losses(folder=tmp_path, evaluate_every=3, set_aside=1, script=shrink))
    lines = read_evaluations(tmp_path)
    assert [(line.step, line.engines) for line in lines] == [(0, 1), (3, 0), (6, 0), (9, 0), (12, 0)]
    assert [unpinned(line) for line in lines] == [0] * 5
    assert session.lost == []
    assert session.said[1] == (
        "the evaluation of version 3 runs on all engines, beside training: its 1 of the fast pool are not "
        "there, or training would be left without"
    )


def test_fewer_are_set_aside_where_training_would_be_left_without(tmp_path: Path) -> None:
    session = run_losing(Losses(folder=tmp_path, evaluate_every=6, set_aside=2, engines=2))
    assert [line.engines for line in read_evaluations(tmp_path)] == [1, 1, 0]
    assert session.said[0] == (
        "the evaluation of version 0 runs on 1 of them: its 2 of the fast pool are not there, or training "
        "would be left without"
    )


@pytest.mark.parametrize("engines", [2, 4])
def test_one_that_leaves_costs_no_response(tmp_path: Path, engines: int) -> None:
    async def shrink(session: LosingSession) -> None:
        await leaves(session, await until_set_aside(session, version=6))

    session = run_losing(
        Losses(
            folder=tmp_path, evaluate_every=6, set_aside=engines // 2, engines=engines, script=shrink,
            length=slow, checkpoint_every=12,
        )
    )  # fmt: skip
    assert len(read_evaluations(tmp_path)) == 3 and session.lost == []
    assert len(session.pool.slots) == engines - 1


def test_one_that_hangs_is_started_again_and_others_finish_it(tmp_path: Path) -> None:
    async def hang(session: LosingSession) -> None:
        cast(WatchedEngine, (await until_set_aside(session)).engine).stuck = True

    run_losing(
        Losses(
            folder=tmp_path, evaluate_every=6, set_aside=1, engines=3, length=slow, stall_seconds=60,
            script=hang,
        )
    )  # fmt: skip
    assert [line.step for line in read_evaluations(tmp_path)] == [0, 6, 12]


def test_one_of_two_that_falls_silent_is_started_again_while_steps_go_on(tmp_path: Path) -> None:
    steps: list[int] = []

    async def fall_silent(session: LosingSession) -> None:
        engine = cast(WatchedEngine, (await until_set_aside(session)).engine)
        engine._paused = True
        await until(lambda: bool(session.lost))
        steps.append(session.losable.steps)
        # As the fleet closes it.
        engine.die("it was closed")

    session = run_losing(
        Losses(
            folder=tmp_path, evaluate_every=6, set_aside=2, engines=4, length=slow, stall_seconds=60,
            seconds={"step": 20.0}, script=fall_silent,
        )
    )  # fmt: skip
    (why,) = session.lost
    assert "has requests and generated nothing for" in why
    assert 2 < steps[0] < 6
    lines = read_evaluations(tmp_path)
    assert [(line.step, unpinned(line)) for line in lines] == [(0, 0), (6, 0), (12, 0)]


def test_a_stop_takes_them_back(tmp_path: Path) -> None:
    async def stop(session: LosingSession) -> None:
        await until_set_aside(session)
        session.parts.stop.ask()

    # The step that is trained meanwhile is over before the evaluation is.
    losses = Losses(folder=tmp_path, evaluate_every=6, set_aside=1, script=stop, seconds={"step": 0.1})
    session = run_losing(losses)
    assert read_evaluations(tmp_path) == []
    assert all(slot.joined and not slot.aside for slot in session.pool.slots)


def test_a_version_that_is_due_while_one_is_evaluated_waits(tmp_path: Path) -> None:
    session = run_losing(
        Losses(
            folder=tmp_path,
            evaluate_every=1,
            set_aside=1,
            engines=3,
            length=slow,
            steps=6,
            checkpoint_every=6,
        )
    )
    lines = read_evaluations(tmp_path)
    assert [(line.step, line.engines) for line in lines] == [(step, int(step < 6)) for step in range(7)]
    assert [unpinned(line) for line in lines] == [0] * 7
    assert session.said == []
