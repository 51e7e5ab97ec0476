"""When an engine tells how far its requests are."""

import asyncio
from collections.abc import Mapping

from rljob_runtime.engines.progress import ProgressReports


class Subject:
    """Reports every millisecond on requests that advance when they are asked."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.told: list[Mapping[str, int]] = []
        self.tells = asyncio.Event()
        self.asked = asyncio.Event()
        self.answer = asyncio.Event()
        self.answer.set()
        self.reports = ProgressReports(lambda: dict(self.counts), lambda: 7, self.catch_up)

    async def catch_up(self) -> None:
        self.asked.set()
        await self.answer.wait()
        self.counts = {name: count + 1 for name, count in self.counts.items()}

    def listen(self) -> None:
        self.reports.listen(self.tell, 0.001)

    def tell(self, counts: Mapping[str, int], prefilled: int) -> None:
        assert prefilled == 7
        self.told.append(counts)
        self.tells.set()

    async def next(self) -> Mapping[str, int]:
        async with asyncio.timeout(10):
            self.tells.clear()
            await self.tells.wait()
        return self.told[-1]


async def test_reports_are_told_after_catching_up() -> None:
    subject = Subject()
    subject.counts = {"a": 5}
    subject.listen()
    assert [await subject.next() for _ in range(3)] == [{"a": 6}, {"a": 7}, {"a": 8}]
    subject.reports.stop()


async def test_nobody_is_asked_while_nothing_runs() -> None:
    subject = Subject()
    subject.listen()
    subject.reports.wake()
    await asyncio.sleep(0.01)
    assert not subject.asked.is_set()
    subject.counts = {"a": 1}
    subject.reports.wake()
    assert await subject.next() == {"a": 2}
    subject.reports.stop()


async def test_what_pauses_while_it_is_asked_is_told_when_it_goes_on() -> None:
    subject = Subject()
    subject.counts = {"a": 1}
    subject.answer.clear()
    subject.listen()
    async with asyncio.timeout(10):
        await subject.asked.wait()
    subject.counts = {}
    subject.answer.set()
    await asyncio.sleep(0.01)
    assert subject.told == []
    subject.counts = {"a": 1}
    subject.reports.wake()
    assert await subject.next() == {"a": 2}
    subject.reports.stop()


async def test_after_a_stop_nothing_is_told() -> None:
    subject = Subject()
    subject.counts = {"a": 1}
    subject.answer.clear()
    subject.listen()
    async with asyncio.timeout(10):
        await subject.asked.wait()
    subject.reports.stop()
    subject.answer.set()
    await asyncio.sleep(0.01)
    assert subject.told == []
