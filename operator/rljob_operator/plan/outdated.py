"""Whether an attempt was begun with the spec as it is now.

Where a user suspends, changes and resumes a job within moments, the operator may see only the last state.
The attempt that runs then has the old spec.

Guarantees: only fields that the API server holds fixed while a job is not suspended are compared, as the user
wrote them; all others act on what runs, or are for the next attempt, and so is another default image of the
operator. What an operator of another release wrote is not compared, since fields and defaults of its API may
be others: an upgrade never looks like a change by the user. An attempt whose driver runs is not ended."""

import json
from datetime import datetime
from functools import cache, lru_cache
from hashlib import sha256
from typing import Any

from rljob_api.crd import object_schema
from rljob_api.job import Spec
from rljob_api.status import Status
from rljob_operator.plan.attempt import Attempt
from rljob_operator.plan.conditions import Row, holds
from rljob_operator.plan.failure import Ending, Kind

REASON = "SpecOutdated"
FIXED = tuple(
    change.field
    for change in Spec.transitions
    if change.field.rpartition(".")[2] not in ("managedBy", "minReplicas", "maxReplicas")
)
"""Dotted names of what is compared. The bounds of a pool's size are for the API server alone."""
_FORM = "as written"
"""How the digest is taken; another word wherever that changes. Some releases take it without one, and of the
spec with the operator's default image."""


class _Same:
    """A spec as a key of what is made of it: equal to itself alone. It is immutable, and has no hash."""

    __slots__ = ("spec",)

    def __init__(self, spec: Spec) -> None:
        self.spec = spec

    def __hash__(self) -> int:
        return id(self.spec)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.spec is self.spec


def mark(spec: Spec) -> str:
    """What the status keeps of the spec that an attempt is begun with."""
    return _mark(_Same(spec))


# A job is looked at again and again, and writing out its spec takes longer than a decision.
@lru_cache(maxsize=16)
def _mark(key: _Same) -> str:
    dumped = key.spec.model_dump(mode="json", by_alias=True)
    return f"{_release()}.{_digest({field: _at(dumped, field) for field in FIXED})}"


def outdated(status: Status, spec: Spec) -> bool:
    """Whether the newest attempt was begun with another spec, as far as the status can tell."""
    old = status.spec_digest
    # A digest of another release says nothing about this one's fields.
    return old is not None and old.partition(".")[0] == _release() and old != mark(spec)


def ending(status: Status, attempt: Attempt, now: datetime) -> Ending | None:
    """The end of an outdated attempt whose driver does not run, so that nothing is lost; None where it runs.

    A suspension, had the operator seen it, would have ended such an attempt at once, too.
    """
    # What has been trained since the last checkpoint would be lost.
    if attempt.driver_runs(now) or holds(status, "Running"):
        return None
    text = f"The spec was changed before the driver of attempt {attempt.number} had started."
    return Ending(Kind.DISRUPTED, REASON, text)


def accepted(attempt: Attempt) -> Row:
    """The condition of a job whose spec is in force only from the next attempt on."""
    text = (
        f"The spec is valid. Attempt {attempt.number} goes on with an earlier one: set spec.suspend to true "
        "until the phase is Suspended, for the change to take effect."
    )
    return Row("Accepted", "True", REASON, text)


def _at(dumped: Any, path: str) -> Any:
    for part in path.split("."):
        dumped = dumped[part]
    return dumped


@cache
def _release() -> str:
    """Tells this API's fields and defaults, and how the digest is taken, from those of other releases."""
    return _digest([_FORM, object_schema(Spec)])


def _digest(value: Any) -> str:
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
