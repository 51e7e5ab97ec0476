"""What one request to an API server costs its client in CPU time, by what makes it, and what importing the
`kubernetes` package costs.

    python -m tests.bench.request_cost

A session of aiohttp's own is the baseline. The client makes its requests by the package (`connections.py`);
the package as it comes looks for a proxy and a password in the environment and in ~/.netrc before each
request (aiohttp's `trust_env`). A server on this machine answers all with the same few bytes; the ways take
turns.
"""

import asyncio
import json
import multiprocessing
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import aiohttp
from aiohttp import web
from kubernetes.aio.client import Configuration
from kubernetes.aio.client.rest import RESTClientObject

from rljob_client.connections import Connections
from rljob_client.credentials import Credentials
from rljob_client.resources import PODS
from rljob_client.transport import Call, Transport, Uncounted
from tests.bench.figures import Figure, parser, record
from tools.cluster.ports import Ports

ROUNDS, REQUESTS, IMPORTS = 9, 300, 5
START_SECONDS = 20.0
RAW, OURS, PLAIN = "by aiohttp", "by the client", "by the package as it comes"
PATH = PODS.path("default")
CALLS = {
    "reading": Call("get", PODS, PATH, (("limit", "1"),)),
    "writing 1 KB": Call("create", PODS, PATH, (), b'{"a": "' + b"x" * 1000 + b'"}'),
}
BEFORE = {
    "a driver, which has Ray and torch": "ray, torch, aiohttp, yaml, pydantic",
    "`kubectl rljob`, which reads a kubeconfig by it": "aiohttp, kubernetes.config.kube_config",
}
"""What there is in a process before the package's HTTP is imported."""
IMPORTING = """
import json, os, time
import {before}
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
memory, used = resident(), time.process_time()
import kubernetes.aio.client.rest
print(json.dumps([resident() - memory, time.process_time() - used]))
"""


def serve(port: int) -> None:
    """Answer whatever is asked, until the process is ended."""

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        return web.json_response({"kind": "Pod"})

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    web.run_app(application, host="127.0.0.1", port=port, access_log=None, print=None)


class Raw(Connections):
    """The same requests by a session of aiohttp's own."""

    pool_manager: Any

    async def ask(
        self, method: str, url: Any, headers: Any, body: Any, limits: Any
    ) -> aiohttp.ClientResponse:
        if self.pool_manager is None:
            self.pool_manager = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                headers=self._headers,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        answer: aiohttp.ClientResponse = await self.pool_manager.request(
            method, url, data=body, headers=headers, allow_redirects=False, timeout=limits
        )
        return answer


class Plain(Connections):
    """The package as it comes, but for the form of a body."""

    _create_pool_manager = RESTClientObject._create_pool_manager


class Through(Transport):
    """All requests over connections of one kind."""

    def __init__(self, server: str, kind: type[Connections]) -> None:
        super().__init__(Credentials(server, None), Uncounted(), "bench")
        self._kind = kind

    async def _connections_with(self, tls: ssl.SSLContext | None) -> Connections:
        if tls not in self._connections:
            self._connections[tls] = self._kind(Configuration()).opened(tls, self._headers)
        return self._connections[tls]


async def measured(server: str) -> dict[tuple[str, str], list[float]]:
    """Milliseconds of CPU time of a request, by kind and way, one for each round."""
    found: dict[tuple[str, str], list[float]] = {}
    for _ in range(ROUNDS):
        for way, kind in {RAW: Raw, OURS: Connections, PLAIN: Plain}.items():
            async with Through(server, kind) as transport:
                for name, call in CALLS.items():
                    await transport.send(call, START_SECONDS)
                    began = time.process_time()
                    for _ in range(REQUESTS):
                        await transport.send(call, START_SECONDS)
                    taken = (time.process_time() - began) / REQUESTS * 1000
                    found.setdefault((name, way), []).append(taken)
    return found


def imported() -> Iterator[Figure]:
    """What importing the package's HTTP adds to a process."""
    for where, before in BEFORE.items():
        command = [sys.executable, "-c", IMPORTING.format(before=before)]
        told = [json.loads(subprocess.check_output(command)) for _ in range(IMPORTS)]
        memory, used = zip(*told, strict=True)
        yield Figure(f"Memory that it adds to {where}", median(memory), "MB")
        yield Figure(f"CPU time that its import takes in {where}", median(used), "s")


async def listening(port: int) -> None:
    """Wait until the server takes connections. TimeoutError."""
    async with asyncio.timeout(START_SECONDS):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)  # a port gives no event
                continue
            writer.close()
            return


async def all_ways(port: int) -> dict[tuple[str, str], list[float]]:
    await listening(port)
    return await measured(f"http://127.0.0.1:{port}")


def main() -> None:
    out = parser(__doc__).parse_args().out
    ports = Ports()
    port = ports.take()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(port,), daemon=True)
    server.start()
    try:
        found = asyncio.run(all_ways(port))
    finally:
        server.kill()
        server.join()
        ports.give_back()
    figures = [
        Figure(f"CPU time of a request, {kind}, {way}", median(taken), "ms", median(found[kind, RAW]))
        for (kind, way), taken in found.items()
        if way != RAW
    ]
    record("request_cost", [*figures, *imported()], out)


if __name__ == "__main__":
    main()
