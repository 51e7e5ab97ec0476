"""From prompts to groups, in virtual time: when a prompt is dispatched, and how its responses end."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import count, cycle
from typing import Any

import numpy as np
import pytest

from rljob_runtime.data.forced_lengths import ForcedLengths
from rljob_runtime.engines.fake import FakeEngine, FakeTiming
from rljob_runtime.engines.protocol import Request
from rljob_runtime.groups.ledger import Ledger
from rljob_runtime.groups.responses import Response, response_of
from rljob_runtime.groups.staleness import Bound, StalenessController
from rljob_runtime.groups.state import RolloutSettings
from rljob_runtime.rollout.pool import EnginePool, EngineSlot
from rljob_runtime.rollout.rollouter import Rollouter
from rljob_runtime.routing.policy import Policy
from rljob_runtime.routing.probe import ProbePolicy, ProbeSettings
from rljob_runtime.samples import Generation, Group, Prompt, Span
from rljob_runtime.simulate.virtual_loop import run_virtual
from rljob_runtime.trace.record.event_log import EventLog


class NotedEvents(EventLog):
    """Keeps events in memory."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(None, 0, "driver", "driver", clock=clock)
        self.noted: list[tuple[str, float, float, dict[str, Any]]] = []

    def add(self, event: str, step: int, start: float, duration: float, **extra: Any) -> None:
        self.noted.append((event, start, duration, extra))


class WatchedEngine(FakeEngine):
    """One token a second; notes what it is given and what is aborted."""

    def __init__(self, name: str, limit: int, length: int) -> None:
        super().__init__(name, lambda request: length, limit, FakeTiming(step_seconds=1.0))
        self.given: list[Request] = []
        self.aborted: list[str] = []

    async def submit(self, request: Request) -> Generation:
        self.given.append(request)
        return await super().submit(request)

    async def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)
        await super().abort(request_id)


