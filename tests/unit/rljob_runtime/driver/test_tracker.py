"""What the view and the metrics say of a job whose start, steps and interruptions take known times."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rljob_runtime.driver.tracker import Tracker
from rljob_runtime.engines.fake import FakeEngine
from rljob_runtime.groups.counts import GroupCounts
from rljob_runtime.rollout.engine_slot import EngineSlot
from rljob_runtime.rollout.pool import EnginePool
from rljob_runtime.trace.record.event_log import EventLog
from rljob_runtime.trace.record.metrics_log import METRICS_FILE, MetricsLog, scalars
from rljob_runtime.trace.record.start_log import read_starts
from rljob_runtime.view.progress import RecentReward
from tests.support.runtime.steps import HEADER, TOKENS, step_metrics

STEPS = 80


@dataclass
class Followed:
    """A tracker of a job with one engine, and the time."""

    folder: Path
    with_kl: bool = False
    with_teacher: bool = False
    now: float = 1000.0
    tracker: Tracker = field(init=False)

    def __post_init__(self) -> None:
        pool = EnginePool(lambda: self.now, lambda slot, why: None)
        self.slot = EngineSlot(
            FakeEngine("fast-0", lambda request: 1), "fast", 8, EventLog(None, 1, "fast-0", "fast")
        )
        pool.add(self.slot)
        log = MetricsLog(self.folder, clock=lambda: self.now)
        self.tracker = Tracker(
            HEADER, pool, log, lambda: self.now, 0, STEPS, 64, self.with_kl, self.with_teacher
        )
        # The engine loads for 23 s.
        self.now += 23.0
        pool.join(self.slot)

    def steps(self, steps: range, seconds: float, reward: float = 0.5) -> None:
        """The trainer is at each step for a quarter of the time, the engine idle for a fifth."""
        for step in steps:
            self.now += seconds
            self.slot.idle_since, self.slot.idle_seconds = None, self.slot.idle_seconds + seconds / 5
            self.tracker.step_done(step_metrics(step, reward), [step], 3, step, seconds / 4, GroupCounts())

    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / METRICS_FILE).read_text().splitlines()]


def test_the_start_counts_in_no_rate_no_share_and_not_in_the_time_left(tmp_path: Path) -> None:
    job = Followed(tmp_path)
    job.now += 4.0
    job.tracker.begin(0)
    job.slot.idle_seconds, job.slot.idle_since = 4.0, None
    for step in range(3):
        job.steps(range(step, step + 1), seconds=0.5)
        shown = job.tracker.progress
        assert shown.tokens_per_second == pytest.approx(TOKENS / 0.5), f"after step {step}"
        left = (STEPS - step - 1) * 0.5
        assert shown.seconds_left == (pytest.approx(left) if step else None), "one short step tells nothing"
        assert shown.busy == pytest.approx({"fast": 0.8, "trainer": 0.25})
    for row in job.rows():
        assert row["tokens_per_second"] == pytest.approx(TOKENS / 0.5)
        assert row["busy"] == pytest.approx({"fast": 0.8, "trainer": 0.25})
    (start,) = read_starts(tmp_path)
    assert (start.time, start.step, start.cause) == (1027.0, 0, "new")


def test_a_lost_trainer_leaves_one_row_for_each_step_and_starts_the_rates_anew(tmp_path: Path) -> None:
    job = Followed(tmp_path)
    job.tracker.begin(0)
    job.steps(range(15), 1.0, reward=0.25)
    job.tracker.interrupted("trainer lost", "rank 1 died")
    job.now += 10.0
    job.tracker.interrupted("trainer lost", "rank 0 died, too")
    job.now += 30.0
    job.tracker.begin(10)
    assert job.tracker.progress.step == 10
    job.steps(range(10, STEPS), 1.0, reward=0.75)
    assert [row["step"] for row in job.rows()] == list(range(STEPS))
    assert [row["reward_mean"] for row in job.rows()] == [0.25] * 10 + [0.75] * 70
    assert {round(row["tokens_per_second"]) for row in job.rows()} == {TOKENS}
    lost = read_starts(tmp_path)[1]
    assert (lost.step, lost.cause, lost.why, lost.repeated) == (10, "trainer lost", "rank 0 died, too", 5)
    assert (lost.stopped, lost.time) == (1038.0, 1078.0)


def test_an_interruption_counts_in_no_share_that_is_seen_within_it(tmp_path: Path) -> None:
    job = Followed(tmp_path)
    job.tracker.begin(0)
    job.steps(range(3), 10.0)
    assert job.tracker.look()
    job.tracker.interrupted("trainer lost", "rank 1 died")
    job.now += 3600.0
    assert not job.tracker.look()
    assert (job.tracker.progress.busy, job.tracker.progress.running) == ({}, {})
    job.tracker.begin(2)
    job.now += 10.0
    assert job.tracker.look()
    assert job.tracker.progress.busy_seconds == pytest.approx(10.0)


def test_rewards_of_steps_that_are_trained_again_do_not_count(tmp_path: Path) -> None:
    job = Followed(tmp_path)
    job.tracker.begin(0)
    job.steps(range(4), 1.0, reward=1.0)
    job.tracker.interrupted("trainer lost", "rank 1 died")
    job.tracker.begin(2)
    job.steps(range(2, 4), 1.0, reward=0.0)
    assert job.tracker.recent_reward() == RecentReward(0.5, 4, 4)


def test_the_closing_mean_is_of_the_newest_steps(tmp_path: Path) -> None:
    job = Followed(tmp_path)
    job.tracker.begin(0)
    assert job.tracker.recent_reward() is None
    for step in range(12):
        job.steps(range(step, step + 1), 1.0, reward=(0.1, 0.2, -0.3)[step % 3])
    assert job.tracker.recent_reward() == RecentReward(pytest.approx(-0.03), 10, 10)


def test_the_closing_mean_is_of_the_steps_that_have_a_reward(tmp_path: Path) -> None:
    job = Followed(tmp_path)
    job.tracker.begin(0)
    job.steps(range(1), 1.0, reward=0.25)
    job.steps(range(1, 3), 1.0, reward=float("nan"))
    assert job.tracker.recent_reward() == RecentReward(0.25, 1, 3)
    assert job.tracker.progress.reward_trend == 0.0
    job.steps(range(3, 4), 1.0, reward=0.75)
    assert job.tracker.recent_reward() == RecentReward(0.5, 2, 4)
    assert job.tracker.progress.reward_trend == 0.5


def test_no_step_with_a_reward_has_no_closing_mean(tmp_path: Path) -> None:
    job = Followed(tmp_path)
    job.tracker.begin(0)
    job.steps(range(2), 1.0, reward=float("nan"))
    assert job.tracker.recent_reward() == RecentReward(None, 0, 2)
    assert job.tracker.progress.reward_trend == 0.0


def test_training_that_was_not_interrupted_does_not_begin_again(tmp_path: Path) -> None:
    job = Followed(tmp_path)
    job.tracker.begin(0)
    job.steps(range(2), 1.0)
    job.tracker.begin(2)
    assert len(read_starts(tmp_path)) == 1


@pytest.mark.parametrize(("with_kl", "with_teacher"), [(False, False), (True, False), (False, True)])
def test_a_divergence_is_recorded_where_there_is_one(
    tmp_path: Path, with_kl: bool, with_teacher: bool
) -> None:
    job = Followed(tmp_path, with_kl, with_teacher)
    job.tracker.begin(0)
    job.steps(range(1), 1.0)
    for name, there in (("kl", with_kl), ("teacher_kl", with_teacher)):
        assert (name in job.rows()[0]) == there
        assert (getattr(job.tracker.progress, name) is not None) == there


def test_masked_tokens_are_recorded_and_told_where_steps_do_not_wait(tmp_path: Path) -> None:
    job = Followed(tmp_path)
    job.tracker.begin(0)
    for step, share in enumerate([0.1, 0.3]):
        job.now += 1.0
        job.tracker.step_done(step_metrics(step, masked=share), [step], 3, step, 0.5, GroupCounts())
    assert [row["masked"]["tokens"] for row in job.rows()] == [0.1, 0.3]
    assert job.tracker.progress.masked_share == 0.3
    assert job.tracker.lost() == "Masked: 20.0 % of a step's response tokens were older than the bound."


def test_nothing_is_told_of_masked_tokens_where_steps_wait(tmp_path: Path) -> None:
    job = Followed(tmp_path)
    job.tracker.begin(0)
    job.steps(range(2), 1.0)
    assert "masked" not in job.rows()[0]
    assert job.tracker.progress.masked_share is None
    assert job.tracker.lost() is None


def test_parts_of_rewards_are_curves_where_there_are_any(tmp_path: Path) -> None:
    job = Followed(tmp_path)
    job.tracker.begin(0)
    for step, parts in enumerate([{}, {"correct": 0.5}]):
        metrics = msgspec.structs.replace(
            step_metrics(step), reward_parts=parts, reward_metrics=parts, reward_values_failed=step
        )
        job.tracker.step_done(metrics, [step], 3, step, 1.0, GroupCounts())
    without, with_parts = job.rows()
    assert "reward_parts" not in without and "reward_metrics" not in without
    assert with_parts["reward_parts"] == with_parts["reward_metrics"] == {"correct": 0.5}
    found = scalars(with_parts)
    assert found["reward_parts/correct"] == found["reward_metrics/correct"] == 0.5
    assert found["data/reward_values_failed"] == 1
