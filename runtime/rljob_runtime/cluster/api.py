"""The driver's connection to the API server: the client of `rljob_client`, with no retries of its own.

Whoever asks decides what is sent again: a report with what is newest by then, all else until its time is up.
"""

import random
from types import TracebackType
from typing import Self

from rljob_client import client
from rljob_client.client import ClientSettings
from rljob_client.credentials import Credentials
from rljob_client.retry import NO_RETRY
from rljob_client.transport import Transport, Uncounted

FIELD_MANAGER = "rljob-runtime"


class ApiClient(client.ApiClient):
    """A connection to one API server; use it as an asynchronous context manager."""

    def __init__(self, credentials: Credentials, field_manager: str = FIELD_MANAGER) -> None:
        """`field_manager`: who owns the fields that are written."""
        transport = Transport(credentials, Uncounted(), "rljob-driver")
        super().__init__(transport, ClientSettings(field_manager, retry=NO_RETRY), random.Random())

    async def __aenter__(self) -> Self:
        await self._transport.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._transport.__aexit__(kind, error, trace)