class Rollout:
    """A rollouter with engines that have joined; `groups` are those that it put."""

    def __init__(
        self,
        limits: Sequence[int] = (2,),
        samples: int = 2,
        length: int = 10,
        most_tokens: int = 100,
        admitted: int = 100,
        prompts: int = 100,
        policy: Policy | None = None,
        pools: Sequence[str] = ("fast",),
        forced: ForcedLengths | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.length = length
        self.events = NotedEvents(loop.time)
        self.groups: list[Group] = []
        self.fetched: list[int] = []
        self.lost: list[str] = []
        self.scores: Callable[[Prompt, Sequence[Response]], Awaitable[Any]] = self._ones
        self.pool = EnginePool(loop.time, lambda slot, why: self.lost.append(why), policy)
        self.controller = StalenessController(Bound(0, admitted), 1000)
        self.ledger = Ledger()
        self.rollouter = Rollouter(
            RolloutSettings(samples, most_tokens, 0, forced), self.pool, self.controller, self._prompt,
            self.ledger, iter(range(prompts)), self._score, self._put, self.events,
        )  # fmt: skip
        self.slots = [self.add(limit, pool) for limit, pool in zip(limits, cycle(pools), strict=False)]
        self.running: asyncio.Task[None] | None = None

    def add(self, limit: int, pool: str = "fast") -> EngineSlot:
        engine = WatchedEngine(f"engine-{len(self.pool.slots)}", limit, self.length)
        engine._started = True
        slot = EngineSlot(engine, pool, limit, self.events)
        self.pool.add(slot)
        self.pool.join(slot)
        return slot

    @property
    def engines(self) -> list[Any]:
        return [slot.engine for slot in self.slots]

    @property
    def dispatched(self) -> int:
        return self.rollouter.counts.dispatched

    async def __aenter__(self) -> "Rollout":
        self.running = asyncio.ensure_future(self.rollouter.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self.running is not None
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)
        assert [slot.running for slot in self.slots] == [0] * len(self.slots), "every request was released"
        assert [slot.requests for slot in self.slots] == [{}] * len(self.slots), "none is taken for running"

    def _prompt(self, uid: int) -> Prompt:
        self.fetched.append(uid)
        return Prompt(uid=uid, epoch=0, row=uid, tokens=np.full(4, uid, np.int32))

    async def _ones(self, prompt: Prompt, responses: Sequence[Response]) -> list[tuple[float, str | None]]:
        return [(1.0, None) for _ in responses]

    async def _score(self, prompt: Prompt, responses: Sequence[Response]) -> Any:
        return await self.scores(prompt, responses)

    async def _put(self, group: Group) -> None:
        self.groups.append(group)


@pytest.mark.parametrize(
    ("limits", "samples", "admitted", "dispatched"),
    [
        ((1,), 1, 100, 1),
        ((3,), 1, 100, 3),
        ((2,), 2, 100, 1),
        ((3,), 2, 100, 2),
        ((4,), 2, 100, 2),
        ((5,), 4, 100, 2),
        ((1, 1, 1), 2, 100, 2),
        ((64,), 2, 5, 5),
        ((64, 64), 8, 100, 16),
    ],
)
@pytest.mark.parametrize("pokes", [0, 20], ids=["left alone", "woken in every turn"])
def test_as_many_prompts_are_dispatched_as_engines_can_begin(
    limits: tuple[int, ...], samples: int, admitted: int, dispatched: int, pokes: int
) -> None:
    """Woken while the newest requests have yet to ask for their engines, it dispatches none either."""

    async def main() -> None:
        async with Rollout(limits, samples, admitted=admitted) as job:
            for _ in range(pokes):
                job.rollouter.poke()
                await asyncio.sleep(0)
            await asyncio.sleep(5)
            assert job.dispatched == dispatched
            assert job.fetched == list(range(dispatched)), "in order"

    run_virtual(main())


def test_a_prompt_is_dispatched_as_soon_as_an_engine_can_begin() -> None:
    async def main() -> None:
        async with Rollout((2,), 2, length=10) as job:
            seen = []
            for second in (5, 10.5, 15, 20.5):
                await asyncio.sleep(second - asyncio.get_running_loop().time())
                seen.append((job.dispatched, len(job.groups)))
            assert seen == [(1, 0), (2, 1), (2, 1), (3, 2)]

    run_virtual(main())


def test_all_prompts_then_nothing() -> None:
    async def main() -> None:
        async with Rollout((4,), 2, prompts=3) as job:
            await asyncio.sleep(100)
            assert sorted(group.uid for group in job.groups) == [0, 1, 2]
            counts = job.rollouter.counts
            assert (counts.dispatched, counts.accepted, counts.open) == (3, 3, 0)

    run_virtual(main())


def test_no_engine_no_prompt() -> None:
    async def main() -> None:
        async with Rollout(()) as job:
            await asyncio.sleep(5)
            assert job.dispatched == 0
            job.add(2)
            await asyncio.sleep(5)
            assert job.dispatched == 1

    run_virtual(main())


def test_waiting_for_admission_while_engines_have_room_is_recorded() -> None:
    async def main() -> None:
        async with Rollout((4,), 2, length=10, admitted=1) as job:
            await asyncio.sleep(30)
            job.controller.finished([0])
            job.rollouter.poke()
            await asyncio.sleep(0.5)
            waits = [event[1:3] for event in job.events.noted if event[0] == "admission_wait"]
            assert job.dispatched == 1 and waits == [], "S = 0 admits the next version's groups only"
            job.pool.leave(job.slots[0])
            job.pool.loaded(job.slots[0], 1)
            job.pool.join(job.slots[0])
            await asyncio.sleep(0.5)
            waits = [event[1:3] for event in job.events.noted if event[0] == "admission_wait"]
            # From the moment in which the first group's two requests had asked, two more could have begun.
            assert job.dispatched == 2 and waits == [(0.0, 30.5)]

    run_virtual(main())


def test_requests_of_a_new_response_hold_the_prompts_own_tokens() -> None:
    async def main() -> None:
        async with Rollout((8,), 8) as job:
            await asyncio.sleep(1)
            given = job.engines[0].given
            assert len(given) == 8 and len({id(request.tokens) for request in given}) == 1

    run_virtual(main())


# How a response ends


def test_a_response_goes_on_elsewhere_with_the_tokens_it_has() -> None:
    async def main() -> None:
        async with Rollout((1, 1), 1, length=10, prompts=1) as job:
            first, second = job.engines
            await asyncio.sleep(4.5)
            await job.pool.clear(job.slots[0], 60)
            await asyncio.sleep(10)
            (request,) = second.given
            assert (request.generated, len(request.tokens), request.max_tokens) == (4, 8, 96)
            assert request.seed == first.given[0].seed and request.request_id != first.given[0].request_id
            (group,) = job.groups
            assert len(group.samples[0].tokens) == 10 and group.samples[0].finish == "stop"
            assert group.samples[0].engine == "engine-1" and group.samples[0].seconds == pytest.approx(10.5)
            assert (job.rollouter.counts.continued_requests, job.rollouter.counts.moved_requests) == (1, 0)
            generated = [event for event in job.events.noted if event[0] == "generate"]
            assert [event[1:3] for event in generated] == [(0.0, 4.5), (4.5, 6.0)]
            assert [(e["tokens"], e["length"], e["finish"]) for *_, e in generated] == [
                (4, 4, "abort"),
                (6, 10, "stop"),
            ]

    run_virtual(main())


def test_a_response_begins_again_when_its_engine_dies() -> None:
    async def main() -> None:
        async with Rollout((1, 1), 1, length=10, prompts=1) as job:
            await asyncio.sleep(4.5)
            job.engines[0].die("killed")
            await asyncio.sleep(11)
            assert job.lost == ["engine engine-0: killed"]
            assert [request.generated for request in job.engines[1].given] == [0]
            assert len(job.groups[0].samples[0].tokens) == 10
            assert (job.rollouter.counts.continued_requests, job.rollouter.counts.moved_requests) == (0, 1)

    run_virtual(main())


def test_one_that_was_placed_on_an_engine_that_leaves_meanwhile_goes_elsewhere() -> None:
    async def main() -> None:
        async with Rollout((1, 1), 3, length=10, prompts=1) as job:
            leaving, decide = job.slots[0], job.pool.decide

            def then_leave() -> bool:
                placed = decide()
                if job.engines[0].given and leaving.running and not leaving.requests and not leaving.leaving:
                    # The third request was placed on it, and has not been submitted.
                    leaving.leaving = True
                    job.pool.leave(leaving)
                return placed

            job.pool.decide = then_leave  # type: ignore[method-assign]
            await asyncio.sleep(25)
            assert [len(engine.given) for engine in job.engines] == [1, 2]
            assert leaving.running == 0 and len(job.groups) == 1

    run_virtual(main())


@pytest.mark.parametrize(
    ("length", "most_tokens", "finish", "tokens"),
    [(10, 100, "stop", 10), (10, 10, "stop", 10), (20, 10, "length", 10)],
)
def test_the_most_tokens_end_a_response(length: int, most_tokens: int, finish: str, tokens: int) -> None:
    async def main() -> None:
        async with Rollout((1,), 1, length=length, most_tokens=most_tokens, prompts=1) as job:
            await asyncio.sleep(50)
            (sample,) = job.groups[0].samples
            assert (sample.finish, len(sample.tokens)) == (finish, tokens)

    run_virtual(main())


def test_forced_lengths_are_reached_whatever_the_model_and_the_engines_do() -> None:
    """Lengths 3 and 20, of a model that ends each response after 10 tokens: the second response moves with
    its tokens, and goes on from there when its next engine dies."""

    async def main() -> None:
        forced = ForcedLengths(np.array([[3, 20]], np.int32))
        async with Rollout((2,), 2, length=10, most_tokens=50, prompts=1, forced=forced) as job:
            (first,) = job.engines
            await asyncio.sleep(12.5)
            second: Any = job.add(1).engine
            await job.pool.clear(job.slots[0], 60)
            await asyncio.sleep(2)
            assert [(request.generated, request.max_tokens) for request in second.given] == [(12, 8)]
            second.die("killed")
            third: Any = job.add(1).engine
            await asyncio.sleep(9)
            assert [(request.generated, request.max_tokens) for request in third.given] == [(12, 8)]
            assert all(request.exact for engine in (first, second, third) for request in engine.given)
            assert [(each.finish, len(each.tokens)) for each in job.groups[0].samples] == [
                ("length", 3), ("length", 20),
            ]  # fmt: skip

    run_virtual(main())


def test_one_that_is_aborted_with_all_its_tokens_is_complete() -> None:
    """Asking for none more would be refused."""

    class Late(WatchedEngine):
        async def submit(self, request: Request) -> Generation:
            generation = await super().submit(request)
            return Generation(
                generation.request_id, generation.tokens, generation.log_probs, generation.spans, "abort"
            )

    async def main() -> None:
        job = Rollout((), 1, length=20, most_tokens=10, prompts=1)
        engine = Late("late", 1, 20)
        engine._started = True
        slot = EngineSlot(engine, "fast", 1, job.events)
        job.pool.add(slot)
        job.pool.join(slot)
        async with job:
            await asyncio.sleep(50)
            assert job.groups[0].samples[0].finish == "length" and len(engine.given) == 1
            (event,) = [event for event in job.events.noted if event[0] == "generate"]
            assert event[1:3] == (0.0, 10.0)
            assert event[3] | {"request": ""} == {
                "uid": 0, "request": "", "tokens": 10, "length": 10, "finish": "length",
            }  # fmt: skip

    run_virtual(main())


def test_a_reward_that_failed_is_counted_by_its_kind() -> None:
    async def main() -> None:
        async with Rollout((4,), 4, prompts=1) as job:

            async def scores(prompt: Prompt, responses: Sequence[Response]) -> list[tuple[float, str | None]]:
                return [
                    (0.5, None),
                    (0.0, "timeout after 3 s"),
                    (0.0, "error: ValueError"),
                    (0.0, "error: KeyError"),
                ]

            job.scores = scores
            await asyncio.sleep(20)
            samples = job.groups[0].samples
            assert [sample.reward for sample in samples] == [0.5, 0.0, 0.0, 0.0]
            assert [sample.failure is None for sample in samples] == [True, False, False, False]
            assert job.rollouter.counts.rejected == {"timeout": 1, "error": 2}

    run_virtual(main())


def test_a_put_group_is_ready_and_wakes_whoever_waits_for_groups() -> None:
    async def main() -> None:
        async with Rollout((1,), 1, length=10, prompts=1) as job:
            await job.rollouter.group_ready.wait()
            assert asyncio.get_running_loop().time() == 10
            assert (job.controller.ready, job.controller.outstanding) == (1, 1)
            assert job.groups[0].dispatch_version == 0

    run_virtual(main())


@pytest.mark.parametrize("where", ["prompt", "scores", "engine"])
def test_an_unexpected_error_ends_the_run(where: str) -> None:
    async def main() -> None:
        job = Rollout((2,), 2)

        async def broken(*_: Any) -> Any:
            raise ZeroDivisionError(where)

        def broken_now(*_: Any) -> Any:
            raise ZeroDivisionError(where)

        if where == "prompt":
            job.rollouter._prompts = broken_now
        elif where == "scores":
            job.scores = broken
        else:
            job.engines[0].submit = broken
        with pytest.raises(ExceptionGroup) as caught:
            async with asyncio.timeout(60):
                await job.rollouter.run()
        assert caught.group_contains(ZeroDivisionError)

    run_virtual(main())


# Hold and restart


@pytest.mark.parametrize("turns", range(8))
def test_hold_at_any_moment_ends_every_request_once_and_restart_begins_anew(turns: int) -> None:
    """`turns`: how many turns of the loop the newest group has had; at first its requests have not asked for
    an engine, then some of them have."""

    async def main() -> None:
        async with Rollout((2, 2, 2), 4, length=10) as job:
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
        async with Rollout((2, 3, 2), 4, length=10) as job:
            await asyncio.sleep(5)
            given = [[request.request_id for request in engine.given] for engine in job.engines]
            assert [len(requests) for requests in given] == [2, 3, 2]
            await job.rollouter.hold("asked")
            assert [sorted(engine.aborted) for engine in job.engines] == [sorted(each) for each in given]

    run_virtual(main())


def test_hold_ends_groups_that_wait_for_their_reward() -> None:
    async def main() -> None:
        async with Rollout((2,), 2, length=10) as job:

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
        async with Rollout((2,), 2, length=10) as job:
            await asyncio.sleep(25)
            await job.rollouter.hold("asked")
            counts = job.rollouter.counts
            assert [group.uid for group in job.groups] == [0, 1]
            assert (counts.dispatched, counts.accepted, counts.cancelled) == (3, 2, {"asked": 1})

    run_virtual(main())


def test_restart_without_hold_is_refused() -> None:
    async def main() -> None:
        async with Rollout() as job:
            await asyncio.sleep(1)
            with pytest.raises(RuntimeError, match="1 groups of the state before are under way"):
                job.rollouter.restart(job.controller, Ledger(), count())

    run_virtual(main())


@pytest.mark.parametrize("restart", [True, False])
def test_probe_and_siblings_are_one_group_whatever_engines_they_ran_on(restart: bool) -> None:
    """Five groups; the probe of group 2 has 20 tokens and those of the others 5, so that the cap is 30. The
    last response of group 4 has 60: it trips at 40, and goes to the heavy engine."""

    async def main() -> None:
        policy = ProbePolicy(ProbeSettings(5, restart=restart))
        lengths = {(2, 0): 20, (4, 3): 60}
        async with Rollout((20, 20), 4, prompts=5, policy=policy, pools=("fast", "heavy")) as job:
            for engine in job.engines:
                engine._length_of = lambda request: lengths.get(response(request), 5)
            fast, heavy = job.slots
            await asyncio.sleep(10)
            assert {response(request) for request in fast.engine.given} == {(uid, 0) for uid in range(5)}
            assert not job.groups, "a probe alone is no group"
            await asyncio.sleep(20)
            assert {response(request)[0] for request in heavy.engine.given} == {2}
            assert sorted(group.uid for group in job.groups) == [0, 1, 2, 3]
            await asyncio.sleep(30.5)
            (running,) = fast.requests
            job.pool.progressed(fast, {running: 40})
            await asyncio.sleep(70)
            (group,) = job.groups[4:]
            assert [len(sample.tokens) for sample in group.samples] == [5, 5, 5, 60]
            assert [sample.engine for sample in group.samples] == ["engine-0"] * 3 + ["engine-1"]
            assert [sample.spans for sample in group.samples] == [(Span(0, 0, n),) for n in (5, 5, 5, 60)]
            assert heavy.engine.given[-1].generated == (0 if restart else 40)
            counts = job.rollouter.counts
            assert counts.rerouted_requests == counts.continued_requests == 1
            assert (counts.restarted_requests, counts.dropped_tokens) == ((1, 40) if restart else (0, 0))
            assert counts.heavy_tokens == 3 * 5 + (60 if restart else 20)
            assert counts.fast_tokens == (20 + 4 * 5) + 3 * 3 * 5 + (2 * 5 + 40)

    run_virtual(main())


def response(request: Request) -> tuple[int, int]:
    """The group and the number of the response that a request is an attempt at."""
    uid, _, index = response_of(request.request_id).partition(".")
    return int(uid), int(index)
