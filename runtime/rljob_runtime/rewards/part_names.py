"""Which parts and metrics a job's rewards have, and which of them a response lacks. Pure.

Guarantees: no more than `MOST_NAMES` are ever known, so that what is recorded stays bounded; a response that
lacks a part or metric that others had says so, and so does one with a further one that is too many, which is
left out.
"""

from collections.abc import Iterable

import msgspec

from rljob_runtime.rewards import Score
from rljob_runtime.rewards.outcome import MOST_NAMES

NOT_RETURNED = "not returned, as it was for other responses"


class PartNames:
    """Remembers every name that a response had."""

    def __init__(self) -> None:
        self._known: set[tuple[str, str]] = set()
        """Kind and name."""

    def admit(self, score: Score) -> Score:
        """The score with the parts and metrics that are kept, and with complaints about the others."""
        if score.failure is not None:
            return score
        # Nearly always: as all the others. Made of keys alone, it costs less than looking at each.
        named = _named(score)
        if named == self._known:
            return score
        complaints = dict(score.complaints)
        too_many = set()
        for key in sorted(named - self._known):
            if len(self._known) < MOST_NAMES:
                self._known.add(key)
            else:
                too_many.add(key)
                complaints[".".join(key)] = f"not kept, for there are {MOST_NAMES} others already"
        for key in sorted(self._known - named):
            # One that was returned and is no usable number has its complaint.
            complaints.setdefault(".".join(key), NOT_RETURNED)
        return msgspec.structs.replace(
            score,
            parts={name: value for name, value in score.parts.items() if ("parts", name) not in too_many},
            metrics={
                name: value for name, value in score.metrics.items() if ("metrics", name) not in too_many
            },
            complaints=complaints,
        )


def _named(score: Score) -> set[tuple[str, str]]:
    return {*_keys("parts", score.parts), *_keys("metrics", score.metrics)}


def _keys(kind: str, names: Iterable[str]) -> Iterable[tuple[str, str]]:
    return ((kind, name) for name in names)
