"""Whether a driver that should report has fallen silent.

Guarantees: only a driver that said how often it reports can be silent, and only in an attempt that runs; what
it costs is a condition and an Event: a driver that hangs is ended by its container's liveness probe
(`render/alive.py`), and one that merely does not reach the API server trains on.
"""

from dataclasses import replace
from datetime import datetime

from rljob_api.status import Status
from rljob_operator.plan.attempt import Attempt
from rljob_operator.plan.conditions import Row
from rljob_operator.plan.times import after, stamp

REASON = "DriverSilent"
"""Reason of Degraded, and of an Event."""
_MISSED = 3
"""So many reports are to be missing: one may be late, and clocks of nodes differ by some seconds."""


def due(attempt: Attempt, status: Status) -> datetime | None:
    """When the driver counts as silent; None where it has not said how often it reports."""
    seconds = status.training.report_seconds if status.training is not None else None
    if attempt.reported is None or seconds is None:
        return None
    return after(stamp(attempt.reported), _MISSED * seconds)


def noted(row: Row, attempt: Attempt, status: Status, now: datetime) -> Row:
    """Degraded with a word on the driver, where that is silent."""
    silent = due(attempt, status)
    if silent is None or now < silent or attempt.reported is None or status.training is None:
        return row
    text = (
        f"The driver has told nothing since {attempt.reported:%H:%M:%S UTC}, and should every "
        f"{status.training.report_seconds} s: it hangs, or does not reach the API server."
    )
    if row.status == "True":
        return replace(row, message=f"{row.message} {text}")
    return Row("Degraded", "True", REASON, text)
