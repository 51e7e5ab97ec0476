"""What the API server answers kopf, of which kopf reads the metadata.

Guarantees: kopf's decoder, which goes a thousand levels deep, is given nothing that is nested deeper,
whatever is stored in an RLJob; all else is as the server sent it.
"""

import json
from collections.abc import AsyncIterator
from typing import Any, Self

import aiohttp
from aiohttp.connector import Connection

from rljob_client.decoding import shallow


class ShallowAnswer(aiohttp.ClientResponse):
    """An answer without what is nested too deep."""

    async def start(self, connection: Connection) -> Self:
        """The beginning of the answer; its lines are a watch's."""
        await super().start(connection)
        self.content = _ShallowLines(self.content)  # type: ignore[assignment]
        return self

    async def json(self, **options: Any) -> Any:
        """The whole answer, decoded."""
        return await super().json(**{**options, "loads": _loads})


def _loads(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        return json.loads(shallow(text.encode()))


class _ShallowLines:
    """A stream of which whoever asks for pieces gets whole lines."""

    def __init__(self, stream: aiohttp.StreamReader) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        """The lines, each with what ends it but the last; `size` as in aiohttp, of what is read at a time."""
        begun: list[bytes] = []
        async for chunk in self._stream.iter_chunked(size):
            *whole, rest = chunk.split(b"\n")
            for line in whole:
                yield shallow(b"".join((*begun, line))) + b"\n"
                begun = []
            begun.append(rest)
        yield shallow(b"".join(begun))
