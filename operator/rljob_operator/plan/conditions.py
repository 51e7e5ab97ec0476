"""The conditions of an RLJob, and the phase that sums them up.

Guarantees: `lastTransitionTime` changes only when `status` flips; a condition that says the same is the same
object; a job that is Complete or Failed stays so, and is never both.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, get_args

from rljob_api.status import Condition, ConditionType, Phase, Status
from rljob_operator.plan.printable import printable
from rljob_operator.plan.times import stamp

MESSAGE_LIMIT = 1024
"""Characters of a message: the limit of a condition in the CRD."""
ORDER: tuple[ConditionType, ...] = get_args(ConditionType)
"""Order of the conditions in the status."""

RESTART_REASONS = ("HeadLost", "AttemptFailed", "SpecOutdated")
"""Reasons of Running between an attempt that ended and the next one."""


@dataclass(frozen=True, slots=True)
class Row:
    """What a condition is to say."""

    type: ConditionType
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str = ""


def clip(text: str) -> str:
    """The text in one paragraph that a terminal may print, cut at the end to the length that a condition or
    an event may have."""
    text = " ".join(printable(text).split())
    return text if len(text) <= MESSAGE_LIMIT else text[: MESSAGE_LIMIT - 1] + "…"


def tail(text: str, length: int = 600) -> str:
    """The end of a container's last words in one paragraph that a terminal may print: what went wrong is said
    last."""
    text = " ".join(printable(text).split())
    return text if len(text) <= length else "…" + text[len(text) - length + 1 :]


def condition(status: Status, kind: ConditionType) -> Condition | None:
    """The condition of that type, if the status has it."""
    return next((entry for entry in status.conditions if entry.type == kind), None)


def holds(status: Status, kind: ConditionType) -> bool:
    """Whether the condition is True."""
    entry = condition(status, kind)
    return entry is not None and entry.status == "True"


def reason(status: Status, kind: ConditionType) -> str | None:
    """The condition's reason; None where the status lacks the condition."""
    entry = condition(status, kind)
    return None if entry is None else entry.reason


def as_before(status: Status, kind: ConditionType) -> tuple[Row, ...]:
    """What the condition says already, to be said of this generation, too; empty where there is none."""
    old = condition(status, kind)
    return () if old is None else (Row(kind, old.status, old.reason, old.message),)


def finished(status: Status) -> bool:
    """Whether the job has come to its end."""
    return holds(status, "Complete") or holds(status, "Failed")


def put(status: Status, rows: tuple[Row, ...], generation: int, now: datetime) -> Status:
    """The status with these conditions brought up to date and all others as they are."""
    entries = {entry.type: entry for entry in status.conditions}
    for row in rows:
        old = entries.get(row.type)
        flips = old is None or old.status != row.status
        entries[row.type] = Condition(
            type=row.type,
            status=row.status,
            reason=row.reason,
            message=clip(row.message),
            # Kubernetes' convention: a new reason or message alone is no transition.
            last_transition_time=stamp(now) if old is None or flips else old.last_transition_time,
            observed_generation=generation,
        )
    # In one order: a status that says the same is equal, and not written.
    ordered = [entries[kind] for kind in ORDER if kind in entries]
    return status.model_copy(update={"conditions": ordered})


def phase(status: Status) -> Phase:
    """One word for the conditions."""
    if holds(status, "Complete"):
        return "Complete"
    if holds(status, "Failed"):
        return "Failed"
    if holds(status, "Suspended"):
        return "Suspended"
    # Before Running, which is True while the runtime writes its checkpoint.
    if reason(status, "Suspended") in ("Suspending", "SuspendTimedOut"):
        return "Suspending"
    if holds(status, "Running"):
        return "Running"
    running = reason(status, "Running")
    if running in RESTART_REASONS:
        return "Restarting"
    return "Starting" if running == "Starting" else "Pending"
