"""Turns step results into what people see: metrics, the view's progress, the closing summary.

Guarantees: reads no device and waits for nothing; rates and shares are over the newest minute of training, in
which neither the start nor an interruption counts (`rates.py`); a step that is trained again stands once in
the metrics.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from rljob_runtime.driver.rates import RateWindow, Reading
from rljob_runtime.groups.counts import GroupCounts, in_words
from rljob_runtime.named_means import mean
from rljob_runtime.rollout.pool import EnginePool
from rljob_runtime.trace.record.metrics_log import Interruption, MetricsLog
from rljob_runtime.trace.record.start_log import Cause
from rljob_runtime.trainer.step_metrics import StepMetrics
from rljob_runtime.view.progress import Header, Progress, RecentReward

_TREND_STEPS = 10
"""Steps in each of the two means whose difference is the trend, and in the closing line's mean."""

_SHORTEST_SECONDS = 5.0
"""Busy shares of less time than this say little: engines and trainer are just beginning."""


class Tracker:
    """Follows a job's steps. `begin` comes before the first `step_done`."""

    def __init__(
        self,
        header: Header,
        pool: EnginePool,
        log: MetricsLog,
        clock: Callable[[], float],
        first_step: int,
        total_steps: int,
        queue_capacity: int,
        with_kl: bool,
        with_teacher: bool = False,
    ) -> None:
        """`queue_capacity` in samples; `with_kl` and `with_teacher`: whether there is a divergence from the
        initial model, and from a teacher, to show and record."""
        self.progress = Progress(
            header, step=first_step, total_steps=total_steps, queue_capacity=queue_capacity
        )
        self.counts = GroupCounts()
        """What became of the job's groups."""
        self._pool = pool
        self._log = log
        self._with_kl = with_kl
        self._with_teacher = with_teacher
        self._clock = clock
        self._rewards: deque[float] = deque(maxlen=2 * _TREND_STEPS)
        """Mean rewards of the newest steps, each step once."""
        self._window = RateWindow()
        self._steps = 0
        self._tokens = 0
        self._trained_seconds = 0.0
        self._step_began: float | None = None
        """When the step began that the trainer is at; None while it is at none."""
        self._masked_steps = 0
        """Steps in which tokens could be masked."""
        self._masked_shares = 0.0
        """The sum of their shares of masked tokens."""
        self._begun = False
        self._interruption: Interruption | None = None

    def interrupted(self, cause: Cause, why: str = "") -> None:
        """Training stops here, and goes on with the next `begin`. `why`: what broke, in words."""
        since = self._interruption
        # A trainer that dies while it is brought back has been away since the first time.
        self._interruption = Interruption(cause, since.time if since else self._clock(), why)
        self._step_began = None
        self.progress = replace(self.progress, busy={}, busy_seconds=0.0, running={}, waiting=0)

    def begin(self, step: int) -> None:
        """Trainer and engines are ready, and training begins, or goes on after an interruption, with `step`.
        Raises `OSError`."""
        # Told again without an interruption, as where a resize was taken back.
        if self._begun and self._interruption is None:
            return
        start = self._log.begin(step, self._interruption)
        if self._begun:
            # Steps that are trained again bring their rewards again.
            for _ in range(min(start.repeated, len(self._rewards))):
                self._rewards.pop()
        self._begun, self._interruption = True, None
        self.progress = replace(self.progress, step=step)
        self._window.begin(self._reading())

    def planned(self, total_steps: int) -> None:
        """The job has so many steps: fewer than at its beginning where groups of an epoch were refused."""
        self.progress = replace(self.progress, total_steps=total_steps)

    def step_begins(self) -> None:
        """The trainer begins with a step."""
        self._step_began = self._clock()

    def look(self) -> bool:
        """See how busy the pools are within a step. Returns whether that can be told: not while training is
        interrupted, and not before it has gone on for a few seconds."""
        if self._interruption is not None:
            return False
        seconds, busy = self._window.busy(self._reading())
        if seconds < _SHORTEST_SECONDS:
            return False
        self._load(busy, seconds)
        return True

    def step_done(
        self,
        metrics: StepMetrics,
        uids: Sequence[int],
        queue_depth: int,
        version: int,
        seconds: float,
        counts: GroupCounts,
        more: Mapping[str, Any] = {},
    ) -> None:
        """A step was trained on the groups `uids` in `seconds`; `queue_depth` in samples, `counts` since the
        job began. `more`: further values of the step's row."""
        self.counts = counts
        self._steps += 1
        self._tokens += metrics.response_tokens
        self._trained_seconds += seconds
        self._step_began = None
        self._window.step_done(self._reading())
        self._rewards.append(metrics.reward_mean)
        rates = self._window.rates()
        left = (self.progress.total_steps or 0) - metrics.step - 1
        masked = metrics.masked
        if masked is not None:
            self._masked_steps += 1
            self._masked_shares += masked.tokens
        self.progress = replace(
            self.progress,
            step=metrics.step + 1,
            reward=metrics.reward_mean,
            reward_trend=self._trend(),
            loss=metrics.loss,
            kl=metrics.kl if self._with_kl else None,
            teacher_kl=metrics.teacher_kl if self._with_teacher else None,
            version=version,
            staleness_mean=metrics.staleness_mean,
            staleness_max=metrics.staleness_max,
            masked_share=masked.tokens if masked is not None else None,
            queue_depth=queue_depth,
            tokens_per_second=rates.tokens_per_second,
            seconds_left=left / rates.steps_per_second if rates.steady else None,
            activity=None,
        )
        self._load(rates.busy, rates.seconds)
        values: dict[str, Any] = msgspec.structs.asdict(metrics)
        if not self._with_kl:
            # 0 would look as if it had been measured.
            del values["kl"]
        if not self._with_teacher:
            del values["teacher_kl"]
        for name in ("reward_parts", "reward_metrics"):
            if not values[name]:
                del values[name]
        values["passes"] = msgspec.structs.asdict(metrics.passes)
        if masked is None:
            del values["masked"]
        else:
            values["masked"] = msgspec.structs.asdict(masked)
        values |= {"queue_depth": queue_depth, "tokens_per_second": rates.tokens_per_second}
        values |= {"weight_version": version, "step_seconds": seconds, "busy": dict(rates.busy)}
        values |= {"uids": list(uids), **counts.metrics(), **more}
        self._log.write(metrics.step, values)

    def recent_reward(self) -> RecentReward | None:
        """Mean reward over the newest steps; None before the first."""
        newest = list(self._rewards)[-_TREND_STEPS:]
        rewards = _numbers(newest)
        return RecentReward(mean(rewards) if rewards else None, len(rewards), len(newest)) if newest else None

    def lost(self) -> str | None:
        """What was generated again or not trained, in sentences; None where nothing was."""
        sentences = [in_words(self.counts)]
        if self._masked_shares:
            percent = self._masked_shares / self._masked_steps * 100
            sentences.append(
                f"Masked: {percent:.1f} % of a step's response tokens were older than the bound."
            )
        return " ".join(filter(None, sentences)) or None

    def close(self) -> None:
        """Write out the metrics."""
        self._log.close()

    def _load(self, busy: Mapping[str, float], seconds: float) -> None:
        running = {pool: use.running for pool, use in self._pool.use().items() if pool in busy}
        self.progress = replace(
            self.progress,
            busy=dict(busy),
            busy_seconds=seconds,
            running=running,
            waiting=self._pool.router.book.waiting,
        )

    def _reading(self) -> Reading:
        now = self._clock()
        pools = {pool: (use.seconds, use.idle) for pool, use in self._pool.use().items()}
        at_it = 0.0 if self._step_began is None else now - self._step_began
        return Reading(now, self._steps, self._tokens, self._trained_seconds + at_it, pools)

    def _trend(self) -> float:
        """Mean reward of the newer half of the newest steps less that of the older half."""
        rewards = _numbers(self._rewards)
        half = len(rewards) // 2
        if half == 0:
            return 0.0
        return sum(rewards[half:]) / (len(rewards) - half) - sum(rewards[:half]) / half


def _numbers(rewards: Iterable[float]) -> list[float]:
    """The rewards of the steps that have one; that of a step whose responses all lack it is no number."""
    return [each for each in rewards if not math.isnan(each)]
