"""What would help a job, from what was measured.

Pure rules, one function each; `RULES` is the order in which their advice is shown. Guarantees: advice names a
setting of the RLJob and rests on shares that the report shows; a gain is only ever stated as the bound that
the measured shares imply.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rljob_api import RLJob

IDLE = 0.2
"""Share of a pool's time that is worth acting on."""
SHARE = 0.1
"""Share of overhead that is worth acting on."""
ALIKE = 0.5
"""Share of groups of equal rewards that is worth acting on: that of all samples which teach nothing."""
ALL_ALIKE = 0.98
"""Share of them from which on the reward itself is to be looked at."""

MOST = 0.5
"""Share of responses that the limit cuts off from which on it is no matter of a few long ones."""
_MIXED_GROUPS = 20
"""Groups that have responses of both kinds, with different rewards, from which on these are compared."""
_CLEARLY = 0.8
"""Share of them in which the responses that end by themselves have to earn more."""


@dataclass(frozen=True)
class Evidence:
    """What the rules look at. Shares are of a pool's whole time, 0 to 1."""

    trainer_idle: float | None = None
    trainer_save: float = 0.0
    engine_idle: Mapping[str, float] = field(default_factory=dict)
    """Idle share of each pool of engines."""
    engine_workers: Mapping[str, int] = field(default_factory=dict)
    """Workers that each pool of engines has at the end: pools may be scaled, or lose workers for good. Empty
    where that is not known."""
    engines_idle: float = 0.0
    """Idle share, mean over all engines."""
    engine_sync: float = 0.0
    """Share that weight updates take, mean over all engines."""
    admission_share: float = 0.0
    """Share of the run in which an engine had room and no prompt was admitted."""
    evaluation_share: float = 0.0
    """Share of the run in which training waited for an evaluation."""
    limited_share: float = 0.0
    """Share of responses that ended at the length limit."""
    limited_seconds: float = 0.0
    """Share of all engines' seconds that such responses took."""
    limited_lately: float = 0.0
    """Share of responses that ended at the limit in the newest tenth of the steps."""
    mixed_groups: int = 0
    """Groups in which responses at the limit and others earned differently."""
    ended_better: float = 0.0
    """Share of these groups in which the others earned more."""
    median_seconds: float = 0.0
    """Duration that half of the requests do not exceed."""
    p99_seconds: float = 0.0
    """Duration that 99 % of the requests do not exceed."""
    reward_share: float = 0.0
    """Share of a group's life, from its first request to the queue, that went into its reward."""
    failed_share: float = 0.0
    """Share of samples without a reward."""
    equal_share: float = 0.0
    """Share of the trained groups whose rewards are all equal."""
    collapsed: bool = False
    """Whether hardly any entropy is left of the policy, and the reward has not risen."""
    slow_workers: Sequence[tuple[str, str, float]] = ()
    """(worker, host, factor): whose requests take `factor` times as long as those of its pool."""
    job: RLJob | None = None
    """The job's settings, where its manifest can be read."""


@dataclass(frozen=True)
class Advice:
    """One thing to try."""

    setting: str
    """Path of the field in the RLJob, under `spec`."""
    change: str
    reason: str


def advise(evidence: Evidence) -> list[Advice]:
    """All advice that the evidence supports."""
    return [advice for rule in RULES if (advice := rule(evidence)) is not None]


def equal_rewards(evidence: Evidence) -> Advice | None:
    """Most groups teach nothing, since all their responses have the same reward."""
    if evidence.equal_share < ALIKE or not _compares_in_groups(evidence.job):
        return None
    reason = (
        f"in {_percent(evidence.equal_share)} of the groups all rewards are equal, so that none of their "
        "responses is better than the others, and nothing is learned from them"
    )
    if evidence.collapsed:
        return Advice(
            "training.optimizer.learningRate",
            "lower it and begin anew, or from a checkpoint of before (training.checkpoint.keep); "
            "algorithm.entropyCoefficient holds against it",
            f"the policy has collapsed: its entropy is all but gone, and the reward has not risen; {reason}",
        )
    if evidence.equal_share >= ALL_ALIKE:
        return Advice(
            "training.reward",
            "look at what the model says and what it gets for that (rljob samples DIR, or below). Where all "
            "is right, take harder prompts; where all is wrong, easier ones, or give something for a part of "
            "the way",
            reason,
        )
    return Advice(
        "training.data",
        "take prompts that the model solves now and then (training.data.curriculum has the others "
        "more seldom), or have others generated in their place (training.rollout.filter.zeroVariance)",
        reason,
    )


