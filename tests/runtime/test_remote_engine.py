"""An engine in another process: a real Ray actor, a real connection, real kills."""

import asyncio
import os
import signal
import socket
from contextlib import asynccontextmanager
from operator import attrgetter

import numpy as np
import psutil
import pytest
import ray
import zmq

from rljob_runtime.engines import channel
from rljob_runtime.engines.fake import FAKE_TOKEN, FakeTiming
from rljob_runtime.engines.protocol import EngineDied, Request, WeightRef
from rljob_runtime.engines.remote import RemoteEngine
from rljob_runtime.engines.rollout_worker import load_factory, start_worker
from rljob_runtime.net.auth import Endpoint, dial, new_keys
from rljob_runtime.samples import Span
from tests.support.runtime.relay import Relay

pytestmark = pytest.mark.usefixtures("cluster")

STEP = 0.01
LONG = 100_000
PROMPT = 5
DEADLINE = 60.0


class Site:
    """A worker with a fake engine: response lengths are the seeds of the requests."""

    def __init__(self, address, **engine_options):
        self.server_keys, self.client_keys = new_keys()
        self.actor = start_worker(
            "rljob_runtime.engines.fake:FakeEngine",
            {"length_of": attrgetter("seed"), "timing": FakeTiming(step_seconds=STEP)},
            "fast-0", address, self.server_keys, num_cpus=0,
        )  # fmt: skip
        self.engine = RemoteEngine("fast-0", self.actor, self.client_keys, **engine_options)

    async def __aenter__(self):
        await self.engine.start(3)
        return self.engine

    async def __aexit__(self, *_):
        await self.engine.close()


def request(name, length, max_tokens=LONG):
    return Request(name, np.arange(PROMPT, dtype=np.int32), max_tokens, seed=length)


def submitted(engine, count, length=LONG):
    return [asyncio.create_task(engine.submit(request(f"r{index}", length))) for index in range(count)]


async def running(engine, count):
    """Wait until the engine runs that many; only it can say."""
    async with asyncio.timeout(DEADLINE):
        while (await engine.load_snapshot()).running != count:  # noqa: ASYNC110
            await asyncio.sleep(STEP)


async def test_generates_what_the_engine_behind_it_does(address):
    async with Site(address) as engine:
        lengths = [1, 7, 30, 4]
        results = await asyncio.gather(
            *(engine.submit(request(f"r{index}", length)) for index, length in enumerate(lengths))
        )
        assert [result.request_id for result in results] == ["r0", "r1", "r2", "r3"]
        assert [result.tokens.tolist() for result in results] == [[FAKE_TOKEN] * length for length in lengths]
        assert {result.finish for result in results} == {"stop"}
        assert {span.version for result in results for span in result.spans} == {3}
        assert results[0].tokens.dtype == np.int32 and results[0].log_probs.dtype == np.float32


async def test_abort_returns_what_there_is(address):
    async with Site(address) as engine:
        (task,) = submitted(engine, 1)
        await running(engine, 1)
        await engine.abort("r0")
        assert (await task).finish == "abort"
        await engine.abort("nobody")


async def test_a_cancelled_submit_frees_the_engine(address):
    async with Site(address) as engine:
        (task,) = submitted(engine, 1)
        await running(engine, 1)
        task.cancel()
        await running(engine, 0)
        # What it had generated is nobody's; a pause does not wait for it twice.
        await engine.pause("abort")


async def test_an_order_comes_after_the_requests_before_it():
    async with Site("tcp://127.0.0.1:0") as engine:
        tasks = submitted(engine, 50)
        await asyncio.sleep(0)  # the submits have begun and nothing was sent yet
        await engine.pause("abort")
        assert all(task.done() and task.result().finish == "abort" for task in tasks)


async def test_an_order_waits_for_the_requests_before_it():
    site = Site("tcp://127.0.0.1:0")
    async with site as engine:
        pausing = site.actor.pause.remote("abort", 1)
        assert ray.wait([pausing], timeout=0.5) == ([], [pausing])
        assert (await engine.submit(request("r0", LONG))).finish == "abort"
        assert await pausing == 1


