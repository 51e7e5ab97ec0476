"""The queue over lines that are slow, or stand still: nothing is sent twice, and what moves is waited for."""

import asyncio
import time
from contextlib import asynccontextmanager

import pytest

from rljob_runtime.net.auth import Endpoint
from rljob_runtime.queue.client import AsyncQueueClient, QueueError
from tests.support.runtime.queue_site import CLIENT_KEYS, SERVER_KEYS, SOON, content, groups
from tests.support.runtime.relay import Relay

MEGABYTE = 2**20
PATIENCE = 2.0
"""Seconds: how long client and server wait for each other's signs of life, and calls for their end."""


@asynccontextmanager
async def behind_a_slow_line(site, megabytes_per_second):
    async with Relay(
        int(site.address.rsplit(":", 1)[1]), bytes_per_second=megabytes_per_second * MEGABYTE
    ) as relay:
        endpoint = Endpoint(relay.address, SERVER_KEYS.public, site.lease_seconds)
        async with AsyncQueueClient(endpoint, CLIENT_KEYS, "far", patience_seconds=PATIENCE) as client:
            yield relay, client


SHAPES = [pytest.param(12, 1, id="many"), pytest.param(1, 12, id="one large")]


@pytest.mark.parametrize(("count", "size"), SHAPES)
async def test_an_answer_that_travels_is_sent_once(make_site, count, size):
    site = make_site(lease_seconds=PATIENCE)
    uids = range(count)
    async with site.client("near") as near, behind_a_slow_line(site, 2.5) as (relay, far):
        await near.put(groups(*uids, size=size * MEGABYTE), SOON)
        began = time.monotonic()
        assert await far.get(uids, timeout=PATIENCE) == [content(uid, size * MEGABYTE) for uid in uids]
        assert time.monotonic() - began > 2 * PATIENCE, "longer than each of the deadlines"
        before = relay.carried
        assert all(await far.ack(uids, timeout=PATIENCE))
        assert relay.carried - before < MEGABYTE / 2, "nothing is ahead of the acknowledgement's answer"
        assert relay.carried < 1.1 * 12 * MEGABYTE
        stats = await near.stats()
        assert (stats.acknowledged, stats.expired) == (count, 0)


@pytest.mark.parametrize(("count", "size"), SHAPES)
async def test_a_put_that_travels_is_sent_once(make_site, count, size):
    site = make_site(lease_seconds=PATIENCE)
    uids = range(count)
    async with site.client("near") as near, behind_a_slow_line(site, 2.5) as (relay, far):
        await near.put(groups(99), SOON)
        await far.get([99], SOON)
        assert await far.put(groups(*uids, size=size * MEGABYTE), timeout=PATIENCE) == [True] * count
        assert relay.carried < 1.1 * 12 * MEGABYTE
        stats = await near.stats()
        assert (stats.accepted, stats.duplicates) == (count + 1, 0)
        assert (stats.leased, stats.expired) == (1, 0), "parts of a put are signs of life"
        assert await near.get(uids, SOON) == [content(uid, size * MEGABYTE) for uid in uids]


@pytest.mark.parametrize("verb", ["get", "put"])
async def test_a_line_that_stands_still_is_noticed(make_site, verb):
    site = make_site()
    async with site.client("near") as near, behind_a_slow_line(site, 8) as (relay, far):
        await near.put(groups(1, size=12 * MEGABYTE), SOON)
        call = far.get([1], PATIENCE) if verb == "get" else far.put(groups(2, size=12 * MEGABYTE), PATIENCE)
        call = asyncio.create_task(call)
        await asyncio.sleep(0.5)
        assert not call.done()
        relay.moving.clear()
        async with asyncio.timeout(SOON):
            with pytest.raises(QueueError, match=r"within 2 s|no answer for 2 s"):
                await call
        relay.bytes_per_second = 100 * MEGABYTE
        relay.moving.set()
        assert await near.get([1], SOON) == [content(1, 12 * MEGABYTE)], "it left no lease"
        assert await far.put(groups(2, size=12 * MEGABYTE), SOON) == [True], "the same again is harmless"


async def test_a_lost_connection_in_the_middle_of_a_large_answer_and_a_large_put(make_site):
    site = make_site()
    size = 8 * MEGABYTE
    async with site.client("near") as near, behind_a_slow_line(site, 16) as (relay, far):
        await near.put(groups(1, size=size), SOON)
        getting = asyncio.create_task(far.get([1], SOON))
        putting = asyncio.create_task(far.put(groups(2, 3, size=size), SOON))
        await asyncio.sleep(0.2)
        relay.cut()
        await asyncio.sleep(0.5)
        relay.cut()
        assert await getting == [content(1, size)]
        assert await putting == [True, True]
        assert await near.get([2, 3], SOON) == [content(2, size), content(3, size)]
        assert not site.server._sessions[far._id].arriving, "no part is left behind"
