"""One evaluation on simulated engines, in virtual time."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from rljob_runtime.engines.fake import FakeEngine, FakeTiming
from rljob_runtime.engines.protocol import Request, Sampling
from rljob_runtime.groups.counts import GroupCounts
from rljob_runtime.groups.responses import Response
from rljob_runtime.rewards import Score
from rljob_runtime.rollout.engine_slot import EngineSlot
from rljob_runtime.rollout.evaluator import EvaluatedSet, Evaluator, EvaluatorSettings, HeldOutSet
from rljob_runtime.rollout.pool import EnginePool
from rljob_runtime.rollout.responder import Responder
from rljob_runtime.samples import Generation, Prompt
from rljob_runtime.simulate.virtual_loop import run_virtual
from rljob_runtime.trace.analyse.event_files import Tally, read_steps
from rljob_runtime.trace.record.event_log import EventLog

SAMPLING = Sampling(temperature=0.0, stop_token_ids=(3,))
LIMIT = 4


class Engine(FakeEngine):
    """Notes what it is asked."""

    def __init__(self, name: str) -> None:
        super().__init__(name, lambda request: 10, LIMIT, FakeTiming(step_seconds=0.01))
        self.asked: list[Request] = []

    async def submit(self, request: Request) -> Generation:
        self.asked.append(request)
        return await super().submit(request)


class Site:
    """An evaluator with its engines."""

    def __init__(
        self,
        sets: Sequence[HeldOutSet],
        samples: int = 2,
        kept: int = 0,
        engines: int = 1,
        folder: Path | None = None,
    ) -> None:
        """`folder`: where events are recorded; None records nothing."""
        clock = asyncio.get_running_loop().time
        self.events = events = EventLog(folder, 0, "driver", "driver", clock=clock)
        self.most_groups = 0
        self.pool = EnginePool(clock, lambda slot, why: None)
        self.engines = [Engine(f"engine-{number}") for number in range(engines)]
        for engine in self.engines:
            slot = EngineSlot(engine, "fast", LIMIT, events, version=7)
            engine.version = 7
            self.pool.add(slot)
            self.pool.join(slot)
        settings = EvaluatorSettings(samples, 100, 0, SAMPLING, kept)
        self.pool.listen(self.decide)
        responder = Responder(self.pool, events, GroupCounts)
        self.evaluator = Evaluator(sets, settings, self.pool, responder, self.score, self.decide)

    def decide(self) -> None:
        self.most_groups = max(self.most_groups, len(self.pool.router.book.groups))
        # As the rollouter's loop does, soon after.
        asyncio.get_running_loop().call_soon(self.pool.decide)

    async def score(self, prompt: Prompt, responses: Sequence[Response]) -> list[Score]:
        return [Score(float(prompt.row)) for _ in responses]

    async def run(self, version: int = 7) -> list[EvaluatedSet]:
        for engine in self.engines:
            await engine.start(7)
        return await self.evaluator.run(version)


def held_out(name: str, rows: int) -> HeldOutSet:
    return HeldOutSet(name, rows, lambda row: Prompt(row, 0, row, np.full(4, 7, np.int32)))


def test_each_prompt_of_each_set_once() -> None:
    async def main() -> None:
        site = Site([held_out("a", 5), held_out("b", 3)], samples=3, kept=4)
        first, second = await site.run()
        assert {number: [each.reward for each in found] for number, found in second.graded.items()} == {
            number: [float(number)] * 3 for number in range(3)
        }
        assert sorted(first.graded) == list(range(5))
        assert all(each.tokens == 10 and each.pinned for found in first.graded.values() for each in found)
        for found in (first, second):
            assert [(each.prompt.row, each.index) for each in found.kept] == [(0, 0), (0, 1), (0, 2), (1, 0)]
        asked = site.engines[0].asked
        assert len(asked) == 8 * 3 and {request.sampling for request in asked} == {SAMPLING}
        assert not site.pool.router.book.groups

    run_virtual(main())


def test_its_events_can_be_read_back(tmp_path: Path) -> None:
    async def main() -> None:
        site = Site([held_out("a", 2), held_out("b", 3)], folder=tmp_path)
        await site.run()
        site.events.flush()

    run_virtual(main())
    tally = Tally()
    ((_, events),) = read_steps(tmp_path, tally)
    assert (tally.unreadable, tally.first) == (0, "")
    uids = [each.extra["uid"] for each in events if each.event == "evaluate"]
    assert sorted(uids) == sorted(2 * [-5, -4, -3, -2, -1])


@pytest.mark.parametrize(("samples", "engines", "most"), [(2, 1, 4), (1, 1, 8), (2, 3, 12), (100, 1, 1)])
def test_no_more_is_under_way_than_engines_need(samples: int, engines: int, most: int) -> None:
    async def main() -> None:
        site = Site([held_out("a", 40 if samples < 100 else 3)], samples, engines=engines)
        (found,) = await site.run()
        assert len(found.graded) == (40 if samples < 100 else 3)
        assert site.most_groups == most

    run_virtual(main())


def test_the_same_seeds_in_each_evaluation() -> None:
    async def main() -> None:
        site = Site([held_out("a", 3)])
        await site.run()
        await site.evaluator.run(7)
        seeds = [(request.request_id.partition("#")[0], request.seed) for request in site.engines[0].asked]
        assert sorted(seeds[:6]) == sorted(seeds[6:]) and len(set(seeds)) == 6

    run_virtual(main())


def test_one_that_is_cancelled_leaves_nothing() -> None:
    async def main() -> None:
        site = Site([held_out("a", 20)])
        task = asyncio.create_task(site.run())
        await asyncio.sleep(0.25)
        assert site.pool.slots[0].requests
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not site.pool.router.book.groups and not site.pool.slots[0].requests
        assert site.pool.slots[0].running == 0
        assert (await site.engines[0].load_snapshot()).running == 0
        # And another one goes through.
        (found,) = await site.evaluator.run(7)
        assert len(found.graded) == 20

    run_virtual(main())


def test_tokens_of_another_version_are_told() -> None:
    async def main() -> None:
        (found,) = await Site([held_out("a", 2)]).run(version=8)
        assert [each.pinned for graded in found.graded.values() for each in graded] == [False] * 4

    run_virtual(main())
