"""Which engines hear of which finished responses, and when: in a rollout in virtual time, one token a second,
where the least loaded engine gets the next request."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from rljob_api.rollout import Speculation
from rljob_runtime.data.forced_lengths import ForcedLengths
from rljob_runtime.rollout.engine_slot import EngineSlot
from rljob_runtime.rollout.sibling_texts import MOST_TOKENS, News, SiblingTexts, sibling_texts
from rljob_runtime.routing.requests import RequestKey
from rljob_runtime.samples import Prompt
from rljob_runtime.simulate.virtual_loop import run_virtual
from tests.support.simulated.watched_rollout import Heard, WatchedRollout


def suffix(at_most_running: int, kept_tokens: int = 1000) -> Speculation:
    return Speculation.model_validate(
        {"suffix": {"keptTokens": kept_tokens}, "atMostRunning": at_most_running}
    )


def rollout(
    lengths: Sequence[Sequence[int]], speculation: Speculation | None, limits: Sequence[int] = (2, 2)
) -> WatchedRollout:
    """Groups with responses of these lengths."""
    forced = ForcedLengths(np.array(lengths, np.int32))
    prompts, samples = len(lengths), len(lengths[0])
    return WatchedRollout(limits, samples, prompts=prompts, forced=forced, speculation=speculation)


def heard(job: WatchedRollout) -> list[list[tuple[float, int, tuple[int, ...]]]]:
    """By engine: when it heard of which group, and lengths of the responses."""
    return [[(one.at, one.uid, one.lengths) for one in engine.heard] for engine in job.engines]


# Responses 0 and 2 are on engine 0, responses 1 and 3 on engine 1.
@pytest.mark.parametrize(
    ("lengths", "speculation", "expected"),
    [
        # At 3 s engine 0 still runs one, and has finished that response itself.
        ([[3, 20, 30, 40]], suffix(2), [[(20.0, 0, (20,))], [(3.0, 0, (3,)), (30.0, 0, (30,))]]),
        # Engine 1 runs two until 20 s: then it hears of all that came before.
        ([[3, 20, 5, 40]], suffix(1), [[], [(20.0, 0, (3, 5))]]),
        # Two groups of two, each spread over both engines.
        (
            [[3, 20], [10, 12]],
            suffix(2),
            [[], [(3.0, 0, (3,)), (10.0, 1, (10,))]],
        ),
        # One is on an engine that runs nothing of the other's group.
        ([[3, 4], [20, 30]], suffix(1), [[], [(20.0, 1, (20,))]]),
        ([[3, 20, 30, 40]], Speculation.model_validate({"ngram": {}}), [[], []]),
        ([[3, 20, 30, 40]], None, [[], []]),
    ],
    ids=[
        "while few run", "once few run", "two groups", "nothing of its group",
        "from the own text alone", "no drafts",
    ],
)  # fmt: skip
def test_engines_hear_of_siblings_that_finished_elsewhere(
    lengths: Any, speculation: Speculation | None, expected: Any
) -> None:
    async def main() -> None:
        async with rollout(lengths, speculation) as job:
            await asyncio.sleep(50)
            assert len(job.groups) == len(lengths)
            assert heard(job) == expected

    run_virtual(main())


def test_one_that_moves_is_told_of_before_it_is_submitted() -> None:
    async def main() -> None:
        async with rollout([[3, 20, 5]], suffix(2), limits=(3, 3)) as job:
            # Engine 0 has finished both others.
            await asyncio.sleep(10)
            job.engines[1].heard.clear()
            job.engines[0].given.clear()
            await job.pool.clear(job.slots[1], 60)
            await asyncio.sleep(1)
            assert len(job.engines[0].given) == 1 and job.engines[0].heard == []
            newcomer = job.add(3)
            await job.pool.clear(job.slots[0], 60)
            await asyncio.sleep(1)
            engine: Any = newcomer.engine
            assert engine.heard == [Heard(pytest.approx(11), 0, (3, 5), given=0)]
            assert len(engine.given) == 1
            await asyncio.sleep(20)
            assert len(job.groups) == 1

    run_virtual(main())


def test_an_engine_that_stands_still_hears_nothing_and_later_all() -> None:
    async def main() -> None:
        async with rollout([[3, 20, 5, 40]], suffix(8)) as job:
            await asyncio.sleep(1)
            job.pool.leave(job.slots[1])
            await asyncio.sleep(9)
            assert heard(job) == [[], []]
            job.pool.join(job.slots[1])
            await asyncio.sleep(40)
            assert heard(job) == [[], [(20.0, 0, (3, 5))]]

    run_virtual(main())


def group_of(texts: SiblingTexts, samples: int, slot: EngineSlot, uid: int = 7) -> list[RequestKey]:
    """A group of which `slot` runs response 0."""
    prompt = Prompt(uid, 0, 0, np.full(2, uid, np.int32))
    for _ in range(samples):
        texts.begin(prompt)
    keys = [RequestKey(uid, sample) for sample in range(samples)]
    texts.placed(keys[0], slot)
    return keys


def slot() -> EngineSlot:
    nothing: Any = None
    return EngineSlot(nothing, "fast", 8, nothing, joined=True, running=1)


def finish(texts: SiblingTexts, key: RequestKey, where: EngineSlot, tokens: int) -> list[News]:
    texts.placed(key, where)
    found = texts.finished(key, np.full(tokens, key.sample, np.int32))
    texts.end(key)
    return found


def lengths_of(found: list[News]) -> list[int]:
    return [len(response) // 4 for news in found for _, response in news.texts]


@pytest.mark.parametrize(
    ("finished", "told"),
    [([4, 6], [4, 6]), ([4, 6, 1], [6, 1]), ([2, 11], []), ([11, 2], [2]), ([], [])],
    ids=["as many as fit", "the newest", "longer than all", "an older one is longer", "none"],
)
def test_of_one_group_it_is_a_bounded_number_of_tokens(finished: list[int], told: list[int]) -> None:
    texts, here, elsewhere = SiblingTexts(8, most_tokens=10), slot(), slot()
    here.running = 9
    key, *others = group_of(texts, 1 + len(finished), here)
    for other, tokens in zip(others, finished, strict=True):
        assert finish(texts, other, elsewhere, tokens) == []
    here.running = 8
    assert lengths_of(texts.placed(key, here)) == told
    assert texts.placed(key, here) == [], "each of them once"


@pytest.mark.parametrize("kept", [10, 2 * MOST_TOKENS])
def test_no_more_than_engines_keep(kept: int) -> None:
    texts, here, elsewhere = sibling_texts(suffix(8, kept_tokens=kept)), slot(), slot()
    assert texts is not None
    _, longer, fits = group_of(texts, 3, here)
    most = min(kept, MOST_TOKENS)
    assert lengths_of(finish(texts, longer, elsewhere, most + 1)) == []
    assert lengths_of(finish(texts, fits, elsewhere, most)) == [most]


@pytest.mark.parametrize(
    "last",
    [
        lambda texts, key: texts.finished(key, np.zeros(3, np.int32)),
        lambda texts, key: texts.left(key),
        lambda texts, key: None,
    ],
    ids=["complete", "waits for another engine", "on an engine"],
)
def test_nothing_is_kept_of_a_group_that_is_over(last: Callable[[SiblingTexts, RequestKey], Any]) -> None:
    texts, here = SiblingTexts(8, 100), slot()
    key, other = group_of(texts, 2, here)
    finish(texts, other, here, 5)
    assert texts._groups
    last(texts, key)
    texts.end(key)
    assert not texts._groups
