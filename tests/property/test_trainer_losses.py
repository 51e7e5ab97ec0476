"""Whenever the trainer is lost, the job goes on as if the lost steps had never been."""

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rljob_runtime.data.length_trace import LENGTHS_FILE, read_length_trace
from rljob_runtime.restarts import GivenUp
from rljob_runtime.trace.record.sample_log import read_samples
from tests.support.depth import examples
from tests.support.simulated.losable_parts import CALLS, Losses
from tests.support.simulated.losing_job import SAMPLES, LosingSession, run_losing
from tests.support.simulated.migrating_job import POLICIES

ENGINES_ARE_THE_BOTTLENECK = {
    "few places": Losses(at=[("step", 21)], steps=40, max_running=3),
    "fewer places, a wide bound": Losses(at=[("step", 9)], steps=40, max_staleness=4, max_running=2),
    "a trainer that starts at once": Losses(
        at=[("step", 12), ("step", 20)], steps=30, max_staleness=4, max_running=2,
        seconds={"step": 0.2, "publish": 3.0, "start": 0.1},
    ),
    "lost again while it is brought back": Losses(
        at=[("step", 11), ("load", 1), ("publish", 11)], steps=20, max_staleness=4, max_running=2,
        seconds={"step": 0.2, "publish": 3.0, "start": 3.0},
    ),
    "while a version is written": Losses(
        at=[("write", 4), ("write", 11)], steps=20, max_staleness=4, max_running=2,
        seconds={"step": 0.2, "publish": 0.1, "write": 3.0, "start": 3.0},
    ),
    "before the first checkpoint": Losses(at=[("step", 5)], steps=9, checkpoint_every=9),
    "pull": Losses(at=[("step", 11), ("publish", 14)], steps=20, max_staleness=4, in_flight=None),
    "a collective transport": Losses(at=[("step", 8), ("transmit", 9)], steps=20, collective=True),
}  # fmt: skip

losses = st.builds(
    Losses,
    at=st.lists(st.tuples(st.sampled_from(CALLS), st.integers(1, 12)), min_size=1, max_size=3, unique=True),
    groups_per_step=st.integers(1, 6),
    max_staleness=st.sampled_from([0, 0.5, 1, 2, 4]),
    steps_per_version=st.integers(1, 3),
    checkpoint_every=st.integers(1, 5),
    in_flight=st.sampled_from(["keep", "abort", "wait", None]),
    engines=st.integers(1, 3),
    max_running=st.integers(1, 8),
    seconds=st.fixed_dictionaries(
        {call: st.sampled_from([0.0, 0.3, 5.0]) for call in ("step", "publish", "write", "start", "save")}
    ),
)


def check(session: LosingSession) -> None:
    trainer, sizes, counts = session.losable, session.settings, session.rollouter.counts
    trained = [group.uid for groups in trainer.trained for group in groups]
    assert sorted(trained) == list(range(sizes.total_groups))
    assert min(trainer.ages) >= 0 and max(trainer.ages) <= sizes.bound.versions
    assert session.rows == list(range(sizes.total_steps)), "one row for each step, in order"
    assert session.lost == []
    assert counts.open == 0
    assert counts.dispatched == counts.accepted + sum(counts.cancelled.values())
    assert counts.accepted == sizes.total_groups + sum(counts.discarded.values())


@pytest.mark.parametrize("name", ENGINES_ARE_THE_BOTTLENECK)
def test_what_was_under_way_is_made_again_under_the_bound(name: str, tmp_path: Path) -> None:
    losses = replace(ENGINES_ARE_THE_BOTTLENECK[name], folder=tmp_path)
    session = run_losing(losses)
    check(session)
    assert session.losable.losses == len(losses.at)
    assert set(session.rollouter.counts.cancelled) == {"trainer restarted"}
    assert set(session.interruptions) == {"trainer lost"}
    trained = {group.uid: group.samples for groups in session.losable.trained for group in groups}
    trace = read_length_trace(tmp_path / LENGTHS_FILE)
    assert (trace.covered, trace.incomplete, trace.unreadable) == (len(trained), 0, 0)
    assert trace.tokens.tolist() == [[len(each.tokens) for each in trained[uid]] for uid in sorted(trained)]
    says = read_samples(tmp_path)
    assert says.unreadable == 0
    assert Counter(row.step for row in says.rows) == dict.fromkeys(
        range(session.settings.total_steps), SAMPLES
    )
    assert len({(row.uid, row.index) for row in says.rows}) == len(says.rows)
    assert [row.step for row in says.rows] == sorted(row.step for row in says.rows)
    uids = [{group.uid for group in groups} for groups in session.losable.trained]
    for row in says.rows:
        sample = trained[row.uid][row.index]
        assert row.uid in uids[row.step]
        assert (row.tokens, row.reward) == (len(sample.tokens), sample.reward)
        assert (row.first_version, row.last_version) == (sample.spans[0].version, sample.spans[-1].version)