def _compares_in_groups(job: RLJob | None) -> bool:
    """Whether a group of equal rewards teaches nothing, as far as that is known."""
    if job is None:
        return True
    algorithm = job.spec.training.algorithm
    whitened = algorithm.advantage.reinforce_plus_plus
    return (
        algorithm.distillation is None
        and algorithm.advantage.custom is None
        and (whitened is None or whitened.baseline)
    )


def more_engines(evidence: Evidence) -> Advice | None:
    """The trainer waits for engines that are busy."""
    idle = evidence.trainer_idle
    if idle is None or idle < IDLE or not evidence.engine_idle or evidence.engines_idle >= IDLE:
        return None
    pool = min(evidence.engine_idle, key=lambda name: evidence.engine_idle[name])
    asked = {name: _replicas(evidence.job, name) or 0 for name in evidence.engine_idle}
    workers = evidence.engine_workers.get(pool, asked[pool])
    change = "raise it"
    if evidence.job is not None and evidence.job.spec.accelerator == "cpu":
        change += ", if the machine has cores to spare"
    elif asked[pool] and evidence.engine_workers not in ({}, asked):
        # The shares are means over sizes that differ.
        change = f"raise it from {workers}; how far, a run whose pools had other sizes before does not tell"
    elif workers:
        engines = sum(asked.values())
        # The trainer could take 1 / (1 - idle) times as much: all engines together must make that much more.
        enough = workers + math.ceil(engines / (1 - idle)) - engines
        change = f"raise it from {workers}; about {enough} would keep the trainer fed if each adds as much"
    return Advice(
        f"pools.{_pool_field(pool)}.replicas",
        change,
        f"the trainer is idle {_percent(idle)} of the time while the engines are idle only "
        f"{_percent(evidence.engines_idle)}: generation is what takes long. "
        f"Steps can become at most {1 / (1 - idle):.1f} x as fast this way",
    )


def looser_bound(evidence: Evidence) -> Advice | None:
    """Engines and trainer wait for each other, held by the staleness bound."""
    idle = evidence.engines_idle
    if evidence.trainer_idle is None or idle < IDLE or evidence.trainer_idle < SHARE:
        return None
    # The bound explains less than half of what the engines are idle.
    if evidence.admission_share < idle / 2:
        return None
    bound = evidence.job.spec.training.async_.max_staleness if evidence.job else None
    change = "raise it by 1" if bound is None else f"raise it from {bound:g} to {bound + 1:g}"
    return Advice(
        "training.async.maxStaleness",
        change,
        f"engines are idle {_percent(idle)} and the trainer {_percent(evidence.trainer_idle)} of the time; "
        f"{_percent(evidence.admission_share)} of the run an engine had room and the bound admitted no "
        "prompt. Samples become older in exchange",
    )


def more_trainers(evidence: Evidence) -> Advice | None:
    """Engines wait for a trainer that is busy."""
    idle = evidence.engines_idle
    if evidence.trainer_idle is None or idle < IDLE or evidence.trainer_idle >= SHARE:
        return None
    pool = max(evidence.engine_idle, key=lambda name: evidence.engine_idle[name])
    return Advice(
        "pools.trainer.replicas",
        f"raise it, or lower pools.{_pool_field(pool)}.replicas at no cost in speed",
        f"the trainer is busy {_percent(1 - evidence.trainer_idle)} of the time and the engines wait for it: "
        f"they are idle {_percent(idle)}",
    )


def rarer_updates(evidence: Evidence) -> Advice | None:
    """Weight updates stop the engines for long."""
    if evidence.engine_sync < SHARE:
        return None
    current = evidence.job.spec.training.async_.steps_per_version if evidence.job else None
    change = "double it" if current is None else f"raise it from {current} to {2 * current}"
    return Advice(
        "training.async.stepsPerVersion",
        change,
        f"engines stand still for weight updates {_percent(evidence.engine_sync)} of the time; half as many "
        "updates would give back half of that, with samples from older weights in exchange",
    )


def rarer_evaluations(evidence: Evidence) -> Advice | None:
    """Training waits for evaluations."""
    if evidence.evaluation_share < SHARE:
        return None
    current = evidence.job.spec.training.evaluation if evidence.job else None
    change = "double it" if current is None else f"raise it from {current.every_versions}"
    shared = current is None or current.engines.shared is not None
    instead = "; or have engines set aside for it (training.evaluation.engines)" if shared else ""
    return Advice(
        "training.evaluation.everyVersions",
        f"{change}, and evaluate more prompts at a time for as many responses in all{instead}",
        f"{_percent(evidence.evaluation_share)} of the run training waited for an evaluation, which ends "
        "with its longest response",
    )


