"""Responses on one engine and another, in virtual time."""

import asyncio
from typing import Any

import numpy as np
import pytest

from rljob_runtime.data.forced_lengths import ForcedLengths
from rljob_runtime.engines.protocol import Request
from rljob_runtime.groups.responses import response_of
from rljob_runtime.rollout.engine_slot import EngineSlot
from rljob_runtime.routing.probe import ProbePolicy, ProbeSettings
from rljob_runtime.samples import Generation, Span
from rljob_runtime.simulate.virtual_loop import run_virtual
from tests.support.simulated.watched_rollout import WatchedEngine, WatchedRollout


def test_requests_of_a_new_response_hold_the_prompts_own_tokens() -> None:
    async def main() -> None:
        async with WatchedRollout((8,), 8) as job:
            await asyncio.sleep(1)
            given = job.engines[0].given
            assert len(given) == 8 and len({id(request.tokens) for request in given}) == 1

    run_virtual(main())


def test_a_response_goes_on_elsewhere_with_the_tokens_it_has() -> None:
    async def main() -> None:
        async with WatchedRollout((1, 1), 1, length=10, prompts=1) as job:
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
        async with WatchedRollout((1, 1), 1, length=10, prompts=1) as job:
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
        async with WatchedRollout((1, 1), 3, length=10, prompts=1) as job:
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
    [(10, 100, "stop", 10), (10, 10, "stop", 10), (20, 10, "length", 10), (0, 10, "stop", 0)],
)
def test_the_most_tokens_end_a_response(length: int, most_tokens: int, finish: str, tokens: int) -> None:
    async def main() -> None:
        async with WatchedRollout((1,), 1, length=length, most_tokens=most_tokens, prompts=1) as job:
            await asyncio.sleep(50)
            (sample,) = job.groups[0].samples
            assert (sample.finish, len(sample.tokens)) == (finish, tokens)

    run_virtual(main())


def test_forced_lengths_are_reached_whatever_the_model_and_the_engines_do() -> None:
    """Lengths 3 and 20, of a model that ends each response after 10 tokens: the second response moves with
    its tokens, and goes on from there when its next engine dies."""

    async def main() -> None:
        forced = ForcedLengths(np.array([[3, 20]], np.int32))
        async with WatchedRollout((2,), 2, length=10, most_tokens=50, prompts=1, forced=forced) as job:
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
        job = WatchedRollout((), 1, length=20, most_tokens=10, prompts=1)
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
                "versions": [0, 0],
            }  # fmt: skip

    run_virtual(main())


@pytest.mark.parametrize("restart", [True, False])
def test_probe_and_siblings_are_one_group_whatever_engines_they_ran_on(restart: bool) -> None:
    """Five groups; the probe of group 2 has 20 tokens and those of the others 5, so that the cap is 30. The
    last response of group 4 has 60: it trips at 40, and goes to the heavy engine."""

    async def main() -> None:
        policy = ProbePolicy(ProbeSettings(5, restart=restart))
        lengths = {(2, 0): 20, (4, 3): 60}
        async with WatchedRollout((20, 20), 4, prompts=5, policy=policy, pools=("fast", "heavy")) as job:
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
