"""Files that other processes append to, kept short, as they lie on a disk that others share: what reward
functions print, and the logs of engines and ranks.

Guarantees: a file holds the newest of what was printed, at most twice the limit and what is printed between
two looks, and after a look at the end at most twice the limit; nobody who prints waits for that, or fails.
"""

import asyncio
import os
from collections.abc import Callable, Iterable
from pathlib import Path

LIMIT_BYTES = 16 << 20
LOOK_SECONDS = 1.0
DROPPED = b"(what was printed before this was dropped)\n"


async def keep_short(
    logs: Callable[[], Iterable[Path]], limit: int = LIMIT_BYTES, every: float = LOOK_SECONDS
) -> None:
    """Until cancelled, have each of these files, which others append to, hold about `limit` bytes. Raises
    `OSError`."""
    while True:
        # Nothing tells of what another process has appended.
        await asyncio.sleep(every)
        await asyncio.to_thread(shorten_all, logs, limit)


def shorten_all(logs: Callable[[], Iterable[Path]], limit: int = LIMIT_BYTES) -> None:
    """`shorten` each; also once more when those who append have ended. Raises `OSError`."""
    for log in list(logs()):
        shorten(log, limit)


def shorten(log: Path, limit: int) -> None:
    """Drop all but the last `limit` bytes, from the begin of a line on, of a file that has twice as many.
    What is appended at this very moment may be lost. Raises `OSError`."""
    try:
        size = log.stat().st_size
    except FileNotFoundError:  # nothing was printed yet, or somebody has taken it away
        return
    if size <= 2 * limit:
        return
    with log.open("rb") as file:
        file.seek(-limit, os.SEEK_END)
        newest = file.read(limit)
    # Emptied and not replaced: those who print have it open. They append, and go on at its new end.
    os.truncate(log, 0)
    with log.open("ab") as file:
        file.write(DROPPED + newest[newest.find(b"\n") + 1 :])
