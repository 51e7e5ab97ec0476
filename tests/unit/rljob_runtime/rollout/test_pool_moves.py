"""Responses that leave an engine for another one, in virtual time."""

import asyncio
from typing import Any

import pytest

from rljob_runtime.routing.book import Book
from rljob_runtime.routing.policy import Policy
from rljob_runtime.routing.requests import Move, RequestKey
from tests.support.simulated.pool_site import PoolSite, virtual


class MovesAsTold(Policy):
    """Moves what a test puts into `told`."""

    def __init__(self) -> None:
        self.told: list[Move] = []

    def moves(self, book: Book, now: float) -> list[Move]:
        told, self.told = self.told, []
        return told


def test_a_response_that_moves_is_aborted_and_goes_on_where_its_place_is_kept() -> None:
    async def main() -> None:
        policy = MovesAsTold()
        site = PoolSite(2, 2, policy=policy)
        first, second = site.slots
        assert await site.place(3) == [0, 1, 0]
        key = RequestKey(2, 0)
        site.submit(first, key, "2.0#1", 0, 1000)
        policy.told = [Move(key, 1)]
        site.pool.decide()
        await asyncio.sleep(1)
        engine: Any = first.engine
        assert engine.aborted == ["2.0#1"] and not site.pool.may_submit(first, key)
        waiting = site.wait(9)
        await asyncio.sleep(1)
        assert not waiting.done(), "the second engine keeps its last place"
        assert site.pool.interrupted(key, 5) is False
        assert await site.pool.acquire(key) is second
        await asyncio.sleep(1)
        assert waiting.result() is first and site.running == [2, 2]

    virtual(main())


@pytest.mark.parametrize("restart", [False, True])
def test_a_response_that_moves_may_begin_anew(restart: bool) -> None:
    async def main() -> None:
        policy = MovesAsTold()
        site = PoolSite(1, policy=policy)
        await site.place(1)
        key = RequestKey(0, 0)
        site.submit(site.slots[0], key, "0.0#1", 0, 1000)
        policy.told = [Move(key, None, restart)]
        site.pool.decide()
        assert site.pool.interrupted(key, 5) is restart
        assert await site.pool.acquire(key) is site.slots[0]
        assert site.pool.router.book.request(key).tokens == (0 if restart else 5)

    virtual(main())


def test_an_engine_that_dies_when_a_response_is_to_leave_it_is_lost() -> None:
    async def main() -> None:
        policy = MovesAsTold()
        site = PoolSite(1, policy=policy)
        await site.place(1)
        engine: Any = site.slots[0].engine
        engine.dead = True
        site.submit(site.slots[0], RequestKey(0, 0), "0.0#1", 0, 1000)
        policy.told = [Move(RequestKey(0, 0), None)]
        site.pool.decide()
        await asyncio.sleep(1)
        assert site.lost == ["engine engine-0: killed"]

    virtual(main())


def test_progress_counts_the_tokens_of_earlier_attempts() -> None:
    async def main() -> None:
        site = PoolSite(1)
        await site.place(1)
        site.submit(site.slots[0], RequestKey(0, 0), "0.0#2", 100, 1000)
        site.pool.progressed(site.slots[0], {"0.0#2": 7, "0.0#1": 99})
        assert site.pool.router.book.request(RequestKey(0, 0)).tokens == 107

    virtual(main())


@pytest.mark.parametrize(
    ("told", "share"),
    [(1.0, 0.1), (0.0, 0.085), (1e9, 0.1)],
    ids=["what it has prefilled", "nothing, so that they take what they took", "more than it was given"],
)
def test_moves_cost_what_engines_tell_of_prefill(told: float, share: float) -> None:
    """An engine takes 10 ms for a step and 1 ms for a token that it prefills. Between every second report
    and the next a request begins, with a prompt of four tokens and 1,000 of an earlier attempt. Of what the
    engine tells no more counts than it was given."""

    async def main() -> None:
        site, filled = PoolSite(64), 0
        (slot,) = site.slots
        running: dict[str, int] = {}
        await site.place(40)
        for turn in range(80):
            await asyncio.sleep(100 * 0.01)
            running = {name: tokens + 100 for name, tokens in running.items()}
            if turn % 2 == 0:
                name = f"{turn // 2}.0#1"
                site.submit(slot, RequestKey(turn // 2, 0), name, 1000, 10_000)
                await asyncio.sleep(1004 * 0.001)
                running[name], filled = 1, filled + 1004
            site.pool.progressed(slot, running, int(told * filled))
        assert slot.cost.per_prefill_token / slot.cost.fixed == pytest.approx(share, rel=0.1)

    virtual(main())


@pytest.mark.parametrize("before", [0, 50_000], ids=["nothing", "what ended before it told of it"])
@pytest.mark.parametrize(
    ("reports", "paused"), [(True, False), (False, False), (True, True)], ids=["", "unreported", "paused"]
)
def test_the_first_prefill_of_an_engine_that_had_nothing_to_do_tells_what_moves_cost(
    before: int, reports: bool, paused: bool
) -> None:
    """Two requests of 1,000 tokens take a second each, a step 10 ms. `before`: tokens of another one, which
    has ended when they come. `reports`: whether the engine reports before they begin. Where it is paused
    meanwhile, nothing is concluded."""

    async def main() -> None:
        site = PoolSite(64)
        (slot,) = site.slots
        await site.place(3)
        if before:
            site.submit(slot, RequestKey(2, 0), "2.0#1", before, 10_000)
            await asyncio.sleep(50)
            site.pool.left(slot, "2.0#1", 1)
        for uid in range(2):
            site.submit(slot, RequestKey(uid, 0), f"{uid}.0#1", 996, 10_000)
        if paused:
            site.pool.leave(slot)
            await asyncio.sleep(100)
            site.pool.join(slot)
        await asyncio.sleep(1)
        if reports:
            site.pool.progressed(slot, {"0.0#1": 0, "1.0#1": 0}, before)
        await asyncio.sleep(2)
        for turn in range(1, 40):
            site.pool.progressed(slot, dict.fromkeys(("0.0#1", "1.0#1"), 100 * turn), before + 2000)
            await asyncio.sleep(1)
        share = slot.cost.per_prefill_token / slot.cost.fixed
        assert share == pytest.approx(0.01 if paused else 0.1, rel=0.1) and slot.cost.assumed == paused

    virtual(main())


def test_no_move_is_free_before_costs_are_measured() -> None:
    """Else responses to long prompts move for next to nothing in the first seconds of a job."""

    async def main() -> None:
        cost = PoolSite(2).slots[0].shape.cost
        # For a prompt of 30,000 tokens hundreds of decode steps.
        assert 30_000 * cost.moved > 100 * cost.step(1)

    virtual(main())
