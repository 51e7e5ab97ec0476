"""A network that can be cut, and slow."""

import asyncio
import contextlib


class Relay:
    """A TCP relay to a port of this machine; `cut` breaks its connections, and so does a byte count. With
    `bytes_per_second` each direction of each connection is that slow; while `moving` is cleared it stands
    still."""

    def __init__(self, port, cut_every_bytes=None, bytes_per_second=None):
        self.port = port
        self.cuts = 0
        self.carried = 0
        """Bytes, in both directions."""
        self.bytes_per_second = bytes_per_second
        self.moving = asyncio.Event()
        self.moving.set()
        self._cut_every_bytes = cut_every_bytes
        self._relayed = 0
        self._writers = set()
        self._handlers = set()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_):
        self._server.close()
        self.cut()
        await asyncio.gather(*self._handlers)

    @property
    def address(self):
        return f"tcp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self):
        """Break every connection; what is on its way is lost."""
        self.cuts += 1
        for writer in self._writers:
            writer.transport.abort()

    async def _accept(self, reader, writer):
        self._handlers.add(asyncio.current_task())
        other_reader, other_writer = await asyncio.open_connection("127.0.0.1", self.port)
        self._writers |= {writer, other_writer}
        await asyncio.gather(self._pump(reader, other_writer), self._pump(other_reader, writer))
        self._writers -= {writer, other_writer}

    async def _pump(self, reader, writer):
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                self._relayed += len(data)
                self.carried += len(data)
                if self._cut_every_bytes is not None and self._relayed >= self._cut_every_bytes:
                    self._relayed = 0
                    # In the middle of what was read, so that a message is torn.
                    writer.write(data[: len(data) // 2])
                    self.cut()
                await self.moving.wait()
                if self.bytes_per_second is not None:
                    await asyncio.sleep(len(data) / self.bytes_per_second)
                writer.write(data)
                await writer.drain()
        writer.close()
