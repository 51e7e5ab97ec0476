"""The vLLM engine while it drafts: the contract of all engines, exact probabilities and versions, and that
drafts are made where they should be and kept."""

import asyncio
import time
from collections.abc import AsyncIterator

import msgspec
import numpy as np
import pytest
import pytest_asyncio
from vllm.triton_utils import HAS_TRITON

from rljob_api.rollout import VllmEngine as VllmOptions
from rljob_runtime.engines.fake import FakeEngine
from rljob_runtime.engines.protocol import Request, Sampling
from rljob_runtime.engines.vllm import VllmEngine
from rljob_runtime.groups.counts import GroupCounts
from rljob_runtime.rollout.engine_slot import EngineSlot
from rljob_runtime.rollout.pool import EnginePool
from rljob_runtime.rollout.responder import Responder, Wanted
from rljob_runtime.rollout.sibling_texts import SiblingTexts
from rljob_runtime.routing.requests import GroupRequest
from rljob_runtime.samples import Generation, Prompt
from tests.runtime.test_engine_contract import (  # collected here too, for the engine of this file
    LENGTH,
    SLOTS,
    Subject,
    test_a_response_ends_where_the_engine_is_full,
    test_abort_returns_what_there_is_and_leaves_the_others_alone,
    test_an_aborted_response_continues_in_a_new_request,
    test_every_token_carries_the_version_it_was_sampled_from,
    test_pause_abort_returns_every_partial_response,
    test_pause_keep_stands_still_and_goes_on,
    test_pause_wait_lets_running_requests_finish,
    test_responses_that_finished_elsewhere_change_nothing_of_those_that_run,
)
from tests.support.runtime.engines import load, started
from tests.support.runtime.tiny_models import check_log_probs, published, sharp_model, vllm_device
from tests.support.simulated.watched_rollout import NotedEvents

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

__all__ = [
    "test_a_response_ends_where_the_engine_is_full",
    "test_abort_returns_what_there_is_and_leaves_the_others_alone",
    "test_an_aborted_response_continues_in_a_new_request",
    "test_every_token_carries_the_version_it_was_sampled_from",
    "test_pause_abort_returns_every_partial_response",
    "test_pause_keep_stands_still_and_goes_on",
    "test_pause_wait_lets_running_requests_finish",
    "test_responses_that_finished_elsewhere_change_nothing_of_those_that_run",
]


ON_DEVICE = HAS_TRITON
"""Whether vLLM has what its newer model runner needs, so that drafts are made on the device."""


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=[True, False] if ON_DEVICE else [True],
    ids=lambda may: "device" if may and ON_DEVICE else "cpu",
)
async def subject(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Subject]:
    folder = sharp_model(tmp_path_factory.mktemp("speculation") / "model")
    device = vllm_device()
    options = device.pop("options", VllmOptions()).model_dump(by_alias=True) | {
        "speculation": {
            "suffix": {},
            "draftTokens": 6,
            "minimumMatch": 2,
            "atMostRunning": SLOTS,
        }
    }
    engine = VllmEngine(
        "drafting", folder, Sampling(), SLOTS, LENGTH, options=VllmOptions.model_validate(options), **device,
        device_drafts=request.param,
    )  # fmt: skip
    async with started(engine, version=3) as engine:
        assert engine._live_core().drafts_on_device == (ON_DEVICE and request.param)
        yield Subject(engine, folder)


async def sharpen(subject: Subject) -> None:
    """Back to the weights that the engine began with, which make it sure of its next token."""
    version = (await subject.engine.load_snapshot()).version + 1
    published(subject.folder)
    await load(subject.engine, version, subject.folder)


async def counts(subject: Subject) -> tuple[int, int]:
    assert isinstance(subject.engine, VllmEngine)
    return await subject.engine._live_core().drafting_counts()


async def test_drafts_from_the_own_text_are_kept_and_log_probabilities_stay_the_trainer_s(
    subject: Subject,
) -> None:
    await sharpen(subject)
    drafted, kept = await counts(subject)
    asked = subject.asks(4)
    results = await asyncio.gather(*subject.launch(asked))
    now_drafted, now_kept = await counts(subject)
    assert now_kept - kept > sum(len(got.tokens) for got in results) / 4
    assert now_drafted - drafted >= now_kept - kept
    version = results[0].spans[0].version
    check_log_probs(subject.folder, {version: subject.folder}, zip(asked, results, strict=True))


