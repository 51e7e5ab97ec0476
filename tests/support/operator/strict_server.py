"""A stand-in for an API server that answers only whom it knows, and tells its connections apart."""

import asyncio
import json
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, urlsplit

from tests.support.operator.certificates import Authority

BOOKMARK = b'{"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "5"}}}\n'
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_TOKEN = re.compile(rb"\r\nauthorization: *([^\r]+)", re.IGNORECASE)


@dataclass
class StrictServer:
    """Whoever is not in `known` is answered 401, others as whom the server took them for, unless there is
    something in `documents`; a watch, by a stream that begins with a bookmark and goes on."""

    known: set[str]
    """Names of certificates, and values of `Authorization`."""
    url: str = ""
    documents: dict[str, Any] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)
    """As whom each request came."""
    came: "asyncio.Queue[str]" = field(default_factory=asyncio.Queue)
    """The same, to wait for."""
    ended: "asyncio.Queue[str]" = field(default_factory=asyncio.Queue)
    """As whom the connections came that have ended."""
    delay: float = 0.0
    """Seconds before each answer."""
    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    def cut(self) -> None:
        """End all connections."""
        for writer in self._open:
            writer.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        certificate = writer.get_extra_info("peercert")
        name = certificate["subject"][0][0][1] if certificate else ""
        self._open.add(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if length := _LENGTH.search(head):
                    await reader.readexactly(int(length[1]))
                if not certificate:
                    token = _TOKEN.search(head)
                    name = token[1].decode() if token else "nobody"
                self.seen.append(name)
                self.came.put_nowait(name)
                await asyncio.sleep(self.delay)
                writer.write(self._answer(name, urlsplit(head.split(b" ")[1].decode())))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            self.ended.put_nowait(name)
        finally:
            self._open.remove(writer)
            writer.close()

    def _answer(self, name: str, asked: SplitResult) -> bytes:
        if name not in self.known:
            return _reply("401 Unauthorized", {"kind": "Status", "message": f"{name} is not known"})
        if "watch=true" in asked.query:
            head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            return head + b"%x\r\n%s\r\n" % (len(BOOKMARK), BOOKMARK)
        return _reply("200 OK", self.documents.get(asked.path, {"you": name}))


def _reply(status: str, document: Any) -> bytes:
    body = json.dumps(document).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


@asynccontextmanager
async def strict_server(
    *known: str, authority: Authority | None = None, anybody: bool = False
) -> AsyncIterator[StrictServer]:
    """The server, listening: with an authority over TLS, where each client must have a certificate of the
    authority's, but for `anybody`."""
    made, tls = StrictServer(set(known)), None
    if authority is not None:
        own = authority.sign("server")
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.certificate))
        tls.verify_mode = ssl.CERT_OPTIONAL if anybody else ssl.CERT_REQUIRED
        tls.load_cert_chain(own.certificate, own.key)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0, ssl=tls)
    scheme = "http" if tls is None else "https"
    made.url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()
