"""Evaluations of a job, in virtual time: each due one once, of one set of weights, whatever is lost."""

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from rljob_runtime.driver.stall import Stalled
from rljob_runtime.engines.protocol import PauseMode, Request
from rljob_runtime.rollout.engine_slot import EngineSlot
from rljob_runtime.trace.record.evaluation_log import (
    EVALUATION_SAMPLES_FILE,
    EvaluationLine,
    EvaluationLog,
    read_evaluations,
)
from rljob_runtime.trace.record.sample_log import read_samples
from tests.support.simulated.losable_parts import EVALUATED, Losses, WatchedEngine
from tests.support.simulated.losing_job import LosingSession, run_losing


def whole(line: EvaluationLine) -> bool:
    """Each prompt was evaluated, with one set of weights, and half of the responses pass."""
    (score,) = line.sets.values()
    return (score.prompts, score.responses, score.failed, score.unpinned) == (
        EVALUATED,
        2 * EVALUATED,
        0,
        0,
    ) and (score.mean, score.pass_at) == (0.5, {1: 0.5, 2: 1.0})


def evaluates(slot: EngineSlot) -> bool:
    return any(key.uid < 0 for key, _ in slot.requests.values())


async def until_evaluated(session: LosingSession) -> None:
    """Until an engine runs a request of an evaluation."""
    # In virtual time, where nothing is lost by looking often.
    while not any(map(evaluates, session.pool.slots)):  # noqa: ASYNC110
        await asyncio.sleep(0.01)


@pytest.fixture(params=[None, 1], ids=["shared", "set aside"])
def aside(request: pytest.FixtureRequest) -> int | None:
    """Engines that are set aside for evaluations; None: they run on all."""
    return cast("int | None", request.param)


def evaluated(folder: Path, **losses: Any) -> tuple[LosingSession, list[int]]:
    """Run a job; the steps of its evaluations, of which each is whole."""
    session = run_losing(Losses(folder=folder, **losses))
    lines = read_evaluations(folder)
    assert all(map(whole, lines))
    assert [group.uid for groups in session.losable.trained for group in groups], "it trained"
    for router in (session.pool.router, session.pool.aside):
        assert not router.book.groups, "nothing is left with the pool"
        router.book.check()
    assert not session.pool.aside_slots, "those that were set aside are taken back"
    return session, [line.step for line in lines]


@pytest.mark.parametrize(
    ("in_flight", "collective"),
    [
        ("keep", False),
        ("abort", False),
        ("wait", False),
        (None, False),
        ("keep", True),
        ("abort", True),
        ("wait", True),
    ],
)
def test_each_that_is_due_is_of_one_set_of_weights(
    tmp_path: Path, in_flight: PauseMode | None, collective: bool, aside: int | None
) -> None:
    session, steps = evaluated(
        tmp_path, set_aside=aside, evaluate_every=4, in_flight=in_flight, collective=collective, steps=10
    )
    assert steps == [0, 4, 8, 10]
    assert [line.step for line in session.evaluated] == steps
    assert [line.version for line in session.evaluated] == steps
    assert len(session.losable.trained) == 10


def test_versions_of_several_steps_and_a_last_one_that_is_not_whole(
    tmp_path: Path, aside: int | None
) -> None:
    session, steps = evaluated(tmp_path, set_aside=aside, evaluate_every=2, steps_per_version=3, steps=13)
    assert [(line.step, line.version) for line in session.evaluated] == [(0, 0), (6, 2), (12, 4), (13, 5)]
    assert steps == [0, 6, 12, 13]


def test_the_staleness_of_what_is_trained_is_what_it_is_without(tmp_path: Path, aside: int | None) -> None:
    with_them, _ = evaluated(tmp_path, set_aside=aside, evaluate_every=1, max_staleness=1.0)
    without = run_losing(Losses(max_staleness=1.0))
    assert max(with_them.losable.ages) <= 1
    for session in (with_them, without):
        uids = sorted(group.uid for groups in session.losable.trained for group in groups)
        assert uids == list(range(48)), "each prompt is trained once"


@pytest.mark.parametrize(
    "at", [("step", 4), ("step", 5), ("publish", 4), ("publish", 6), ("save", 1), ("step", 1)]
)
def test_a_lost_trainer_has_evaluations_repeated_that_do_not_count_any_more(
    tmp_path: Path, at: tuple[str, int], aside: int | None
) -> None:
    session, steps = evaluated(tmp_path, set_aside=aside, evaluate_every=2, at=[at])
    assert session.losable.losses == 1
    assert steps == [0, 2, 4, 6, 8, 10, 12]
    told = [line.step for line in session.evaluated]
    assert told[-1] == 12 and sorted(set(told)) == steps


def test_the_last_one_is_of_the_last_weights_though_the_trainer_is_lost_before_engines_have_them(
    tmp_path: Path, aside: int | None
) -> None:
    session, steps = evaluated(tmp_path, set_aside=aside, evaluate_every=2, steps=4, at=[("write", 4)])
    assert session.losable.losses == 1 and len(session.losable.trained) == 4
    assert steps == [0, 2, 4]


def test_one_of_steps_that_do_not_count_any_more_is_made_again(tmp_path: Path, aside: int | None) -> None:
    # Checkpoints are of 3, 6, ... steps: the sixth step is lost with those since 3.
    session, steps = evaluated(tmp_path, set_aside=aside, evaluate_every=2, at=[("step", 6)])
    assert [line.step for line in session.evaluated] == [0, 2, 4, 4, 6, 8, 10, 12]
    assert steps == [0, 2, 4, 6, 8, 10, 12]


