"""How an engine's host learns that a version has arrived on every rank: each tells it through a socket.

Guarantees: `arrived` returns when all ranks have told of a number, with what one of them says went wrong; an
unreadable message is logged, and nobody waits for its sender longer than a deadline.
"""

import asyncio
import logging
from pathlib import Path

import msgspec

_LINE_SECONDS = 10.0
"""A rank that has connected sends its line at once."""

_log = logging.getLogger(__name__)


class _Report(msgspec.Struct, frozen=True):
    number: int
    rank: int
    why: str


class StagingReports:
    """See the module's guarantees. All methods belong to one loop."""

    def __init__(self, path: Path, ranks: int) -> None:
        self.path = path
        self._ranks = ranks
        self._told: dict[int, dict[int, str]] = {}
        self._changed = asyncio.Condition()
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Begin to listen."""
        self._server = await asyncio.start_unix_server(self._take, self.path)

    async def arrived(self, number: int) -> str:
        """Wait, with a deadline of the caller's, until every rank has told what came of this number; why one
        of them does not have it, "" where all have."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._told.get(number, {})) == self._ranks)
            told = self._told.pop(number)
        return next((f"rank {rank}: {why}" for rank, why in sorted(told.items()) if why), "")

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
            self.path.unlink(missing_ok=True)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_LINE_SECONDS):
                report = msgspec.json.decode(await reader.readline(), type=_Report)
        except (TimeoutError, ValueError, OSError) as error:
            # msgspec's own error is a ValueError.
            _log.warning("an unreadable report at %s: %s", self.path, error)
            return
        finally:
            writer.close()
        async with self._changed:
            self._told.setdefault(report.number, {})[report.rank] = report.why
            self._changed.notify_all()
