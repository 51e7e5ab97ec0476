"""A file that is young for as long as the driver's event loop turns.

Guarantees: the liveness probe of the driver's container, which looks at the file's age, depends neither on
the API server nor on how long steps take; where there is no file, as before the job begins and once it has
ended, nothing is said.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

log = logging.getLogger(__name__)

BEAT_SECONDS = 10.0


async def show_alive(file: Path, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
    """Keep the file young until cancelled, and then remove it."""
    try:
        while True:
            try:
                file.touch()
            except OSError as error:
                # No reason to end a job that trains; the probe ends it where this lasts.
                log.warning("%s: %s", file, error.strerror)
            await sleep(BEAT_SECONDS)
    finally:
        file.unlink(missing_ok=True)