async def generated(engine, count):
    """Wait until the engine has generated that many tokens."""
    async with asyncio.timeout(DEADLINE):
        while (await engine.load_snapshot()).generated_tokens < count:  # noqa: ASYNC110
            await asyncio.sleep(STEP)


async def test_a_weight_update_labels_what_comes_after_it(address):
    async with Site(address) as engine:
        (task,) = submitted(engine, 1)
        await generated(engine, 1)
        with pytest.raises(RuntimeError, match="load while not paused"):
            await engine.load(WeightRef(4, "shm", "unused"))
        await engine.pause("keep")
        await engine.load(WeightRef(4, "shm", "unused"))
        update = await engine.load_snapshot()
        assert update.paused
        await engine.resume()
        await generated(engine, update.generated_tokens + 1)
        await engine.abort("r0")
        result = await task
        count = (await engine.load_snapshot()).generated_tokens
        assert len(result.tokens) == count
        assert result.spans == (
            Span(3, 0, update.generated_tokens), Span(4, update.generated_tokens, count)
        )  # fmt: skip


async def worker_process(site):
    """The process of the site's actor."""
    return psutil.Process(await site.actor.__ray_call__.remote(lambda worker: os.getpid()))


async def test_a_killed_process_ends_every_request_at_once():
    # What else could end them takes ten minutes.
    site = Site("tcp://127.0.0.1:0", control_seconds=600.0, contact_seconds=600.0)
    async with site as engine:
        tasks = submitted(engine, 20)
        await running(engine, 20)
        process = await worker_process(site)
        process.send_signal(signal.SIGKILL)
        async with asyncio.timeout(DEADLINE):
            results = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(result) for result in results} == {EngineDied}
        assert "engine fast-0: its process has ended" in str(results[0])
        assert "\n" not in str(results[0])
        for order in (engine.submit(request("late", 1)), engine.pause("keep"), engine.load_snapshot()):
            with pytest.raises(EngineDied, match="has ended"):
                await order


async def test_close_ends_running_requests_and_the_process():
    site = Site("tcp://127.0.0.1:0")
    async with site as engine:
        tasks = submitted(engine, 3)
        await running(engine, 3)
        process = await worker_process(site)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(result) for result in results} == {EngineDied}
    process.wait(DEADLINE)


async def test_a_stopped_process_is_given_up_after_a_while(monkeypatch):
    """The process is there, so Ray reports nothing, but it answers neither orders nor pings."""
    site = Site("tcp://127.0.0.1:0")
    async with site as engine:
        (task,) = submitted(engine, 1)
        await running(engine, 1)
        process = await worker_process(site)
        process.suspend()
        # From here on: what was ordered before may take longer on a busy machine.
        monkeypatch.setattr(engine, "_control_seconds", 3.0)
        try:
            with pytest.raises(EngineDied, match="pause took longer than 3 s"):
                await engine.pause("keep")
            with pytest.raises(EngineDied, match="pause took longer than 3 s"):
                await task
        finally:
            process.resume()


@asynccontextmanager
async def relayed(monkeypatch):
    """A started engine, and the relay that its connection goes through."""
    site = Site("tcp://127.0.0.1:0")
    endpoint = await site.actor.open.remote()
    async with Relay(int(endpoint.address.rsplit(":", 1)[1])) as relay:
        order = site.engine._order

        async def order_by_relay(method, *arguments, **options):
            if method == "open":
                return Endpoint(relay.address, endpoint.server_public)
            return await order(method, *arguments, **options)

        monkeypatch.setattr(site.engine, "_order", order_by_relay)
        async with site as engine:
            yield engine, relay


async def test_a_cut_connection_loses_and_repeats_nothing(monkeypatch):
    async with relayed(monkeypatch) as (engine, relay):
        tasks = submitted(engine, 200, length=30)
        for _ in range(6):
            await asyncio.sleep(12 * STEP)
            relay.cut()
            tasks += [
                asyncio.create_task(engine.submit(request(f"s{len(tasks)}.{index}", 5))) for index in range(9)
            ]
        async with asyncio.timeout(DEADLINE):
            results = await asyncio.gather(*tasks)
        assert {result.finish for result in results} == {"stop"}
        generated = (await engine.load_snapshot()).generated_tokens
        assert generated == sum(len(result.tokens) for result in results), "a request was run twice"


