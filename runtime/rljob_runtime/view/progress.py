"""What a running job shows of itself, as plain values, and how each is written. Both views, on a terminal
(`live.py`) and as log lines (`plain.py`), write these parts and only lay them out differently. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Header:
    """What stays the same while the job runs."""

    name: str
    accelerator: str
    pools: dict[str, int]
    """Workers by pool."""
    engine: str
    """Name and version, "vllm 0.32.0"."""
    model: str
    """Name and size, "tiny Qwen3 (0.12 M)"."""
    max_staleness: float
    """Bound, in weight versions."""


@dataclass(frozen=True)
class Progress:
    """Where the job stands."""

    header: Header
    step: int = 0
    """Steps done."""
    total_steps: int | None = None
    reward: float | None = None
    """Mean reward of the newest step."""
    reward_trend: float = 0.0
    """Recent mean reward less the one before; its sign is the arrow."""
    loss: float | None = None
    kl: float | None = None
    """Divergence from the initial model; None where none is computed."""
    teacher_kl: float | None = None
    """Divergence from the teacher; None without one."""
    version: int = 0
    """Newest weight version."""
    staleness_mean: float | None = None
    """Age of the newest step's samples, in weight versions; None before the first step."""
    staleness_max: int | None = None
    masked_share: float | None = None
    """Share of the newest step's response tokens that were too old to be trained, 0 to 1; None where steps
    wait, so that there are none."""
    queue_depth: int = 0
    """Samples that wait."""
    queue_capacity: int | None = None
    tokens_per_second: float = 0.0
    busy: dict[str, float] = field(default_factory=dict)
    """Busy share of each pool's time and of the trainer's, 0 to 1; without pools that had no engine."""
    busy_seconds: float = 0.0
    """The time that the shares are of."""
    running: dict[str, int] = field(default_factory=dict)
    """Responses that the engines of each pool generate."""
    waiting: int = 0
    """Responses that are to be generated and that no engine has begun."""
    seconds_left: float | None = None
    """None as long as the time of a step is not known."""
    activity: str | None = None
    """What goes on before the first step, or what the job waits for."""


@dataclass(frozen=True)
class RecentReward:
    """The reward of the newest steps."""

    mean: float | None
    """Of the steps that have one; None where none has."""
    steps: int = 1
    """How many have one."""
    of_steps: int = 1
    """How many steps these are."""


@dataclass(frozen=True)
class Summary:
    """How the job ended."""

    step: int
    """Steps done."""
    seconds: float
    """How long it ran."""
    reward: RecentReward | None = None
    outcome: str = "done"
    """"done", "stopped" or "failed"."""
    lost: str | None = None
    """What was interrupted and generated again, or was not trained, in sentences."""
    report: str | None = None
    checkpoint: str | None = None
    model: str | None = None
    hint: str | None = None
    """How to go on."""


_ROUNDING = 1e-15
"""What rounding leaves of a mean that is 0, of numbers around 1."""


def count(value: float) -> str:
    """A whole number with thousands separated: 5,940."""
    return f"{value:,.0f}"


def decimal(value: float | None) -> str:
    """A metric to three decimals, as a power of ten where those would be 0.000; "–" where there is none."""
    if value is None:
        return "–"
    if abs(value) < _ROUNDING:
        return "0.000"
    if abs(value) < 0.0005:
        return f"{value:.0e}"
    return f"{value:.3f}" if abs(value) < 1000 else f"{value:.4g}"


def duration(seconds: float | None) -> str:
    """Seconds as 1:24, 2:05:10 or 3 d 4 h; "–" where unknown."""
    if seconds is None:
        return "–"
    whole = max(0, round(seconds))
    if whole >= 86400:
        return f"{whole // 86400} d {whole % 86400 // 3600} h"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}:{rest:02d}"
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def arrow(trend: float) -> str:
    """▲ for rising, ▼ for falling, nothing for a change that no shown digit would tell."""
    return "" if abs(trend) < 0.0005 else "▲" if trend > 0 else "▼"


