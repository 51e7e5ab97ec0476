"""What one policy file hands to the next: the status so far, the actions, and when to decide again."""

from dataclasses import dataclass
from datetime import datetime

from rljob_api.status import Status
from rljob_operator.plan.plan import Action


@dataclass(frozen=True, slots=True)
class Step:
    """A part of a plan."""

    status: Status
    actions: tuple[Action, ...] = ()
    wakes: tuple[datetime | None, ...] = ()
    """Times at which time alone changes the plan; None stands for never."""
