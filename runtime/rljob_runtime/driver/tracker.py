"""Turns step results into what people see: metrics, the view's progress, the closing summary.

Guarantees: reads no device and waits for nothing; shares and rates are over the newest minute.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from rljob_runtime.groups.counts import GroupCounts
from rljob_runtime.rollout.pool import EnginePool
from rljob_runtime.trace.record.metrics import MetricsLog
from rljob_runtime.trainer.step_metrics import StepMetrics
from rljob_runtime.view.progress import Header, Progress

_WINDOW_SECONDS = 60.0
_TREND_STEPS = 10


class Tracker:
    """Follows a job's steps."""

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
    ) -> None:
        """`queue_capacity` in samples; `with_kl`: whether there is a divergence to show."""
        self.progress = Progress(
            header, step=first_step, total_steps=total_steps, queue_capacity=queue_capacity
        )
        self.counts = GroupCounts()
        """What became of the job's groups."""
        self._pool = pool
        self._log = log
        self._with_kl = with_kl
        self._clock = clock
        self._rewards: deque[float] = deque(maxlen=2 * _TREND_STEPS)
        self._recent: deque[tuple[float, int, float, dict[str, tuple[float, float]]]] = deque()
        self._trained_seconds = 0.0
        self._remember(0)

    def step_done(
        self,
        metrics: StepMetrics,
        uids: Sequence[int],
        queue_depth: int,
        version: int,
        seconds: float,
        counts: GroupCounts,
    ) -> None:
        """A step was trained on the groups `uids` in `seconds`; `queue_depth` in samples, `counts` since the
        job began."""
        self.counts = counts
        self._trained_seconds += seconds
        self._remember(metrics.response_tokens)
        self._rewards.append(metrics.reward_mean)
        rate, busy, steps_per_second = self._rates()
        left = (self.progress.total_steps or 0) - metrics.step - 1
        self.progress = replace(
            self.progress,
            step=metrics.step + 1,
            reward=metrics.reward_mean,
            reward_trend=self._trend(),
            loss=metrics.loss,
            kl=metrics.kl if self._with_kl else None,
            version=version,
            staleness_mean=metrics.staleness_mean,
            staleness_max=metrics.staleness_max,
            queue_depth=queue_depth,
            tokens_per_second=rate,
            busy=busy,
            seconds_left=left / steps_per_second if steps_per_second else None,
            activity=None,
        )
        values: dict[str, Any] = msgspec.structs.asdict(metrics)
        values |= {"queue_depth": queue_depth, "tokens_per_second": rate, "weight_version": version}
        values |= {"step_seconds": seconds, "busy": busy, "uids": list(uids), **counts.metrics()}
        self._log.write(metrics.step, values)

    def recent_reward(self) -> float | None:
        """Mean reward over the newest steps."""
        rewards = list(self._rewards)[-_TREND_STEPS:]
        return sum(rewards) / len(rewards) if rewards else None

    def close(self) -> None:
        """Write out the metrics."""
        self._log.close()

    def _remember(self, tokens: int) -> None:
        now = self._clock()
        pools: dict[str, tuple[float, float]] = {}
        for slot in self._pool.slots:
            idle, count = pools.get(slot.pool, (0.0, 0.0))
            pools[slot.pool] = (idle + slot.idle(now), count + 1)
        self._recent.append((now, tokens, self._trained_seconds, pools))
        while len(self._recent) > 2 and now - self._recent[0][0] > _WINDOW_SECONDS:
            self._recent.popleft()

    def _rates(self) -> tuple[float, dict[str, float], float]:
        """Tokens per second, busy share by pool, steps per second."""
        first, last = self._recent[0], self._recent[-1]
        elapsed = max(last[0] - first[0], 1e-9)
        busy = {}
        for pool, (idle, count) in last[3].items():
            idle_before, count_before = first[3].get(pool, (0.0, 0.0))
            if count == count_before:
                busy[pool] = min(1.0, max(0.0, 1 - (idle - idle_before) / (elapsed * count)))
        busy["trainer"] = min(1.0, (last[2] - first[2]) / elapsed)
        tokens = sum(entry[1] for entry in list(self._recent)[1:])
        return tokens / elapsed, busy, (len(self._recent) - 1) / elapsed

    def _trend(self) -> float:
        rewards = list(self._rewards)
        half = len(rewards) // 2
        if half == 0:
            return 0.0
        return sum(rewards[half:]) / (len(rewards) - half) - sum(rewards[:half]) / half
