"""The rate limit, in virtual time."""

import asyncio

import pytest

from rljob_operator.kube.token_bucket import TokenBucket
from rljob_runtime.simulate.virtual_loop import run_virtual


def times_of(bucket, takers):
    """When each of `takers` simultaneous takers gets its token, in seconds."""

    async def take():
        await bucket.take()
        return asyncio.get_running_loop().time()

    async def all_of_them():
        return await asyncio.gather(*(take() for _ in range(takers)))

    return run_virtual(all_of_them())


def test_a_burst_passes_and_then_the_rate_holds():
    assert times_of(TokenBucket(rate=2.0, burst=3), 7) == pytest.approx([0, 0, 0, 0.5, 1.0, 1.5, 2.0])


def test_tokens_come_back_up_to_the_burst():
    bucket = TokenBucket(rate=1.0, burst=2)

    async def scenario():
        waited = [await bucket.take() for _ in range(3)]
        await asyncio.sleep(100.0)
        return waited + [await bucket.take() for _ in range(3)]

    assert run_virtual(scenario()) == pytest.approx([0, 0, 1, 0, 0, 1])


def test_whoever_gives_up_takes_no_token():
    bucket = TokenBucket(rate=1.0, burst=1)

    async def scenario():
        await bucket.take()
        impatient = asyncio.create_task(bucket.take())
        await asyncio.sleep(0.5)
        patient = asyncio.create_task(bucket.take())
        impatient.cancel()
        await patient
        return asyncio.get_running_loop().time()

    assert run_virtual(scenario()) == pytest.approx(1.0)
