"""Queue clients and servers over real sockets, through everything that can happen to a connection."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress

import msgspec
import pytest

from rljob_runtime.net.auth import Endpoint
from rljob_runtime.queue import wire
from rljob_runtime.queue.client import AsyncQueueClient, QueueRefused, QueueTimeout, QueueUnavailable
from tests.support.runtime.queue_site import CLIENT_KEYS, SERVER_KEYS, SOON, content, groups
from tests.support.runtime.relay import Relay


async def until(condition):
    """Wait for what only a question can find out."""
    async with asyncio.timeout(SOON):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def held(site):
    """What is in a site's queue, by uid."""
    return {uid: group.frame for uid, group in site.server._broker._held.items()}


# What a client can do


async def test_groups_pass_through(make_site, address):
    site = make_site(address)
    async with site.client("driver") as driver, site.client("trainer") as trainer:
        assert await driver.put(groups(1, 2, 3), SOON) == [True, True, True]
        assert await driver.put(groups(2, 4), SOON) == [True, True]
        assert await driver.put([(2, 1, b"of another attempt")], SOON) == [False]
        assert await trainer.get([3, 1], SOON) == [content(3), content(1)]
        assert await trainer.get([2], SOON) == [content(2)]
        assert held(site) == {uid: content(uid) for uid in (1, 2, 3, 4)}
        assert await trainer.ack([1, 3]) == [True, True]
        assert await driver.reset(0, 0, [4, 9]) == 1
        stats = await driver.stats()
    assert (stats.accepted, stats.acknowledged, stats.ready, stats.leased) == (4, 2, 0, 1)
    assert (stats.cleared, stats.released, stats.refused) == (1, 0, {})


