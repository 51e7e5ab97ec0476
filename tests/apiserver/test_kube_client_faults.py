"""The API client where the network or the server fails, and its own limits: rate and fence."""

import asyncio
import time
from random import Random

import pytest

from rljob_client.client import WatchLimits
from rljob_client.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    ServerError,
    TooManyRequests,
    Unreachable,
)
from rljob_client.objects import Item
from rljob_client.resources import CONFIG_MAPS
from rljob_operator.kube.client import ApiClient
from rljob_operator.kube.fence import Fence, LeaseLost
from rljob_operator.kube.token_bucket import TokenBucket
from tests.support.operator.config_maps import config_map, data_of
from tests.support.operator.fault_proxy import Answer, Cut, CutAfter, Delay
from tests.support.operator.kube_site import RETRY, proxied_site, settings


class TestFaults:
    @pytest.mark.parametrize(
        "fault",
        [Answer(500), Answer(503), Answer(504), Answer(429), Cut(), Cut(carried_out=True), CutAfter(20)],
        ids=str,
    )
    async def test_what_passes_is_tried_again(self, there, namespace, fault):
        there.proxy.inject(fault, times=2, containing="configmaps/a")
        await there.client.apply(config_map(namespace, x="1"))
        assert there.proxy.pending == 0
        there.proxy.inject(fault, times=2, containing="configmaps/a")
        assert await data_of(there.client, namespace) == {"x": "1"}

    async def test_the_server_is_left_alone_for_as_long_as_it_asks(self, there, namespace):
        there.proxy.inject(Answer(429, retry_after=1))
        began = time.monotonic()
        await there.client.apply(config_map(namespace))
        assert time.monotonic() - began >= 1.0

    async def test_a_long_wait_is_the_callers(self, there, namespace):
        there.proxy.inject(Answer(429, retry_after=60))
        with pytest.raises(TooManyRequests) as caught:
            await there.client.apply(config_map(namespace))
        assert caught.value.retry_after == 60.0
        assert there.proxy.passed == []

    async def test_tries_end(self, there, namespace):
        there.proxy.inject(Answer(500, "etcd is away"), times=100)
        with pytest.raises(ServerError, match="etcd is away"):
            await there.client.apply(config_map(namespace))
        assert there.calls("apply", "configmaps", "500") == RETRY.attempts

    @pytest.mark.parametrize(("code", "kind"), [(409, Conflict), (403, Forbidden), (422, Invalid)])
    async def test_what_does_not_pass_is_not_tried_again(self, there, namespace, code, kind):
        there.proxy.inject(Answer(code))
        with pytest.raises(kind):
            await there.client.apply(config_map(namespace))
        assert there.proxy.passed == []

    async def test_a_repeated_write_is_told_by_its_precondition(self, there, namespace):
        seen = (await there.client.apply(config_map(namespace)))["metadata"]
        there.proxy.inject(Cut(carried_out=True))
        with pytest.raises(Conflict):
            await there.client.patch(
                CONFIG_MAPS, namespace, "a", {"data": {"x": "1"}}, seen["resourceVersion"]
            )
        assert await data_of(there.client, namespace) == {"x": "1"}
        there.proxy.inject(Cut(carried_out=True))
        with pytest.raises(NotFound):
            await there.client.delete(CONFIG_MAPS, namespace, "a", seen["uid"])
        there.proxy.inject(Cut(carried_out=True))
        with pytest.raises(AlreadyExists):
            await there.client.create(config_map(namespace))

    async def test_a_late_answer_is_given_up(self, cluster, namespace):
        async with proxied_site(cluster.kubeconfig, timeout_seconds=0.3) as hasty:
            hasty.proxy.inject(Delay(60.0), times=100)
            began = time.monotonic()
            with pytest.raises(Unreachable, match=r"no answer within 0\.3 s"):
                await hasty.client.get(CONFIG_MAPS, namespace, "kube-root-ca.crt", Item)
            assert time.monotonic() - began < 60.0
            assert hasty.calls("get", "configmaps", "none") == RETRY.attempts

    async def test_a_silent_watch_is_given_up(self, there, namespace):
        version = (await there.client.create(config_map(namespace)))["metadata"]["resourceVersion"]
        limits = WatchLimits(silence_seconds=4.0)  # enough for the watch to begin
        with pytest.raises(Unreachable, match="is silent"):
            async with there.client.watch(CONFIG_MAPS, Item, version, namespace, limits=limits) as changes:
                async for _ in changes:
                    pytest.fail("nothing had changed")

    async def test_a_watch_that_is_cut_says_so(self, there, namespace):
        version = (await there.client.create(config_map(namespace)))["metadata"]["resourceVersion"]
        with pytest.raises(Unreachable, match="broke"):
            async with there.client.watch(CONFIG_MAPS, Item, version, namespace) as changes:
                there.proxy.cut()
                async for _ in changes:
                    pytest.fail("nothing had changed")


class TestLimits:
    async def test_writes_are_limited_and_reads_are_not(self, here, namespace):
        limited = ApiClient(here.transport, here.metrics, settings(), Random(0), TokenBucket(4.0, burst=1))
        began = time.monotonic()
        await asyncio.gather(*(limited.apply(config_map(namespace, f"m-{n}")) for n in range(5)))
        assert time.monotonic() - began >= 1.0
        # At this rate, the second of what is limited would be sent in an hour.
        slow = ApiClient(here.transport, here.metrics, settings(), Random(0), TokenBucket(1 / 3600, burst=1))
        async with asyncio.timeout(60):
            await slow.apply(config_map(namespace, "m-0"))
            await asyncio.gather(*(slow.get(CONFIG_MAPS, namespace, f"m-{n}", Item) for n in range(5)))

    async def test_behind_a_closed_fence_nothing_is_sent(self, there, namespace):
        fence = Fence(time.monotonic() + 60.0, time.monotonic)
        client = there.client.fenced(fence)
        seen = (await client.apply(config_map(namespace, x="1")))["metadata"]
        fence.close("it was taken")
        sent = len(there.proxy.passed)
        for write in (
            client.apply(config_map(namespace, x="2")),
            client.apply_status(config_map(namespace)),
            client.create(config_map(namespace, "b")),
            client.patch(CONFIG_MAPS, namespace, "a", {"data": {"x": "2"}}),
            client.delete(CONFIG_MAPS, namespace, "a", seen["uid"]),
        ):
            with pytest.raises(LeaseLost, match="nothing was written: the lease is lost, it was taken"):
                await write
        assert len(there.proxy.passed) == sent
        assert await data_of(client, namespace) == {"x": "1"}

    async def test_a_write_does_not_outlive_its_fence_and_is_not_delivered_later(self, cluster, namespace):
        # Without its fence the write would be tried for minutes.
        async with proxied_site(cluster.kubeconfig, timeout_seconds=60.0) as patient:
            fence = Fence(time.monotonic() + 0.5, time.monotonic)
            with patient.proxy.blackout():
                with pytest.raises(LeaseLost):
                    await patient.client.fenced(fence).apply(config_map(namespace))
                assert time.monotonic() < fence.deadline + 30.0
            with pytest.raises(NotFound):
                await patient.client.get(CONFIG_MAPS, namespace, "a", Item)
