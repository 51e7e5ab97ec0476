"""An RLJob in lines for people. Pure.

Guarantees: a job in any state, also one without a status or with one that its own code wrote, gives lines; a
terminal prints them and does nothing else. Nothing here reads a clock.
"""

from datetime import datetime

from rljob_api.status import Condition, LoadStatus, Status, TrainingStatus
from rljob_operator.plan.observed import GROUPS
from rljob_operator.plan.printable import printable
from rljob_operator.plan.times import moment

_BAR = 30


def headline(namespace: str, name: str, status: Status) -> str:
    """What the job is and where it stands, in one line."""
    parts = [f"{namespace}/{name}", status.phase or "Pending"]
    if status.attempt:
        parts.append(f"attempt {status.attempt}")
    parts += [f"{GROUPS[pool.name]} {pool.summary}" for pool in status.pools]
    return _line("   ".join(parts))


def _line(text: str) -> str:
    return " ".join(printable(text).split("\n"))


def training(progress: TrainingStatus) -> list[str]:
    """How the training goes."""
    if not (progress.progress or progress.total_steps):
        return ["the driver has begun, and has not said at which step"]
    # There may be no step to train.
    share = progress.step / max(1, progress.total_steps)
    done = round(_BAR * min(max(share, 0.0), 1.0))
    first = [f"step {progress.step}/{progress.total_steps}", "█" * done + "░" * (_BAR - done)]
    if progress.reward is not None:
        first.append(f"reward {progress.reward:.3f}")
    second = [f"version {progress.weight_version}"]
    if progress.staleness is not None:
        second.append(f"staleness {progress.staleness.mean:.1f} mean, {progress.staleness.max} max")
        if progress.staleness.masked is not None:
            second.append(f"masked {progress.staleness.masked * 100:.0f} %")
    second += [f"queue {progress.queue_depth}", f"tokens/s {progress.tokens_per_second:,.0f}"]
    if progress.checkpoint is not None:
        second.append(f"checkpoint {progress.checkpoint.step}")
    if progress.evaluation is not None:
        second.append(
            f"evaluation {_line(progress.evaluation.summary)} after step {progress.evaluation.step}"
        )
    lines = ["   ".join(first), "   ".join(second)]
    return lines if progress.load is None else [*lines, busy(progress.load)]


def busy(load: LoadStatus) -> str:
    """How busy the pools are, in one line."""
    parts = []
    for pool in load.pools:
        share = "–" if pool.busy_percent is None else f"{pool.busy_percent} %"
        running = "" if pool.running is None else f", {pool.running} running"
        parts.append(f"{GROUPS[pool.name]} {share}{running}")
    return f"busy in {load.window_seconds} s: " + "   ".join([*parts, f"{load.waiting} waiting"])


def condition(entry: Condition, now: datetime) -> str:
    """One condition and since when it holds."""
    try:
        since = age((now - moment(entry.last_transition_time)).total_seconds())
    # Not every status is the operator's writing.
    except (ValueError, OverflowError):
        since = "?"
    return _line(f"{entry.type:<10} {entry.status:<8} {since:>5}  {entry.reason}: {entry.message}")


def whole(namespace: str, name: str, status: Status, now: datetime) -> list[str]:
    """Everything: `kubectl rljob status`."""
    lines = [headline(namespace, name, status)]
    if status.phase is None:
        # An operator says something of every job that it sees, if only that it may not run.
        lines.append(
            f"No operator has taken notice of it yet: does one run that watches namespace {namespace}?"
        )
    if status.training is not None:
        lines += training(status.training)
    return [*lines, "", *(condition(entry, now) for entry in status.conditions)]


def age(seconds: float) -> str:
    """Like kubectl: 42s, 17m, 3h, 12d."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{int(seconds // length)}{unit}"
    return f"{max(0, int(seconds))}s"