@settings(max_examples=examples(80), deadline=None)
@given(losses=losses, collective=st.booleans())
def test_every_prompt_is_trained_once_within_the_bound(losses: Losses, collective: bool) -> None:
    check(run_losing(replace(losses, collective=collective and losses.in_flight is not None)))


@settings(max_examples=examples(40), deadline=None)
@given(
    losses=losses, policy=st.sampled_from(sorted(POLICIES)), heavy=st.integers(0, 2), seed=st.integers(0, 9)
)
def test_whatever_the_routing_policy(losses: Losses, policy: str, heavy: int, seed: int) -> None:
    """Groups that are held back, or whose responses move, are cancelled and begun again like others."""
    rng = random.Random(seed)
    moving = replace(
        losses, heavy_engines=heavy, policy=lambda: POLICIES[policy](rng, losses.groups_per_step)
    )
    check(run_losing(moving))


@settings(max_examples=examples(80), deadline=None)
@given(
    losses=losses,
    refill=st.none() | st.integers(1, 3),
    one_in=st.integers(2, 4),
    epochs=st.booleans(),
    over=st.booleans(),
    refuse=st.sampled_from(["zeroVariance", "passRate"]),
)
# The checkpoint that it goes back to knows of refused groups, and others were refused since.
@example(
    losses=Losses(at=[("step", 5)], checkpoint_every=3),
    refill=2, one_in=3, epochs=False, over=False, refuse="passRate",
)  # fmt: skip
def test_with_a_filter_and_over_sampling_every_prompt_is_trained_or_refused_once(
    losses: Losses,
    refill: int | None,
    one_in: int,
    epochs: bool,
    over: bool,
    refuse: Literal["zeroVariance", "passRate"],
) -> None:
    """`one_in`: how many prompts there are to one that gives different rewards."""
    over = over and losses.groups_per_step * losses.steps_per_version >= 4
    session = run_losing(
        replace(
            losses,
            max_refill=refill,
            refuse=refuse,
            equal=lambda uid: uid % one_in != 0,
            epochs=1 if epochs else None,
            over_sampling=0.25 if over else None,
        )
    )
    trainer, sizes, counts = session.losable, session.settings, session.rollouter.counts
    trained = [group.uid for groups in trainer.trained for group in groups]
    ledger = session.session._recovery.ledger
    assert len(trained) == len(set(trained)) == ledger.trained
    assert set(trained) | session.refused(ledger) == {uid for uid in range(ledger.end) if uid in ledger}
    assert all(uid % one_in for uid in session.refused(ledger))
    if sizes.uids is None:
        assert len(trained) == sizes.total_groups
    else:
        assert (ledger.watermark, ledger.ahead) == (sizes.uids, set())
    assert max(trainer.ages) <= sizes.bound.versions
    assert session.rows == list(range(len(trainer.trained))), "one row for each step, in order"
    assert counts.open == 0 and counts.refused == ledger.refused
    by_rate = counts.refused if refuse == "passRate" else 0
    assert counts.refused_pass_rate == ledger.refused_pass_rate == by_rate
    assert counts.dispatched == counts.accepted + counts.refused + sum(counts.cancelled.values())
    assert counts.accepted == len(trained) + sum(counts.discarded.values())


def test_a_trainer_that_dies_at_its_first_start_is_started_again() -> None:
    session = run_losing(Losses(at=[("start", 1), ("start", 2)]))
    check(session)
    assert session.said == ["it was killed at start; the trainer is started again"] * 2
    assert session.began_at == [0]


def test_one_that_never_starts_ends_the_job() -> None:
    with pytest.raises(BaseExceptionGroup) as raised:
        run_losing(Losses(at=[("start", call) for call in range(1, 5)]))
    (given_up,) = raised.value.exceptions
    assert isinstance(given_up, GivenUp)
    assert str(given_up) == "the trainer failed 4 times in a row; the last time: it was killed at start"
