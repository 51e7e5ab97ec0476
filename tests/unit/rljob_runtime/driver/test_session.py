"""A session on made-up parts, in virtual time."""

import asyncio
import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from rljob_runtime.data.fingerprint import DataFingerprint
from rljob_runtime.driver.job_settings import job_settings
from rljob_runtime.driver.placement import StopAsked
from rljob_runtime.driver.reward_failures import RewardsFailed, RewardsNeverWorked
from rljob_runtime.driver.session import Session
from rljob_runtime.driver.training_loop import Stalled
from rljob_runtime.engines.fake import FakeTiming
from rljob_runtime.engines.protocol import LoadSnapshot, PauseMode, WeightRef
from rljob_runtime.simulate.virtual_loop import run_virtual
from rljob_runtime.weights.shm import WeightsGone
from tests.support.simulated.losable_parts import Losses, WatchedEngine
from tests.support.simulated.losing_job import LosingSession, run_losing


def ending(losses: Losses) -> BaseException:
    """The error that ends a job."""
    with pytest.raises(BaseExceptionGroup) as raised:
        run_losing(losses)
    (error,) = raised.value.exceptions
    return error


def test_rewards_that_all_fail_end_the_job_before_anything_is_trained() -> None:
    error = ending(Losses(failure=lambda uid: "error: KeyError: 'answer'"))
    assert isinstance(error, RewardsNeverWorked)
    assert "all 8 samples of step 1" in str(error) and "error: KeyError: 'answer'" in str(error)


def test_rewards_that_fail_from_some_step_on_end_it_too() -> None:
    error = ending(Losses(steps=40, failure=lambda uid: "timeout after 10 s" if uid >= 40 else None))
    assert isinstance(error, RewardsFailed)


def test_a_last_step_without_rewards_is_not_trained() -> None:
    """It is too small to be an outage by the number of its samples, and no step comes after it."""
    error = ending(Losses(failure=lambda uid: "timeout after 10 s" if uid >= 44 else None))
    assert isinstance(error, RewardsFailed)
    assert "all 8 samples of step 12, the last of the job" in str(error)


def test_the_last_step_of_an_epoch_of_which_groups_were_refused_is_not_trained_without_rewards() -> None:
    """Eight of its 40 groups are refused, so that it has eight steps of four, and not ten."""
    error = ending(
        Losses(
            epochs=1,
            max_refill=2,
            equal=lambda uid: uid < 8,
            failure=lambda uid: "timeout after 10 s" if uid >= 36 else None,
        )
    )
    assert isinstance(error, RewardsFailed)
    assert "all 8 samples of step 8, the last of the job" in str(error)


def test_a_checkpoint_of_an_outage_does_not_end_the_job_that_goes_on_from_it() -> None:
    """Groups that wait in it without any reward are generated again, and get theirs if the judge works then;
    groups with rewards are trained as they are."""
    scored: Counter[int] = Counter()

    def failure(uid: int) -> str | None:
        scored[uid] += 1
        return "timeout after 10 s" if uid in range(24, 28) and scored[uid] == 1 else None

    # The trainer is slow: when it is lost at step 5, the groups of the next step wait in the checkpoint.
    losses = Losses(at=[("step", 6)], checkpoint_every=1, seconds={"step": 20.0}, failure=failure)
    session = run_losing(losses)
    assert session.losable.losses == 1
    assert [scored[uid] for uid in range(20, 28)] == [1, 1, 1, 1, 2, 2, 2, 2]
    trained = [sample for groups in session.losable.trained for group in groups for sample in group.samples]
    assert len(trained) == 12 * 4 * 2 and all(sample.failure is None for sample in trained)


@pytest.mark.parametrize("at", [[], [("step", 5)]], ids=["undisturbed", "with a lost trainer"])
def test_groups_without_rewards_among_others_do_not(at: list[tuple[str, int]]) -> None:
    session = run_losing(Losses(at=at, failure=lambda uid: None if uid % 4 == 0 else "timeout after 10 s"))
    assert len(session.losable.trained) == 12


def test_a_trainer_that_is_lost_while_engines_wait_for_its_version_is_missed_at_once() -> None:
    """With bound 0 no group comes without it, and nothing else tells of the loss."""
    session = run_losing(Losses(at=[("write", 4)], max_staleness=0, stall_seconds=60))
    assert session.losable.losses == 1 and len(session.losable.trained) == 12


def test_the_next_step_trains_while_a_version_is_written() -> None:
    """Two seconds a step, and not four: engines have groups enough."""
    ended: list[float] = []

    async def script(session: LosingSession) -> None:
        for step in range(12):
            await session.losable.stepped.until(lambda: session.losable.steps > step, 1e6)  # noqa: B023
            ended.append(asyncio.get_running_loop().time())

    seconds = {"step": 2.0, "publish": 0.0, "write": 1.9, "save": 0.0}
    run_losing(Losses(max_staleness=4, seconds=seconds, script=script))
    assert ended[-1] - ended[2] == pytest.approx(9 * 2.0, abs=0.1)