def test_calls_of_other_threads_end_when_the_blocking_client_is_closed(make_site, address):
    """Also those that come while it is being closed, as one after the other does of a thread with many."""
    site = make_site(address)
    for _ in range(10):
        trainer, ended = site.blocking("trainer"), []

        def fetch(client, ended):
            for uid in range(100):
                try:
                    client.get([uid], 600)
                except QueueUnavailable as error:
                    ended.append(str(error))

        threads = [threading.Thread(target=fetch, args=(trainer, ended), daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        trainer.stats()
        trainer.close()
        for thread in threads:
            thread.join(SOON)
            assert not thread.is_alive()
        assert len(ended) == 200 and all(
            "this client was closed" in e or "queue client was closed" in e for e in ended
        )


def test_the_blocking_client_does_the_same_from_any_thread(make_site, address):
    site = make_site(address, capacity=16)
    with site.blocking("driver") as driver, site.blocking("trainer") as trainer:
        done = []

        def train():
            for uid in range(50):
                assert trainer.get([uid], SOON) == [content(uid)]
                done.extend(trainer.ack([uid]))

        thread = threading.Thread(target=train)
        thread.start()
        for uid in range(50):
            assert driver.put(groups(uid), SOON) == [True]
        thread.join(SOON)
        assert done == [True] * 50
        assert held(site) == {}
        assert driver.stats().acknowledged == 50
        assert driver.reset(1, 60, [70]) == 0
        assert driver.put(groups(59, 60, 70), SOON) == [False, True, False]
    with pytest.raises(QueueUnavailable, match="was closed"):
        driver.stats()


@pytest.mark.parametrize("size", [0, 1, wire.FRAME_BYTES - 1, wire.FRAME_BYTES, 3_000_000])
async def test_groups_of_any_size(make_site, address, size):
    site = make_site(address)
    async with site.client() as client:
        sent = [(0, 1, b""), (1, 1, os.urandom(size)), (2, 1, b"x"), (3, 1, os.urandom(size)), (4, 1, b"")]
        assert all(await client.put(sent, SOON))
        assert await client.get(range(5), SOON) == [frame for _, _, frame in sent]


async def test_a_full_queue_holds_the_producer_until_something_is_trained(make_site, address):
    site = make_site(address, capacity=8)
    async with site.client() as driver, site.client() as trainer:
        await driver.put(groups(0, 1), SOON)
        put = asyncio.create_task(driver.put(groups(2), SOON))
        await trainer.get([0], SOON)
        await until(lambda: is_waiting(driver, puts=1))
        assert not put.done()
        await trainer.ack([0])
        assert await put == [True]


async def is_waiting(client, puts=0, gets=0):
    stats = await client.stats()
    return (stats.waiting_puts, stats.waiting_gets) == (puts, gets)


async def test_a_wait_ends_at_its_deadline_and_leaves_nothing_behind(make_site, address):
    site = make_site(address, capacity=8)
    async with site.client() as client:
        await client.put(groups(0, 1), SOON)
        for call, why in (
            (client.put(groups(2), 0.2), "no room for group 2 within 0.2 s"),
            (client.get([0, 5, 6], 0.2), "groups 0, 5, 6 not ready within 0.2 s"),
        ):
            began = time.monotonic()
            with pytest.raises(QueueTimeout, match=why) as error:
                await call
            assert 0.15 < time.monotonic() - began < SOON
            assert site.address in str(error.value) and "\n" not in str(error.value)
        stats = await client.stats()
        assert (stats.waiting_puts, stats.waiting_gets, stats.leased) == (0, 0, 0)
        assert await client.reset(0, 2, []) == 2, "which makes room"
        assert held(site) == {}, "the put that was given up is not stored later"


async def test_gets_that_end_just_as_they_are_met_leave_no_lease(make_site, address):
    site = make_site(address, capacity=1000)
    taken = set()
    async with site.client() as driver, site.client() as trainer, site.client() as other:

        async def take(client, uid, patience):
            with suppress(QueueTimeout):
                assert await client.get([uid], patience) == [content(uid)]
                taken.add(uid)

        for uid in range(150):
            patience = (uid % 10) * 2e-4 + 1e-5
            takers = [asyncio.create_task(take(trainer, uid, patience)) for _ in range(uid % 2)]
            cancelled = asyncio.create_task(take(trainer if uid % 3 else other, uid, SOON))
            await driver.put(groups(uid), SOON)
            cancelled.cancel()
            await asyncio.gather(*takers, cancelled, return_exceptions=True)
        await asyncio.gather(trainer.stats(), other.stats())
        rest = sorted(set(range(150)) - taken)
        assert await driver.get(rest, SOON) == [content(uid) for uid in rest], "nobody holds them"


async def test_impossible_wishes_are_refused_at_once(make_site, address):
    site = make_site(address, capacity=8)
    async with site.client() as client:
        with pytest.raises(QueueRefused, match="group 7 has 9 samples but the queue holds only 8"):
            await client.put(groups(7, samples=9), SOON)
        await client.put(groups(1), SOON)
        await client.get([1], SOON)
        await client.ack([1])
        with pytest.raises(QueueRefused, match="group 1 is done"):
            await client.get([1], SOON)
        with pytest.raises(ValueError, match="group 5: not taken by this client"):
            await client.ack([5])


async def test_what_was_trained_before_the_job_went_back_does_not_count(make_site, address):
    site = make_site(address)
    async with site.client() as driver, site.client() as trainer:
        await driver.put(groups(0, 1), SOON)
        await trainer.get([0, 1], SOON)
        assert await driver.reset(1, 0, []) == 2
        with pytest.raises(QueueRefused, match="its training does not count"):
            await trainer.ack([0, 1])
        assert await driver.put(groups(0), SOON) == [True]
        await trainer.get([0], SOON)
        assert await trainer.ack([0]) == [True]
        with pytest.raises(QueueRefused, match="back to term 0"):
            await driver.reset(0, 0, [])


# Clients that live, leave and die


async def test_a_lease_lasts_as_long_as_its_client(make_site, address):
    site = make_site(address, lease_seconds=2.0)
    async with site.client() as trainer, site.client() as other:
        await trainer.put(groups(1), SOON)
        await trainer.get([1], SOON)
        with pytest.raises(QueueTimeout):
            await other.get([1], 2 * site.lease_seconds)


async def test_a_lease_of_who_leaves_ends_at_once(make_site, address):
    site = make_site(address, lease_seconds=600.0)
    async with site.client() as trainer, site.client() as other:
        await trainer.put(groups(1), SOON)
        await trainer.get([1], SOON)
        took = asyncio.create_task(other.get([1], SOON))
        await until(lambda: is_waiting(other, gets=1))
        await trainer.close()
        assert await took == [content(1)]


CONSUMER = """
import sys, msgspec
from rljob_runtime.net.auth import ClientKeys, Endpoint
from rljob_runtime.queue.blocking_client import QueueClient
endpoint = msgspec.json.decode(sys.argv[1], type=Endpoint)
client = QueueClient(endpoint, msgspec.json.decode(sys.argv[2], type=ClientKeys), "trainer")
print(client.get([1], 60.0)[0].hex(), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def consumer(make_site, address):
    """A site, and a process that has taken group 1 from it."""
    site = make_site(address, lease_seconds=2.0)
    with site.blocking() as driver:
        driver.put(groups(1), SOON)
        arguments = [msgspec.json.encode(site.endpoint).decode(), msgspec.json.encode(CLIENT_KEYS).decode()]
        process = subprocess.Popen(
            [sys.executable, "-c", CONSUMER, *arguments], stdout=subprocess.PIPE, stdin=subprocess.PIPE
        )
        try:
            assert process.stdout.readline().strip().decode() == content(1).hex()
            assert driver.stats().leased == 1
            yield process, driver
        finally:
            process.kill()
            process.wait(SOON)
            process.stdout.close()
            process.stdin.close()


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
def test_what_a_dead_consumer_held_goes_to_another(consumer, end):
    process, driver = consumer
    process.send_signal(end)
    assert driver.get([1], SOON) == [content(1)]
    assert driver.stats().expired == 1


def test_a_process_ends_without_closing_its_client(consumer):
    process, _ = consumer
    process.stdin.close()
    assert process.wait(SOON) == 0


# Servers that go and come back


async def test_calls_outlive_the_server(make_site, address):
    site = make_site(address)
    async with site.client() as driver, site.client() as trainer:
        await driver.put(groups(0, 1), SOON)
        await trainer.get([0], SOON)
        waiting = asyncio.create_task(trainer.get([5], SOON))
        await until(lambda: is_waiting(driver, gets=1))
        site.stop()
        meanwhile = asyncio.create_task(driver.put(groups(2), SOON))
        await asyncio.sleep(0.3)
        site.start()
        assert await meanwhile == [True]
        assert await trainer.ack([0]) == [True], "taken from the old server, known to the new one"
        assert await driver.put(groups(0, 1, 5), SOON) == [False, True, True]
        assert await waiting == [content(5)]
        stats = await driver.stats()
        assert stats.acknowledged_unseen == 1 and stats.accepted == 3


async def test_a_silent_server_is_named_in_time(make_site, address):
    site = make_site(address)
    async with site.client(patience_seconds=1.0) as client:
        await client.stats()
        site.stop()
        try:
            for call, seconds in ((client.get([1], 600), 1.0), (client.put(groups(1), 600), 1.0)):
                began = time.monotonic()
                with pytest.raises(QueueUnavailable, match=f"queue at {site.address}: no answer for 1 s"):
                    await call
                assert seconds - 0.1 < time.monotonic() - began < seconds + SOON
            with pytest.raises(QueueUnavailable, match=r"no answer within 0\.5 s"):
                await client.stats(0.5)
        finally:
            site.start()
        assert (await client.stats()).leased == 0, "the get that was given up left no lease"


async def test_who_stood_still_itself_does_not_call_the_server_silent(make_site, address):
    site = make_site(address, lease_seconds=1.0)
    async with site.client(patience_seconds=0.5) as client:
        waiting = asyncio.create_task(client.get([1], SOON))
        await until(lambda: is_waiting(client, gets=1))
        time.sleep(1.5)  # noqa: ASYNC251 - its loop reads and sends nothing meanwhile
        assert await client.put(groups(1), SOON) == [True]
        assert await waiting == [content(1)]


async def test_nobody_there_at_all():
    # Bound, so that nobody else gets it, and not listened on.
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        endpoint = Endpoint(f"tcp://127.0.0.1:{bound.getsockname()[1]}", SERVER_KEYS.public)
        async with AsyncQueueClient(endpoint, CLIENT_KEYS, "client", patience_seconds=0.5) as client:
            with pytest.raises(QueueUnavailable, match=r"no answer for 0\.5 s"):
                await client.put(groups(1), 60)


async def test_closing_ends_calls_that_wait(make_site, address):
    site = make_site(address)
    client = site.client()
    await client.open()
    waiting = asyncio.create_task(client.get([1], SOON))
    await asyncio.sleep(0.05)
    await client.close()
    with pytest.raises(QueueUnavailable, match="was closed"):
        await waiting
    with pytest.raises(QueueUnavailable, match="was closed"):
        await client.stats()
    await client.close()


async def test_cut_connections_lose_and_double_nothing(make_site):
    """Both clients talk through a network that is cut again and again, in the middle of messages."""
    site = make_site(capacity=40)
    total = 400
    async with Relay(int(site.address.rsplit(":", 1)[1]), cut_every_bytes=900_000) as relay:
        endpoint = Endpoint(relay.address, SERVER_KEYS.public)

        async def produce(driver, uids):
            for uid in uids:
                await driver.put(groups(uid, size=20_000), SOON)

        async def consume(trainer):
            for uid in range(0, total, 4):
                uids = range(uid, uid + 4)
                assert await trainer.get(uids, SOON) == [content(each, 20_000) for each in uids]
                assert all(await trainer.ack(uids, SOON))

        async with (
            AsyncQueueClient(endpoint, CLIENT_KEYS, "driver") as driver,
            AsyncQueueClient(endpoint, CLIENT_KEYS, "trainer") as trainer,
        ):
            async with asyncio.timeout(60):
                uids = iter(range(total))
                await asyncio.gather(*(produce(driver, uids) for _ in range(4)), consume(trainer))
        assert relay.cuts > 10
    async with site.client() as auditor:
        stats = await auditor.stats()
    assert stats.accepted == stats.acknowledged == total
    assert (
        stats.duplicates == stats.acknowledged_again == stats.acknowledged_unseen == stats.held_samples == 0
    )
