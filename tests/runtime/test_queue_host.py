"""The queue in its Ray actor: found, lost, and put back in its place."""

import asyncio
import os
import signal
import socket

import pytest
import ray

from rljob_runtime.net.auth import new_keys
from rljob_runtime.queue.client import AsyncQueueClient
from rljob_runtime.queue.host import start_host

pytestmark = pytest.mark.usefixtures("cluster")

SOON = 60.0


async def test_a_killed_host_is_replaced_and_nothing_is_lost_or_doubled(address):
    server_keys, client_keys = new_keys()
    host = start_host(server_keys, 64, address)
    endpoint = await host.endpoint.remote()
    process = await host.__ray_call__.remote(lambda _: os.getpid())
    lost = asyncio.wrap_future(host.wait_stopped.remote().future())
    kept = {uid: (uid, 4, b"group %d" % uid) for uid in range(8)}
    async with (
        AsyncQueueClient(endpoint, client_keys, "driver") as driver,
        AsyncQueueClient(endpoint, client_keys, "trainer") as trainer,
    ):
        await driver.put(list(kept.values()), SOON)
        first = await trainer.get([0, 1], SOON)
        next_batch = asyncio.create_task(trainer.get([2, 3], SOON))
        os.kill(process, signal.SIGKILL)
        with pytest.raises(ray.exceptions.RayActorError):
            await asyncio.wait_for(lost, SOON)
        replacement = start_host(server_keys, 64, endpoint.address)
        assert await replacement.endpoint.remote() == endpoint
        assert first == [b"group 0", b"group 1"]
        assert await trainer.ack([0, 1], SOON) == [True, True]
        accepted = await driver.put(list(kept.values()), SOON)
        assert accepted[4:] == [True] * 4 and accepted[:2] == [False, False]
        assert await next_batch == [b"group 2", b"group 3"]
        assert await trainer.ack([2, 3], SOON) == [True, True]
        stats = await driver.stats()
        assert (stats.ready, stats.leased, stats.held_samples) == (4, 0, 16)
        assert await trainer.get([4, 5, 6, 7], SOON) == [b"group %d" % uid for uid in (4, 5, 6, 7)]
        await replacement.stop.remote()
        assert await replacement.wait_stopped.remote() is None
        ray.kill(replacement)


async def test_a_replacement_knows_the_term():
    server_keys, client_keys = new_keys()
    host = start_host(server_keys, 64, "tcp://127.0.0.1:0", term=3)
    async with AsyncQueueClient(await host.endpoint.remote(), client_keys, "driver") as driver:
        assert (await driver.stats()).term == 3
    ray.kill(host)


async def test_a_taken_port_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        host = start_host(new_keys()[0], 64, f"tcp://127.0.0.1:{port}")
        with pytest.raises(ray.exceptions.RayActorError, match=f"port {port} is in use. Stop the process"):
            await host.endpoint.remote()