def pack(parts: Sequence[str], gap: str, width: int) -> list[str]:
    """Parts in lines of at most `width` columns, with `gap` between them. No part is broken: one that is
    wider has a line of its own."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + len(gap) + len(part) <= width:
            lines[-1] += gap + part
        else:
            lines.append(part)
    return lines


def headline(header: Header) -> list[str]:
    """The parts of the header, each to be kept in one piece."""
    pools = " · ".join(f"{pool} {workers}" for pool, workers in header.pools.items() if workers)
    unit = "version" if header.max_staleness == 1 else "versions"
    return [
        header.name,
        f"accelerator {header.accelerator}",
        pools,
        f"engine {header.engine}",
        f"model {header.model}",
        f"bound {header.max_staleness:g} {unit}",
    ]


def steps_done(progress: Progress) -> str:
    """128/320."""
    return f"{progress.step}/{progress.total_steps}" if progress.total_steps else str(progress.step)


def learning(progress: Progress) -> list[str]:
    """What the newest step achieved."""
    reward = " ".join(filter(None, ["reward", decimal(progress.reward), arrow(progress.reward_trend)]))
    parts = [reward, f"loss {decimal(progress.loss)}"]
    if progress.kl is not None:
        parts.append(f"kl {decimal(progress.kl)}")
    if progress.teacher_kl is not None:
        parts.append(f"teacher kl {decimal(progress.teacher_kl)}")
    return [*parts, f"version {progress.version}"]


def flow(progress: Progress) -> list[str]:
    """How samples move, and who is busy."""
    parts = []
    if progress.staleness_mean is not None:
        parts.append(f"staleness {progress.staleness_mean:.1f} mean, {progress.staleness_max} max")
    if progress.masked_share is not None:
        parts.append(f"masked {progress.masked_share * 100:.0f} %")
    capacity = f"/{progress.queue_capacity}" if progress.queue_capacity is not None else ""
    parts.append(f"queue {progress.queue_depth}{capacity}")
    parts.append(f"tokens/s {count(progress.tokens_per_second)}")
    first = True
    for pool, share in progress.busy.items():
        parts.append(f"{pool} {share * 100:.0f} %{' busy' if first else ''}")
        first = False
    if progress.running:
        parts.append(f"requests {sum(progress.running.values())} running, {progress.waiting} waiting")
    if progress.seconds_left is not None:
        parts.append(f"left {duration(progress.seconds_left)}")
    return parts


def ending(summary: Summary) -> list[str]:
    """The sentences of the end."""
    sentences = [f"{summary.outcome}: {summary.step} {'step' if summary.step == 1 else 'steps'}"]
    if summary.reward is not None:
        sentences[0] += f", {_recent(summary.reward)}"
    sentences[0] += f", {summary.seconds:.0f} s."
    if summary.lost is not None:
        sentences.append(summary.lost)
    # Each a sentence of its own: paths are long, and no part is broken.
    files = (("Report", summary.report), ("Checkpoint", summary.checkpoint), ("Model", summary.model))
    for name, value in files:
        if value is not None:
            sentences.append(f"{name}: {value}")
    if summary.hint is not None:
        sentences.append(summary.hint)
    return sentences


def _recent(reward: RecentReward) -> str:
    """The newest steps' reward, and which steps' it is."""
    if reward.mean is None:
        return "no reward" if reward.of_steps == 1 else f"no reward in the last {reward.of_steps} steps"
    told = f"reward {decimal(reward.mean)}"
    if reward.steps < reward.of_steps:
        which = f"{'mean of ' if reward.steps > 1 else ''}{reward.steps} of the last {reward.of_steps} steps"
        return f"{told} ({which}; the others have none)"
    return told if reward.steps == 1 else f"{told} (mean of the last {reward.steps} steps)"