async def test_an_abort_that_a_cut_connection_loses_is_repeated(monkeypatch):
    async with relayed(monkeypatch) as (engine, relay):
        aborted, cancelled, untouched = submitted(engine, 3)
        await running(engine, 3)
        relay.moving.clear()
        await engine.abort("r0")
        cancelled.cancel()
        # What is sent reaches the relay, and goes no further.
        before = relay.carried
        async with asyncio.timeout(DEADLINE):
            while relay.carried == before:  # noqa: ASYNC110
                await asyncio.sleep(STEP)
        relay.cut()
        relay.moving.set()
        async with asyncio.timeout(DEADLINE):
            assert (await aborted).finish == "abort"
        await running(engine, 1)
        assert not untouched.done()
        untouched.cancel()


async def test_progress_is_told_and_goes_on_after_a_cut(monkeypatch):
    news, told, filled = asyncio.Event(), [], []

    def hear(tokens, prefilled):
        told.append(tokens)
        filled.append(prefilled)
        news.set()

    async def heard(count):
        async with asyncio.timeout(DEADLINE):
            while len(told) < count:
                news.clear()
                await news.wait()

    async with relayed(monkeypatch) as (engine, relay):
        engine.on_progress(hear, 0.05)
        tasks = submitted(engine, 3)
        await heard(3)
        relay.cut()
        # One may have been on its way.
        await heard(len(told) + 3)
        await engine.pause("abort")
        results = await asyncio.gather(*tasks)
    for index, result in enumerate(results):
        counts = [tokens[f"r{index}"] for tokens in told]
        assert counts == sorted(counts) and 0 < counts[0] < counts[-1] <= len(result.tokens)
    assert filled == sorted(filled) and filled[-1] == 3 * PROMPT


async def exchange(endpoint, keys, frames):
    """What a worker answers to these frames, or None where it lets nobody in."""
    with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as dealer:
        dial(dealer, endpoint, keys)
        await dealer.send_multipart(frames)
        if not await dealer.poll(DEADLINE * 1000):
            return None
        return channel.decode_from_worker(await dealer.recv_multipart())


async def test_strangers_and_nonsense_are_refused(tmp_path):
    site = Site(f"ipc://{tmp_path}/private/engine")
    endpoint = await site.actor.open.remote()
    good = channel.encode_message(channel.ToWorker(site.client_keys.token, channel.Received(())))
    stranger = channel.encode_message(channel.ToWorker("guess", channel.Submit((request("x", 1),))))
    for frames in ([b""], [b"\xc1"], [good, b"more"], [good[:-3]], [good.replace(b"token", b"\xffoken")]):
        answer = await exchange(endpoint, site.client_keys, frames)
        assert "unreadable message" in answer.why
    assert "token does not fit" in (await exchange(endpoint, site.client_keys, [stranger])).why


async def test_a_stranger_does_not_get_in():
    site = Site("tcp://127.0.0.1:0")
    async with site as engine:
        _, strange_keys = new_keys()
        stranger = RemoteEngine("fast-0", site.actor, strange_keys)
        with pytest.raises(EngineDied, match="does not know this client's key"):
            await stranger.start(0)
        assert (await engine.submit(request("r", 2))).finish == "stop"


async def test_the_engine_dying_in_a_living_process_is_told():
    site = Site("tcp://127.0.0.1:0")
    async with site as engine:
        tasks = submitted(engine, 3)
        await running(engine, 3)
        await site.actor.close.remote()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [str(result) for result in results] == ["engine fast-0: it was closed"] * 3


@pytest.mark.parametrize(
    "path, why",
    [
        ("nowhere:made", "No module named 'nowhere'"),
        ("math:engine", "no attribute 'engine'"),
        ("", "Empty module name"),
    ],
)
def test_a_wrong_factory_is_named(path, why):
    with pytest.raises(ValueError, match=why) as error:
        load_factory(path)
    assert f'"{path}"' in str(error.value)


def test_a_taken_port_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ray.exceptions.RayTaskError, match=f"port {port} is in use"):
            ray.get(Site(f"tcp://127.0.0.1:{port}").actor.open.remote())