def slow_last(request: Request) -> int:
    """The last response of an evaluation takes as long as many steps."""
    return 900 if request.request_id.startswith("-6.1") else 10


def test_no_checkpoint_passes_by_one_that_is_not_over(tmp_path: Path, aside: int | None) -> None:
    # Five steps of a version are trained while it is evaluated; the trainer is lost within them.
    session, steps = evaluated(
        tmp_path, set_aside=aside, evaluate_every=1, steps_per_version=5, checkpoint_every=1, steps=10,
        at=[("step", 3)], length=slow_last,
    )  # fmt: skip
    assert session.losable.losses == 1
    assert steps == [0, 5, 10]


@pytest.mark.parametrize("in_flight", ["keep", None])
def test_engines_that_fetch_what_is_evaluated_have_it_first(
    tmp_path: Path, in_flight: PauseMode | None, aside: int | None
) -> None:
    _, steps = evaluated(
        tmp_path, set_aside=aside, evaluate_every=2, steps=6, in_flight=in_flight, fetch_seconds=0.7
    )
    assert steps == [0, 2, 4, 6]


def test_an_engine_that_dies_costs_no_response(tmp_path: Path, aside: int | None) -> None:
    async def kill(session: LosingSession) -> None:
        await until_evaluated(session)
        await next(filter(evaluates, session.pool.slots)).engine.close()

    session, steps = evaluated(tmp_path, set_aside=aside, evaluate_every=6, script=kill, engines=3)
    assert steps == [0, 6, 12]
    assert len(session.lost) == 1


def test_what_is_kept_of_them(tmp_path: Path, aside: int | None) -> None:
    evaluated(tmp_path, set_aside=aside, evaluate_every=6)
    rows = read_samples(tmp_path, EVALUATION_SAMPLES_FILE).rows
    assert [(row.step, row.uid, row.row, row.index) for row in rows] == [
        (step, *place) for step in (0, 6, 12) for place in ((0, 0, 0), (0, 0, 1), (1, 1, 0))
    ]
    assert {(row.evaluation, row.first_version == row.last_version == row.step) for row in rows} == {
        ("held_out", True)
    }


def test_a_stop_gives_up_the_one_under_way_and_it_is_due_again(tmp_path: Path, aside: int | None) -> None:
    async def stop(session: LosingSession) -> None:
        await until_evaluated(session)
        session.parts.stop.ask()

    # The step that is trained meanwhile is over before the evaluation is.
    losses = Losses(folder=tmp_path, evaluate_every=6, set_aside=aside, script=stop, seconds={"step": 0.1})
    session = run_losing(losses)
    assert read_evaluations(tmp_path) == [] and session.evaluated == []
    assert len(session.losable.trained) < 12
    assert session.parts.delivery.pinned is None
    evaluations = session.parts.evaluations
    assert evaluations is not None and evaluations.due(0, last=False)


def test_after_a_restart_those_that_are_recorded_are_not_repeated(tmp_path: Path) -> None:
    evaluated(tmp_path, evaluate_every=4)
    record = EvaluationLog(tmp_path)
    record.begin(6)
    assert record.newest is not None and record.newest.step == 4
    assert [line.step for line in read_evaluations(tmp_path)] == [0, 4]
    kept = {row.step for row in read_samples(tmp_path, EVALUATION_SAMPLES_FILE).rows}
    assert kept == {0, 4}


def test_one_that_does_not_end_has_its_engine_started_again_and_then_ends_the_job(tmp_path: Path) -> None:
    def length(request: Request) -> int:
        return 10**5 if request.request_id.startswith("-6.1") else 10

    async def hang(session: LosingSession) -> None:
        await until_evaluated(session)
        for slot in session.pool.slots:
            cast(WatchedEngine, slot.engine).stuck = True

    with pytest.raises(ExceptionGroup) as caught:
        run_losing(
            Losses(
                folder=tmp_path, evaluate_every=6, length=length, max_response_tokens=10**5, stall_seconds=60,
                max_staleness=0.0, script=hang,
            )
        )  # fmt: skip
    stalled, _ = caught.value.split(Stalled)
    assert stalled is not None
    assert str(stalled.exceptions[0]) == (
        "the evaluation after step 0 does not end: engines generated nothing for 60 s "
        "(spec.training.timeouts.stallSeconds); those with requests were started again, and the same "
        "happened once more"
    )


def test_an_engine_that_comes_meanwhile_gets_no_newer_weights(tmp_path: Path) -> None:
    """With a collective transport whoever comes is sent what the trainer holds, which is ahead by then."""
    ahead: list[int] = []

    async def come(session: LosingSession) -> None:
        await until_evaluated(session)
        await session.losable.stepped.until(lambda: session.losable.steps >= 1, 1e6)
        pinned = session.parts.delivery.pinned
        assert pinned is not None
        ahead.append(session.losable.steps - pinned)
        await session.come()
        await session.send_to_newcomers()

    session, steps = evaluated(
        tmp_path, evaluate_every=6, collective=True, length=slow_last, engines=1, script=come
    )
    assert (ahead, steps) == ([1], [0, 6, 12])
    assert all(slot.entered for slot in session.pool.slots), "it gets the next version with the others"
