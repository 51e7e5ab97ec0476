"""How busy the pools are, as `status.training.load` tells it, and when a change of that is worth a write.

Pure.
"""

from typing import Literal

from rljob_api.status import LoadStatus, PoolLoad
from rljob_runtime.view.progress import Progress

_NAMES: dict[str, Literal["trainer", "fastRollout", "heavyRollout"]] = {
    "trainer": "trainer",
    "fast": "fastRollout",
    "heavy": "heavyRollout",
}
"""The pools in the order of the summary: as the view calls them, and as the RLJob does."""
_NOTICEABLE_PERCENT = 5
"""Shares that differ by less are the same to a person; they vary as much from minute to minute."""
_NOTICEABLE_PART = 0.25
"""Numbers of requests that differ by less than this part of the larger one are the same to a person."""


def load_of(progress: Progress) -> LoadStatus | None:
    """What a job's status tells of its pools; None where nothing has been measured yet."""
    if not progress.busy:
        return None
    pools = [
        PoolLoad(name=name, busy_percent=_percent(progress, pool), running=progress.running.get(pool))
        for pool, name in _NAMES.items()
        if pool in progress.busy or pool in progress.running
    ]
    shares = (_percent(progress, pool) for pool in _NAMES)
    return LoadStatus(
        window_seconds=round(progress.busy_seconds),
        pools=pools,
        waiting=progress.waiting,
        summary="/".join("-" if share is None else str(share) for share in shares),
    )


def worth_telling(told: LoadStatus | None, found: LoadStatus | None) -> bool:
    """Whether `found` differs from what was told by so much that a person would want to know, although
    nothing else is to be written."""
    if told is None or found is None:
        return told is not found
    before, after = ({pool.name: pool for pool in load.pools} for load in (told, found))
    if before.keys() != after.keys() or _counts_differ(told.waiting, found.waiting):
        return True
    return any(
        _shares_differ(before[name].busy_percent, after[name].busy_percent)
        or _counts_differ(before[name].running or 0, after[name].running or 0)
        for name in before
    )


def _percent(progress: Progress, pool: str) -> int | None:
    share = progress.busy.get(pool)
    return None if share is None else round(100 * share)


def _shares_differ(told: int | None, found: int | None) -> bool:
    if told is None or found is None:
        return told is not found
    return abs(told - found) >= _NOTICEABLE_PERCENT


def _counts_differ(told: int, found: int) -> bool:
    return told != found and abs(told - found) >= _NOTICEABLE_PART * max(told, found)