@pytest.mark.parametrize("in_flight", ["keep", None])
@pytest.mark.parametrize("max_staleness", [0.0, 0.5])
def test_an_engine_that_does_not_reach_a_version_once_does_not_hold_up_the_job(
    in_flight: PauseMode | None, max_staleness: float
) -> None:
    """Admission goes by the version that it has: with such a bound no step comes before it has the next."""

    async def script(session: LosingSession) -> None:
        engine = session.pool.slots[0].engine
        load, calls = engine.load, Counter[str]()

        async def load_but_once(ref: WeightRef) -> None:
            calls["load"] += 1
            if calls["load"] == 2:
                raise WeightsGone("the trainer did not answer for 60 s")
            await load(ref)

        engine.load = load_but_once  # type: ignore[method-assign]

    losses = Losses(in_flight=in_flight, max_staleness=max_staleness, fetch_seconds=0.2, script=script)
    session = run_losing(losses)
    assert len(session.losable.trained) == 12 and session.lost == []
    assert max(session.losable.ages) <= 1


LONG = Losses(
    steps=2, max_response_tokens=40_000, length=lambda request: 40_000, timing=FakeTiming(step_seconds=0.05)
)  # fmt: skip
"""Responses of 40,000 tokens at 20 tokens a second take longer than a step may stand still."""


@pytest.mark.parametrize("in_flight", ["keep", "wait", None])
def test_a_step_may_wait_as_long_as_engines_generate(in_flight: PauseMode | None) -> None:
    session = run_losing(replace(LONG, in_flight=in_flight))
    assert len(session.losable.trained) == 2 and session.lost == []


def test_it_may_wait_for_slow_rewards() -> None:
    session = run_losing(Losses(steps=2, stall_seconds=60, reward_seconds=50))
    assert len(session.losable.trained) == 2


def test_it_ends_the_job_when_nothing_moves() -> None:
    error = ending(Losses(timing=FakeTiming(step_seconds=1e9), stall_seconds=60))
    assert isinstance(error, Stalled)
    assert str(error) == (
        "step 1: for 60 s no engine generated a token, no reward came back and no group was completed "
        "(spec.training.timeouts.stallSeconds): 0 groups ready, 3 outstanding, 4 needed, 2 engines, "
        "2 of them stood still with requests; these were started again, and the same happened once more"
    )


@pytest.mark.parametrize("in_flight", ["wait", None])
def test_an_engine_that_does_not_finish_its_requests_is_lost(in_flight: PauseMode | None) -> None:
    """One that only stands still holds up a version, and a job with another engine goes on without it."""

    async def script(session: LosingSession) -> None:
        slot = session.pool.slots[0]
        slot.engine.stuck = True  # type: ignore[attr-defined]

    session = run_losing(Losses(in_flight=in_flight, stall_seconds=60, script=script))
    assert session.lost == [
        "engine engine-0 generated nothing for 60 s while it was to finish its requests "
        "(spec.training.timeouts.stallSeconds)"
    ]


@pytest.mark.parametrize("in_flight", ["wait", None])
def test_one_that_tells_of_ever_more_tokens_meanwhile_is_lost_too(in_flight: PauseMode | None) -> None:
    """More than its requests may have it is not believed; the update would wait for it for ever."""

    async def script(session: LosingSession) -> None:
        engine = cast(WatchedEngine, session.pool.slots[0].engine)
        engine.stuck, honest, told = True, engine.load_snapshot, itertools.count(10_000, 10_000)

        async def load_snapshot() -> LoadSnapshot:
            return msgspec.structs.replace(await honest(), generated_tokens=next(told))

        engine.load_snapshot = load_snapshot  # type: ignore[method-assign]

    session = run_losing(Losses(in_flight=in_flight, stall_seconds=60, script=script))
    (why,) = session.lost
    assert "generated nothing for 60 s while it was to finish its requests" in why


@pytest.mark.parametrize("in_flight", ["keep", None])
@pytest.mark.parametrize(
    "at", [[], [("start", 2)], [("publish", 5)]], ids=["", "lost at start", "lost later"]
)
def test_another_trainer_size_begins_between_two_steps(
    in_flight: PauseMode | None, at: list[tuple[str, int]]
) -> None:
    async def script(session: LosingSession) -> None:
        await session.losable.stepped.until(lambda: session.losable.steps >= 5, 1e6)
        session.resize_trainer(2)

    session = run_losing(Losses(at=at, in_flight=in_flight, script=script))
    trained = [group.uid for groups in session.losable.trained for group in groups]
    assert sorted(trained) == list(range(session.settings.total_groups))
    assert session.placed.workers == 2
    assert session.rows == list(range(12))
    if not at:
        assert session.said == [
            "the trainer stops at step 5, to be resized", "the trainer goes on with 2 workers"
        ]  # fmt: skip
        assert session.rollouter.counts.cancelled == {}
        assert session.interruptions == ["trainer resized"]
    else:
        assert "the trainer goes on from step" in session.said[-1] or "2 workers" in session.said[-1]


