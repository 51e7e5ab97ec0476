"""How soon a job is looked at when its pods change. Pure.

While a job starts, each of its pods changes several times, and each look may cost a write. Changes that come
within a fraction of a second are taken together, and within longer the more jobs start at once: a thousand of
them would otherwise spend the API server's time on counts that nobody reads. The change that makes the last
pod ready is not held up, and neither is a job that runs.
"""

from rljob_api.status import Phase

_AT_ONCE = 0.05
"""So that what comes at the same moment, such as all the pods of a node, is one change."""
_SHORTEST, _LONGEST = 0.2, 3.0
"""Bounds of a wait, in seconds: short for a person who looks on."""
_LOOKS_PER_SECOND = 50.0
"""At jobs that start, all together."""


def gather_seconds(phase: Phase | None, all_ready: bool, starting: int) -> float:
    """Seconds from the first change of a pod until its job is looked at. `all_ready`: whether every pod that
    the job is to have is ready; `starting`: how many jobs start."""
    if all_ready or phase not in (None, "Pending", "Starting"):
        return _AT_ONCE
    return min(max(starting / _LOOKS_PER_SECOND, _SHORTEST), _LONGEST)
