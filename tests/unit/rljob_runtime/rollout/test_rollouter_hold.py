"""A rollouter that gives up all groups under way, and goes on from another state, in virtual time."""

import asyncio
from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest

from rljob_runtime.groups.ledger import Ledger
from rljob_runtime.groups.responses import Response
from rljob_runtime.groups.staleness import Bound, StalenessController
from rljob_runtime.rewards import Score
from rljob_runtime.samples import Group, Prompt
from rljob_runtime.simulate.virtual_loop import run_virtual
from tests.support.simulated.watched_rollout import WatchedRollout


@pytest.mark.parametrize("turns", range(8))
def test_hold_at_any_moment_ends_every_request_once_and_restart_begins_anew(turns: int) -> None:
    """`turns`: how many turns of the loop the newest group has had; at first its requests have not asked for
    an engine, then some of them have."""

    async def main() -> None:
        async with WatchedRollout((2, 2, 2), 4, length=10) as job:
            for _ in range(turns):
                await asyncio.sleep(0)
            dispatched = job.dispatched
            await job.rollouter.hold("trainer restarted")
            assert [slot.running for slot in job.slots] == [0, 0, 0]
            counts = job.rollouter.counts
            assert counts.cancelled == ({"trainer restarted": dispatched} if dispatched else {})
            assert counts.open == 0
            await asyncio.sleep(5)
            assert job.dispatched == dispatched, "none until restart"
            controller = StalenessController(Bound(0, 100), 1000)
            job.rollouter.restart(controller, Ledger(), iter(range(50, 60)))
            await asyncio.sleep(5)
            # Six places: one group whole, and two requests of the next.
            assert job.dispatched == dispatched + 2
            assert job.fetched[-2:] == [50, 51]

    run_virtual(main())


def test_hold_aborts_each_request_on_its_own_engine_once() -> None:
    async def main() -> None:
        async with WatchedRollout((2, 3, 2), 4, length=10) as job:
            await asyncio.sleep(5)
            given = [[request.request_id for request in engine.given] for engine in job.engines]
            assert [len(requests) for requests in given] == [2, 3, 2]
            await job.rollouter.hold("asked")
            assert [sorted(engine.aborted) for engine in job.engines] == [sorted(each) for each in given]

    run_virtual(main())


def test_hold_ends_groups_that_wait_for_their_reward() -> None:
    async def main() -> None:
        async with WatchedRollout((2,), 2, length=10) as job:

            async def never(prompt: Prompt, responses: Sequence[Response]) -> Any:
                await asyncio.get_running_loop().create_future()

            job.scores = never
            await asyncio.sleep(15)
            assert job.dispatched == 2
            await job.rollouter.hold("asked")
            assert job.rollouter.counts.cancelled == {"asked": 2} and job.groups == []

    run_virtual(main())


def test_hold_leaves_what_is_in_the_queue() -> None:
    async def main() -> None:
        async with WatchedRollout((2,), 2, length=10) as job:
            await asyncio.sleep(25)
            await job.rollouter.hold("asked")
            counts = job.rollouter.counts
            assert [group.uid for group in job.groups] == [0, 1]
            assert (counts.dispatched, counts.accepted, counts.cancelled) == (3, 2, {"asked": 1})

    run_virtual(main())


def test_responses_without_a_reward_count_with_their_group_and_so_once() -> None:
    """A group that is given up while it is handed to the queue is generated again."""

    async def main() -> None:
        async with WatchedRollout((2,), 2, length=10, prompts=1) as job:

            async def fail(prompt: Prompt, responses: Sequence[Response]) -> list[Score]:
                return [Score(1.0), Score(0.0, "timeout after 3 s")]

            async def never(group: Group) -> None:
                await asyncio.get_running_loop().create_future()

            job.scores, job.put = fail, never
            await asyncio.sleep(15)
            await job.rollouter.hold("trainer restarted")
            counts = job.rollouter.counts
            assert (counts.cancelled, counts.rejected) == ({"trainer restarted": 1}, {})
            job.put = job.keep
            job.rollouter.restart(StalenessController(Bound(0, 1), 1), Ledger(), iter([0]))
            await asyncio.sleep(15)
            assert (counts.accepted, counts.responses, counts.rejected) == (1, 2, {"timeout": 1})

    run_virtual(main())


def test_restart_without_hold_is_refused() -> None:
    async def main() -> None:
        async with WatchedRollout() as job:
            await asyncio.sleep(1)
            with pytest.raises(RuntimeError, match="1 groups of the state before are under way"):
                job.rollouter.restart(job.controller, Ledger(), count())

    run_virtual(main())