@pytest.mark.parametrize("at", [[], [("start", 1)]], ids=["", "lost at its start"])
def test_a_new_job_generates_while_its_trainer_starts(at: list[tuple[str, int]]) -> None:
    """Its engines begin with the weights that the trainer will begin with; nothing is generated twice."""
    ended: list[float] = []

    async def script(session: LosingSession) -> None:
        await session.losable.stepped.until(lambda: session.losable.steps > 0, 1e6)
        ended.append(asyncio.get_running_loop().time())

    seconds = {"step": 2.0, "start": 100.0}
    session = run_losing(Losses(at=at, seconds=seconds, script=script))
    # A start that dies does so at its half.
    assert ended == [pytest.approx(100.0 + 50.0 * len(at) + 2.0, abs=0.1)]
    assert session.rollouter.counts.cancelled == {} and len(session.losable.trained) == 12
    assert max(session.losable.ages) <= 2


def test_what_engines_wait_for_while_the_trainer_starts_is_no_wait_for_admission() -> None:
    """Advice goes by such waits: a larger bound would shorten no start."""
    waits: list[float] = []

    async def script(session: LosingSession) -> None:
        add = session.events.add

        def noted(event: str, step: int, start: float, duration: float, **extra: Any) -> None:
            if event == "admission_wait":
                waits.append(duration)
            add(event, step, start, duration, **extra)

        session.events.add = noted  # type: ignore[method-assign]

    run_losing(Losses(seconds={"step": 2.0, "start": 100.0}, max_staleness=0, script=script))
    assert waits and max(waits) < 50.0


def test_a_stop_is_made_after_the_step_that_is_trained_with_a_checkpoint() -> None:
    async def script(session: LosingSession) -> None:
        await session.losable.stepped.until(lambda: session.losable.steps >= 5, 1e6)
        session.parts.stop.ask()

    session = run_losing(Losses(script=script))
    assert session.session.steps_done == session.session.checkpoint_step == len(session.losable.trained)
    assert 5 <= session.session.steps_done < 12


@pytest.mark.parametrize("at", [[], [("step", 5)], [("step", 3), ("step", 9)]], ids=str)
def test_a_curriculum_goes_on_where_it_was(at: list[tuple[str, int]]) -> None:
    """A lost trainer costs no prompt its turn, and gives none two: a group that is dispatched again has the
    place in the order that it had, if the checkpoint knew it, and no two trained groups have one place."""
    losses = Losses(
        at=at, steps=12, checkpoint_every=2, curriculum_rows=10, equal=lambda uid: uid % 3 == 0,
        seconds={"step": 5.0},
    )  # fmt: skip
    session = run_losing(losses)
    assert session.losable.losses == len(at)
    trained = [group.uid for groups in session.losable.trained for group in groups]
    assert sorted(trained) == list(range(48))
    places = dict(session.placed_at)
    assert len({places[uid] for uid in trained}) == 48
    # Rows of the groups that are trained say the same.
    rows = {group.uid: group.row for groups in session.losable.trained for group in groups}
    assert rows == {uid: places[uid] % 10 for uid in trained}
    passed_over = set(range(max(places.values()))) - set(places.values())
    assert passed_over, "nothing was solved, so that this test says nothing"


BEGINS = {
    # what there is: whether the job goes on from it, what is told before any pod has come
    "a checkpoint": (True, 9, "9/12"),
    "a checkpoint that is not wanted": (False, None, "0/12"),
}


@pytest.mark.parametrize(("resume", "step", "words"), BEGINS.values(), ids=BEGINS)
def test_where_a_run_begins_is_told_before_pods_come(
    tmp_path: Path, resume: bool, step: int | None, words: str
) -> None:
    (tmp_path / "step_9").mkdir()

    def stops(*given: object) -> None:
        raise StopAsked

    async def run() -> dict[str, Any]:
        async with asyncio.TaskGroup() as tasks:
            parts = LosingSession(Losses(), tasks).parts
            manifest, settings = Losses().manifest(), job_settings(Losses().manifest(), 40)
            data = DataFingerprint("made up", 1, "", "", "in order")
            observer = SimpleNamespace(begins=stops, trained=lambda: None)
            session = Session(manifest, settings, data, tmp_path, parts, cast(Any, observer))
            await session.run(resume)
            return parts.site.draft.training

    told = run_virtual(run())
    saved = None if step is None else {"step": step, "path": str(tmp_path / "step_9")}
    assert (told.get("checkpoint"), told["progress"], told["step"]) == (saved, words, step or 0)