def shorter_limit(evidence: Evidence) -> Advice | None:
    """A few responses that run into the limit take much of the engines' time."""
    if longer_limit(evidence) is not None:
        return None
    tail = evidence.p99_seconds / evidence.median_seconds if evidence.median_seconds else 0.0
    # Some responses, which take at least twice their share of the time, in a distribution with a long tail.
    if evidence.limited_share < 0.005 or evidence.limited_seconds < 2 * evidence.limited_share or tail < 3:
        return None
    limit = evidence.job.spec.training.rollout.max_response_tokens if evidence.job else None
    change = "try a lower one" if limit is None else f"try less than {limit}"
    return Advice(
        "training.rollout.maxResponseTokens",
        f"{change}, where the rewards of such responses are low",
        f"{_percent(evidence.limited_share)} of the responses end at the limit and take "
        f"{_percent(evidence.limited_seconds)} of the engines' time; the slowest 1 % of requests take "
        f"{tail:.1f} x the median",
    )


def longer_limit(evidence: Evidence) -> Advice | None:
    """Most responses are cut off at the limit, and earn less for it. Where responses are meant to have that
    length they are not told apart, or are worth no less, and nothing is advised."""
    if evidence.limited_lately < MOST:
        return None
    if evidence.mixed_groups < _MIXED_GROUPS or evidence.ended_better < _CLEARLY:
        return None
    limit = evidence.job.spec.training.rollout.max_response_tokens if evidence.job else None
    return Advice(
        "training.rollout.maxResponseTokens",
        f"raise it{'' if limit is None else f' from {limit}'} where responses break off in the middle (rljob "
        "samples DIR, or below); where the model goes on behind its answer, give less for that: a reward "
        "sees in sample.finished whether a response ended by itself",
        f"{_percent(evidence.limited_lately)} of the newest responses are cut off at the limit; those that "
        f"end by themselves earn more in {_percent(evidence.ended_better)} of the {evidence.mixed_groups:,} "
        "groups that tell them apart",
    )


def more_reward_workers(evidence: Evidence) -> Advice | None:
    """Scoring takes a large part of a group's life."""
    if evidence.reward_share < IDLE:
        return None
    current = evidence.job.spec.training.reward.workers if evidence.job else None
    return Advice(
        "training.reward.workers",
        "raise it" if current is None else f"raise it from {current}",
        f"{_percent(evidence.reward_share)} of a group's life, from its first request to the queue, goes "
        "into scoring it",
    )


def rarer_checkpoints(evidence: Evidence) -> Advice | None:
    """Checkpoints take a large part of the trainer's time."""
    if evidence.trainer_save < SHARE:
        return None
    current = evidence.job.spec.training.checkpoint.every_steps if evidence.job else None
    return Advice(
        "training.checkpoint.everySteps",
        "raise it" if current is None else f"raise it from {current}",
        f"the trainer spends {_percent(evidence.trainer_save)} of its time on checkpoints",
    )


def failing_rewards(evidence: Evidence) -> Advice | None:
    """Samples are lost because their reward fails."""
    if evidence.failed_share < 0.01:
        return None
    seconds = evidence.job.spec.training.reward.timeout_seconds if evidence.job else None
    limit = "" if seconds is None else f" (each may take {seconds:g} s: training.reward.timeoutSeconds)"
    return Advice(
        "training.reward.function",
        "look at the warnings in the log for why it fails",
        f"{_percent(evidence.failed_share)} of the samples have no reward, for the function raised or took "
        f"too long{limit}; they were generated and not trained",
    )


def slow_worker(evidence: Evidence) -> Advice | None:
    """One engine is slower than the others of its pool."""
    if not evidence.slow_workers:
        return None
    worker, host, factor = max(evidence.slow_workers, key=lambda entry: entry[2])
    others = len(evidence.slow_workers) - 1
    more = f" ({others} more in the table of workers)" if others else ""
    return Advice(
        "pools",
        f"look at {worker}{f' on {host}' if host else ''}{more}",
        f"its requests take {factor:.1f} x as long as those of the other engines of its pool",
    )


RULES: tuple[Callable[[Evidence], Advice | None], ...] = (
    equal_rewards,
    more_engines,
    looser_bound,
    more_trainers,
    rarer_updates,
    rarer_evaluations,
    shorter_limit,
    longer_limit,
    more_reward_workers,
    rarer_checkpoints,
    failing_rewards,
    slow_worker,
)


def _pool_field(pool: str) -> str:
    return "heavyRollout" if pool.startswith("heavy") else "fastRollout"


def _replicas(job: RLJob | None, pool: str) -> int | None:
    if job is None:
        return None
    pools = job.spec.pools
    return pools.heavy_rollout.replicas if pool.startswith("heavy") else pools.fast_rollout.replicas


def _percent(share: float) -> str:
    # Two digits: from 9.5 % on, which would be rounded to 10 %, without a decimal.
    return f"{share * 100:.0f} %" if share >= 0.095 or share == 0 else f"{share * 100:.1f} %"
