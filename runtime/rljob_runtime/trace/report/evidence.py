"""From an analysis to the evidence that advice rests on; pure."""

import statistics

from rljob_api import RLJob
from rljob_runtime.trace.analyse.analysis import Analysis
from rljob_runtime.trace.analyse.requests import RequestBook
from rljob_runtime.trace.analyse.usage import PoolUse
from rljob_runtime.trace.report.advice import Evidence

SLOW_FACTOR = 1.5
"""How many times as long as in its pool a worker's requests take, for it to count as slow."""
_COLLAPSED = 0.1
"""Share of a policy's first entropy below which it says one thing alone."""
_ENOUGH_REQUESTS = 50
"""Requests of a worker from which on its mean is compared: lengths differ, and a few say little."""


def evidence_of(analysis: Analysis, job: RLJob | None) -> Evidence:
    """What the rules of `advice` need."""
    trainers, engines = analysis.with_role("trainer"), analysis.with_role("engine")
    requests = analysis.requests
    cut_off = analysis.rewards.cut_off
    count = max(requests.seconds.count, 1)
    engine_seconds = sum(requests.seconds_by_finish.values())
    engine_time = sum(pool.seconds for pool in engines)
    samples = sum(_number(row.get("samples")) for row in analysis.metrics.rows)
    failed = sum(_number(row.get("failed")) for row in analysis.metrics.rows)
    equal = [
        _number(share) for row in analysis.metrics.rows if (share := row.get("equal_groups")) is not None
    ]
    # Weighted by the time that their workers were there: pools differ in size, and change it.
    sync = sum(pool.overall["sync"] * pool.seconds for pool in engines)
    idle = sum(pool.overall["idle"] * pool.seconds for pool in engines)
    return Evidence(
        trainer_idle=trainers[0].overall["idle"] if trainers else None,
        trainer_save=trainers[0].overall["save"] if trainers else 0.0,
        engine_idle={pool.pool: pool.overall["idle"] for pool in engines},
        engine_workers={pool.pool: pool.at_end for pool in engines},
        engines_idle=idle / engine_time if engine_time else 0.0,
        engine_sync=sync / engine_time if engine_time else 0.0,
        admission_share=analysis.event_share("admission_wait"),
        evaluation_share=analysis.event_share("evaluation_wait"),
        limited_share=requests.finishes["length"] / count,
        limited_seconds=requests.seconds_by_finish["length"] / max(engine_seconds, 1e-9),
        limited_lately=lately[1] if (lately := _ends(analysis, "cut_off")) is not None else 0.0,
        mixed_groups=cut_off.groups,
        ended_better=cut_off.better / max(1, cut_off.groups),
        median_seconds=requests.seconds.quantile(0.5),
        p99_seconds=requests.seconds.quantile(0.99),
        reward_share=_reward_share(analysis),
        failed_share=failed / samples if samples else 0.0,
        equal_share=statistics.fmean(equal) if equal else 0.0,
        collapsed=_collapsed(analysis),
        slow_workers=[entry for pool in engines for entry in _slow_workers(pool, requests)],
        job=job,
    )


def _collapsed(analysis: Analysis) -> bool:
    """Whether hardly any entropy is left and the reward has not risen: a policy that has solved its task is
    sure of its answers, too."""
    entropy, reward = _ends(analysis, "entropy"), _ends(analysis, "reward_mean")
    return (
        entropy is not None
        and reward is not None
        and entropy[1] < _COLLAPSED * entropy[0]
        and reward[1] <= reward[0]
    )


def _ends(analysis: Analysis, name: str) -> tuple[float, float] | None:
    """A metric's first value, and the mean of the newest tenth of them; None without any."""
    found = [_number(value) for row in analysis.metrics.rows if (value := row.get(name)) is not None]
    return (found[0], statistics.fmean(found[-max(1, len(found) // 10) :])) if found else None


def _reward_share(analysis: Analysis) -> float:
    """Share of a group's life, from its first request to the queue, that goes into its reward. A group takes
    as long as its slowest response; the mean request, which is shorter, stands in for that, so that the share
    is an upper bound."""
    stages = {
        name: use.seconds.mean
        for (_, name), use in analysis.event_uses.items()
        if name in ("reward", "group_assembly", "put")
    }
    life = analysis.requests.seconds.mean + sum(stages.values())
    return stages.get("reward", 0.0) / life if life else 0.0


def _slow_workers(pool: PoolUse, requests: RequestBook) -> list[tuple[str, str, float]]:
    means = {
        worker.worker: requests.by_worker[worker.worker].mean
        for worker in pool.workers
        if worker.worker in requests.by_worker and requests.by_worker[worker.worker].count >= _ENOUGH_REQUESTS
    }
    found = []
    for worker in pool.workers:
        # Without its own: in a pool of two the median with it would hide half of the difference.
        others = [mean for name, mean in means.items() if name != worker.worker]
        if worker.worker in means and others:
            factor = means[worker.worker] / max(statistics.median(others), 1e-9)
            if factor >= SLOW_FACTOR:
                found.append((worker.worker, worker.host, factor))
    return found


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0