async def test_drafts_come_from_finished_siblings(subject: Subject) -> None:
    """Pairs of requests go on from the same tokens: to one they are a prompt of its own, to the other the
    prompt and the first tokens of a response that finished."""
    await sharpen(subject)
    kept = {"alone": 0, "with a sibling": 0}
    surest = Sampling(temperature=0)
    # The first token of five is drawn with the prompt, without a draft.
    pairs, drafted = 12, 4
    for asked in [subject.ask(max_tokens=8) for _ in range(pairs)]:
        got = await subject.engine.submit(msgspec.structs.replace(asked, sampling=surest))
        begun = np.concatenate([asked.tokens, got.tokens[:3]])
        for case, generated in (("alone", 0), ("with a sibling", 3)):
            _, before = await counts(subject)
            again = Request(f"{asked.request_id} {case}", begun, 5, 0, generated, sampling=surest)
            await subject.engine.submit(again)
            kept[case] += (await counts(subject))[1] - before
    # Where a text goes in circles, as on some devices, its own beginning tells nearly all of it.
    left = pairs * drafted - kept["alone"]
    assert kept["with a sibling"] - kept["alone"] >= min(12, left / 2), kept


class Elsewhere(FakeEngine):
    """Says what it is told to."""

    def __init__(self, version: int) -> None:
        super().__init__("elsewhere", lambda request: request.max_tokens)
        self.version = version
        self.says = np.zeros(0, np.int32)

    async def submit(self, request: Request) -> Generation:
        return msgspec.structs.replace(await super().submit(request), tokens=self.says)


class Spread:
    """Groups of two responses, one on `elsewhere` and one on the engine of this file."""

    def __init__(self, here: VllmEngine, version: int, texts: SiblingTexts | None) -> None:
        self.here, self.elsewhere = here, Elsewhere(version)
        events = NotedEvents(time.time)
        self.pool = EnginePool(time.monotonic, lambda slot, why: pytest.fail(why))
        self.pool.listen(self.pool.decide)
        self.responder = Responder(self.pool, events, GroupCounts, texts)
        self.elsewhere._started = True
        for engine in (self.elsewhere, here):
            slot = EngineSlot(engine, "fast", 1, events, version)
            self.pool.add(slot)
            self.pool.join(slot)

    async def respond(self, prompt: Prompt, wanted: Wanted) -> None:
        """The one elsewhere is complete before the other begins here."""
        await self.here.pause("keep")
        self.pool.dispatch(GroupRequest(prompt.uid, 0, len(prompt.tokens), 2))
        self.pool.decide()
        first, second = (
            asyncio.create_task(self.responder.respond(prompt, index, wanted)) for index in range(2)
        )
        assert (await first).engine == "elsewhere"
        await self.here.resume()
        assert (await second).engine == self.here.name


async def test_drafts_come_from_siblings_that_finished_on_another_engine(subject: Subject) -> None:
    await sharpen(subject)
    assert isinstance(subject.engine, VllmEngine)
    version = (await subject.engine.load_snapshot()).version
    wanted = Wanted(8, seed=0, exact=True, sampling=Sampling(temperature=0))
    kept = {"not told": 0, "told": 0}
    for case, texts in (("not told", None), ("told", SiblingTexts(SLOTS, most_tokens=1000))):
        groups = Spread(subject.engine, version, texts)
        for uid in range(12):
            asked = subject.ask()
            # What it would say itself, which it learns as a response to another prompt.
            alone = msgspec.structs.replace(
                asked, generated=len(asked.tokens) - 1, max_tokens=8, sampling=wanted.sampling
            )
            groups.elsewhere.says = (await subject.engine.submit(alone)).tokens
            _, before = await counts(subject)
            await groups.respond(Prompt(uid, 0, 0, asked.tokens), wanted)
            kept[case] += (await counts(subject))[1] - before
    assert kept["told"] >= kept["not told"] + 24
