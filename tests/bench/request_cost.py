"""What one request to an API server costs its client in CPU time, by what makes it.

    python -m tests.bench.request_cost

The project's own transport is the baseline. The `kubernetes` package makes the same requests as it is, and
with a session that does not look for a proxy and a password in the environment and in ~/.netrc before each
of them (aiohttp's `trust_env`). A server on this machine answers all with the same few bytes; the ways take
turns.
"""

import asyncio
import multiprocessing
import time
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING

from aiohttp import web

from rljob_client.credentials import Credentials
from rljob_client.resources import PODS
from rljob_client.transport import Call, Transport, Uncounted
from tests.bench.figures import Figure, record
from tests.bench.pod_operator import PackageTransport
from tools.cluster.ports import Ports

if TYPE_CHECKING:
    from kubernetes.aio.client import Configuration

ROUNDS, REQUESTS = 9, 300
START_SECONDS = 20.0
OWN, PACKAGE, UNTRUSTING = "own", "with the package", "with the package, without `trust_env`"
PATH = PODS.path("default")
CALLS = {
    "reading": Call("get", PODS, PATH, (("limit", "1"),)),
    "writing 1 KB": Call("create", PODS, PATH, (), b'{"a": "' + b"x" * 1000 + b'"}'),
}


def serve(port: int) -> None:
    """Answer whatever is asked, until the process is ended."""

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        return web.json_response({"kind": "Pod"})

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    web.run_app(application, host="127.0.0.1", port=port, access_log=None, print=None)


def package(server: str, **session: bool) -> "Callable[[], Configuration]":
    """The package's configuration for a server. `session`: options of its session."""

    def configuration() -> "Configuration":
        from kubernetes.aio.client import Configuration

        made = Configuration(host=server)
        made.api_key["BearerToken"] = "Bearer none"
        made.client_session_kwargs = session or None
        return made

    return configuration


async def measured(server: str) -> dict[tuple[str, str], list[float]]:
    """Milliseconds of CPU time of a request, by kind and way, one for each round."""
    credentials = Credentials(server, None)
    ways = {
        OWN: Transport(credentials, Uncounted(), "bench"),
        PACKAGE: PackageTransport(package(server), credentials, Uncounted(), "bench"),
        UNTRUSTING: PackageTransport(package(server, trust_env=False), credentials, Uncounted(), "bench"),
    }
    found: dict[tuple[str, str], list[float]] = {}
    for _ in range(ROUNDS):
        for way, transport in ways.items():
            async with transport:
                for kind, call in CALLS.items():
                    await transport.send(call, START_SECONDS)
                    began = time.process_time()
                    for _ in range(REQUESTS):
                        await transport.send(call, START_SECONDS)
                    taken = (time.process_time() - began) / REQUESTS * 1000
                    found.setdefault((kind, way), []).append(taken)
    return found


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
        Figure(f"CPU time of a request, {kind}, {way}", median(taken), "ms", median(found[kind, OWN]))
        for (kind, way), taken in found.items()
        if way != OWN
    ]
    record("operator_transport", figures, keep=True)


if __name__ == "__main__":
    main()
