"""One engine's requests in a step, packed into rows.

Pure. Guarantees: stays in one row do not overlap; at most `STAYS` of them, in at most `ROWS` rows: of more
the longest are kept.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from rljob_runtime.trace.analyse.requests import Request

ROWS = 32
"""Rows: what fits a screen."""
STAYS = 240


@dataclass(frozen=True)
class Stay:
    """A stay of a request on the engine."""

    name: str
    """Of the request."""
    start: float
    """Seconds since the epoch."""
    end: float
    tokens: int
    finish: str


@dataclass(frozen=True)
class WorkerStays:
    """An engine's stays, of the responses that ended in a step."""

    worker: str
    rows: list[list[Stay]]
    left_out: int
    """Stays that are not among them."""


def last_worker_stays(requests: Sequence[Request]) -> WorkerStays | None:
    """The stays on the engine on which the last of these responses ended; None without responses."""
    if not requests:
        return None
    worker = max((request.attempts[-1] for request in requests), key=lambda attempt: attempt.end).worker
    stays = [
        Stay(request.name, attempt.start, attempt.end, attempt.tokens, attempt.finish)
        for request in requests
        for attempt in request.attempts
        if attempt.worker == worker
    ]
    rows = pack(heapq.nlargest(STAYS, stays, key=lambda stay: stay.end - stay.start))
    kept = rows[:ROWS]
    return WorkerStays(worker, kept, len(stays) - sum(map(len, kept)))


def pack(stays: Sequence[Stay]) -> list[list[Stay]]:
    """Each stay, by its start, in the row that has been free for longest, or in a new one."""
    rows: list[list[Stay]] = []
    free: list[tuple[float, int]] = []
    for stay in sorted(stays, key=lambda stay: (stay.start, stay.end)):
        if free and free[0][0] <= stay.start:
            _, number = heapq.heappop(free)
            rows[number].append(stay)
        else:
            number = len(rows)
            rows.append([stay])
        heapq.heappush(free, (stay.end, number))
    return rows
