"""Which parts and metrics a job's rewards have, and which of them a response lacks. Pure.

Guarantees: no more than `MOST_NAMES` are ever known, so that what is recorded stays bounded; a response that
lacks a part or metric that others had says so, and so does one with a further one that is too many, which is
left out.
"""

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from rljob_runtime.rewards import Score
from rljob_runtime.rewards.outcome import MOST_NAMES

V = TypeVar("V")

NOT_RETURNED = "not returned, as it was for other responses"


class PartNames:
    """Remembers every name that a response had."""

    def __init__(self) -> None:
        self._parts: set[str] = set()
        self._metrics: set[str] = set()

    def admit(self, score: Score) -> Score:
        """The score with the parts and metrics that are kept, and with complaints about the others."""
        if score.failure is not None:
            return score
        if score.parts.keys() == self._parts and score.metrics.keys() == self._metrics:
            return score
        complaints = dict(score.complaints)
        parts = self._kept("parts", score.parts, self._parts, complaints)
        metrics = self._kept("metrics", score.metrics, self._metrics, complaints)
        return msgspec.structs.replace(score, parts=parts, metrics=metrics, complaints=complaints)

    def _kept(
        self, kind: str, values: Mapping[str, V], known: set[str], complaints: dict[str, str]
    ) -> dict[str, V]:
        """The values whose names are kept; adds to the complaints."""
        for name in sorted(values.keys() - known):
            if len(self._parts) + len(self._metrics) < MOST_NAMES:
                known.add(name)
            else:
                complaints[f"{kind}.{name}"] = f"not kept, for there are {MOST_NAMES} others already"
        for name in sorted(known - values.keys()):
            # One that was returned and is no usable number has its complaint.
            complaints.setdefault(f"{kind}.{name}", NOT_RETURNED)
        return {name: value for name, value in values.items() if name in known}
