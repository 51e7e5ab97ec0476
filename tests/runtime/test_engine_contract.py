"""What `engines.protocol` promises, held by every engine."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest
import pytest_asyncio

from rljob_runtime.engines.fake import FakeEngine
from rljob_runtime.engines.protocol import Engine, EngineDied, Request, Sampling
from rljob_runtime.engines.vllm import VllmEngine
from rljob_runtime.samples import Generation, Span, spans_cover
from rljob_runtime.weights.shm import WeightsGone
from tests.support.runtime.engines import (
    fake_engine,
    fed_engine,
    joint_engine,
    staged_engine,
    started,
    torch_engine,
    vllm_engine,
)
from tests.support.runtime.plain_linear import plain_linear
from tests.support.runtime.tiny_models import (
    VOCABULARY,
    check_log_probs,
    perturbed,
    published,
    request,
    tiny_model,
    weights_at,
)

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

SLOTS, LENGTH, RESPONSE = 32, 256, 200
STOPS = Sampling(stop_token_ids=tuple(range(VOCABULARY // 2)))
"""Half of all tokens end a response, unless its request is `exact`, as those of these tests are."""


ENGINES: dict[str, Callable[..., Engine]] = {
    "fake": fake_engine,
    "torch": torch_engine,
    "torch, fed over tcp": fed_engine,
    "torch, two that are one": joint_engine,
    "vllm": vllm_engine,
    "vllm, staged": staged_engine,
}


@dataclass
class Subject:
    engine: Engine
    folder: Path
    made: int = 0

    def ask(self, max_tokens: int = RESPONSE, exact: bool = True) -> Request:
        self.made += 1
        return request(f"r{self.made}", self.made, max_tokens=max_tokens, exact=exact)

    def asks(self, count: int) -> list[Request]:
        return [self.ask() for _ in range(count)]

    def launch(self, asked: list[Request]) -> list["asyncio.Task[Generation]"]:
        return [asyncio.create_task(self.engine.submit(one)) for one in asked]

    async def generated(self) -> int:
        return (await self.engine.load_snapshot()).generated_tokens

    async def under_way(self, before: int, tokens: int) -> None:
        """Wait until `tokens` more than `before` were generated."""
        async with asyncio.timeout(30):
            while await self.generated() < before + tokens:  # noqa: ASYNC110 - progress is told when asked
                await asyncio.sleep(0.002)

    async def has_a_token(self, asked: Request) -> None:
        """Wait until this one has: those that others have say nothing of it where several engines are one."""
        has = asyncio.Event()
        self.engine.on_progress(lambda tokens, _: has.set() if tokens.get(asked.request_id) else None, 0.005)
        async with asyncio.timeout(30):
            await has.wait()

    def new_weights(self, version: int) -> Path:
        folder = self.folder.parent / f"v{version}"
        return folder if folder.exists() else perturbed(self.folder, folder, seed=version)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=list(ENGINES))
async def subject(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Subject]:
    folder = tiny_model(tmp_path_factory.mktemp("contract") / "model")
    make = ENGINES[request.param]
    with ExitStack() as stack:
        if make is staged_engine:
            stack.enter_context(plain_linear(folder.parent / "plugin"))
        async with started(make(folder, sampling=STOPS, slots=SLOTS, length=LENGTH), version=3) as engine:
            yield Subject(engine, folder)


def check_whole(asked: Request, got: Generation) -> None:
    assert got.request_id == asked.request_id
    assert len(got.tokens) == len(got.log_probs) <= asked.max_tokens
    assert got.tokens.dtype == np.int32
    assert got.log_probs.dtype == np.float32
    assert spans_cover(got.spans, len(got.tokens))


def check_timing(got: Generation, paused: float, whole: float) -> None:
    """Its phases are all of its time, of which its engine stood still for `paused` seconds, and computed its
    KV cache anew afterwards, which is no pre-emption."""
    assert got.timing is not None
    phases = msgspec.structs.asdict(got.timing)
    assert phases.pop("preemptions") == 0
    assert min(phases.values()) >= 0
    assert paused <= phases["paused"] <= sum(phases.values()) <= whole
    assert min(phases["prefill"], phases["decode"], phases["recomputed"]) > 0
    assert phases["preempted"] == 0


async def test_start_sets_the_version(subject: Subject) -> None:
    snapshot = await subject.engine.load_snapshot()
    assert (snapshot.version, snapshot.running, snapshot.paused) == (3, 0, False)
    # What vLLM's KV cache holds depends on its memory, in whole blocks.
    assert snapshot.kv_tokens is not None
    assert snapshot.kv_tokens % 16 == 0 and snapshot.kv_tokens >= SLOTS * LENGTH


async def test_a_submit_ends_with_a_response_of_the_length_asked_for(subject: Subject) -> None:
    asked, before = subject.ask(max_tokens=20), await subject.generated()
    got = await subject.engine.submit(asked)
    check_whole(asked, got)
    assert (len(got.tokens), got.finish, got.spans) == (20, "length", (Span(3, 0, 20),))
    assert await subject.generated() == before + 20


async def test_a_stop_token_ends_a_response_unless_its_length_is_given(subject: Subject) -> None:
    free = [subject.ask(max_tokens=40, exact=False) for _ in range(8)]
    given = [subject.ask(max_tokens=40) for _ in range(8)]
    results = await asyncio.gather(*subject.launch(free + given))
    for asked, got in zip(free, results[:8], strict=True):
        check_whole(asked, got)
        assert (got.finish, len(got.tokens) < 40) == ("stop", True)
    for asked, got in zip(given, results[8:], strict=True):
        check_whole(asked, got)
        assert (got.finish, len(got.tokens)) == ("length", 40)
    if not isinstance(subject.engine, FakeEngine):
        stops = [np.isin(got.tokens, STOPS.stop_token_ids) for got in results]
        assert all(found[-1] and not found[:-1].any() for found in stops[:8])
        assert all(found[:-1].any() for found in stops[8:])


async def test_progress_is_told_while_requests_run(subject: Subject) -> None:
    """Counts never fall and never go beyond the response; nothing is told during a pause, nor at the end."""
    told: list[Mapping[str, int]] = []
    subject.engine.on_progress(lambda tokens, _: told.append(dict(tokens)), 0.01)
    asked, before = subject.asks(4), await subject.generated()
    tasks = subject.launch(asked)
    await subject.under_way(before, 4 * 100)
    await subject.engine.pause("keep")
    await asyncio.sleep(0.05)
    during = len(told)
    await asyncio.sleep(0.1)
    assert len(told) == during
    await subject.engine.resume()
    await asyncio.gather(*tasks)
    await asyncio.sleep(0.05)
    after = len(told)
    await asyncio.sleep(0.1)
    assert len(told) == after > during > 0
    for one in asked:
        counts = [tokens[one.request_id] for tokens in told if one.request_id in tokens]
        assert counts == sorted(counts) and counts[-1] > counts[0]
        assert counts[-1] <= RESPONSE
    assert set().union(*told) == {one.request_id for one in asked}


async def test_what_was_prefilled_is_told_with_progress(subject: Subject) -> None:
    """Never less than before, and of each request once, when it has a token; of an engine in which no request
    waits for the prefill of another: nothing. vLLM has parts of prompts in its cache."""
    told: list[int] = []
    subject.engine.on_progress(lambda _, prefilled: told.append(prefilled), 0.01)
    await asyncio.gather(*subject.launch(subject.asks(4)))
    before, asked = told[-1], subject.asks(4)
    tasks = subject.launch(asked)
    await subject.under_way(await subject.generated(), 4 * 50)
    # Their KV cache is computed anew.
    await subject.engine.pause("keep")
    await subject.engine.resume()
    await asyncio.gather(*tasks)
    assert told == sorted(told)
    prompts = sum(len(one.tokens) for one in asked)
    if isinstance(subject.engine, VllmEngine):
        assert 0 < told[-1] - before <= prompts
    else:
        assert told[-1] - before == (prompts if isinstance(subject.engine, FakeEngine) else 0)


async def test_more_requests_than_slots_all_end(subject: Subject) -> None:
    asked = [subject.ask(max_tokens=5 + count % 7) for count in range(3 * SLOTS)]
    for one, got in zip(asked, await asyncio.gather(*subject.launch(asked)), strict=True):
        check_whole(one, got)
        assert len(got.tokens) == one.max_tokens


async def test_abort_returns_what_there_is_and_leaves_the_others_alone(subject: Subject) -> None:
    asked = subject.asks(4)
    tasks = subject.launch(asked)
    await subject.has_a_token(asked[1])
    await subject.engine.abort("unknown")
    await subject.engine.abort(asked[1].request_id)
    cut = await tasks[1]
    check_whole(asked[1], cut)
    assert cut.finish == "abort"
    assert 0 < len(cut.tokens) < RESPONSE
    rest = await asyncio.gather(tasks[0], tasks[2], tasks[3])
    assert [(got.finish, len(got.tokens)) for got in rest] == [("length", RESPONSE)] * 3


async def test_responses_that_finished_elsewhere_change_nothing_of_those_that_run(subject: Subject) -> None:
    """Whether the engine drafts from them or not, running or paused."""
    asked = subject.asks(3)
    texts = [(one.tokens.tobytes(), np.arange(20, dtype=np.int32).tobytes()) for one in asked]
    subject.engine.learn(texts)
    before = await subject.generated()
    tasks = subject.launch(asked)
    await subject.under_way(before, 10)
    subject.engine.learn(texts)
    await subject.engine.pause("keep")
    subject.engine.learn(texts)
    await subject.engine.resume()
    for one, task in zip(asked, tasks, strict=True):
        got = await task
        check_whole(one, got)
        assert (len(got.tokens), got.finish) == (RESPONSE, "length")


async def test_an_aborted_response_continues_in_a_new_request(subject: Subject) -> None:
    asked, before = subject.ask(), await subject.generated()
    [task] = subject.launch([asked])
    await subject.under_way(before, 5)
    await subject.engine.abort(asked.request_id)
    first = await task
    count = len(first.tokens)
    more = Request(
        f"{asked.request_id}-more",
        np.concatenate([asked.tokens, first.tokens]),
        RESPONSE - count,
        asked.seed,
        generated=count,
        exact=True,
    )
    second = await subject.engine.submit(more)
    check_whole(more, second)
    assert (second.finish, count + len(second.tokens)) == ("length", RESPONSE)


async def test_pause_keep_stands_still_and_goes_on(subject: Subject) -> None:
    asked, before = subject.asks(SLOTS), await subject.generated()
    tasks = subject.launch(asked)
    await subject.under_way(before, SLOTS * 5)
    await subject.engine.pause("keep")
    still = await subject.engine.load_snapshot()
    await asyncio.sleep(0.1)
    assert await subject.engine.load_snapshot() == still
    assert still.paused
    assert still.running == SLOTS
    await subject.engine.resume()
    for one, got in zip(asked, await asyncio.gather(*tasks), strict=True):
        check_whole(one, got)
        assert (got.finish, len(got.tokens)) == ("length", RESPONSE)


async def test_pause_abort_returns_every_partial_response(subject: Subject) -> None:
    asked, before = subject.asks(SLOTS + 8), await subject.generated()
    tasks = subject.launch(asked)
    await subject.under_way(before, SLOTS * 5)
    await subject.engine.pause("abort")
    await asyncio.sleep(0)
    assert all(task.done() for task in tasks)
    for one, task in zip(asked, tasks, strict=True):
        check_whole(one, task.result())
        assert task.result().finish == "abort"
    assert sum(len(task.result().tokens) for task in tasks) == await subject.generated() - before
    assert (await subject.engine.load_snapshot()).running == 0
    await subject.engine.resume()


async def test_pause_wait_lets_running_requests_finish(subject: Subject) -> None:
    asked, before = subject.asks(8), await subject.generated()
    tasks = subject.launch(asked)
    await subject.under_way(before, 8 * 5)
    await subject.engine.pause("wait")
    await asyncio.sleep(0)
    assert [task.done() and task.result().finish for task in tasks] == ["length"] * 8
    await subject.engine.resume()


async def test_an_abort_ends_a_pause_that_waits(subject: Subject) -> None:
    asked, before = subject.asks(2), await subject.generated()
    tasks = subject.launch(asked)
    await subject.under_way(before, 2)
    pausing = asyncio.create_task(subject.engine.pause("wait"))
    await asyncio.sleep(0)
    for one in asked:
        await subject.engine.abort(one.request_id)
    async with asyncio.timeout(30):
        await pausing
    for task in tasks:
        assert (await task).finish == "abort"
    await subject.engine.resume()


@pytest.mark.parametrize("mode", ["keep", "abort", "wait"])
async def test_submits_that_arrive_while_paused_wait_for_resume(subject: Subject, mode: str) -> None:
    await subject.engine.pause(mode)  # type: ignore[arg-type]
    asked = [subject.ask(max_tokens=5) for _ in range(3)]
    tasks = subject.launch(asked)
    await asyncio.sleep(0.05)
    assert not any(task.done() for task in tasks)
    assert (await subject.engine.load_snapshot()).running == 3
    await subject.engine.abort(asked[1].request_id)
    dropped = await tasks[1]
    assert (dropped.finish, len(dropped.tokens), dropped.spans) == ("abort", 0, ())
    await subject.engine.resume()
    assert [(await tasks[index]).finish for index in (0, 2)] == ["length", "length"]


async def test_a_submit_that_is_cancelled_leaves_nothing_behind(subject: Subject) -> None:
    before = await subject.generated()
    tasks = subject.launch(subject.asks(3))
    await subject.under_way(before, 3)
    tasks[0].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert (await subject.engine.load_snapshot()).running == 0


async def test_load_is_refused_unless_paused(subject: Subject) -> None:
    with pytest.raises(RuntimeError, match="load while not paused"):
        await subject.engine.load(weights_at(9, subject.folder))


async def test_every_token_carries_the_version_it_was_sampled_from(subject: Subject) -> None:
    """Two loads in mid-flight: the label counts agree with the tokens generated at each barrier, and each
    token's log-probability (where an engine has a model) is that of a trainer with the weights of its
    label."""
    asked, before = subject.asks(SLOTS), await subject.generated()
    tasks, counts, stood_still, began = subject.launch(asked), [], 0.0, time.monotonic()
    for version in (10, 11):
        await subject.under_way(before + sum(counts), SLOTS * 10)
        await subject.engine.pause("keep")
        paused = time.monotonic()
        counts.append(await subject.generated() - before - sum(counts))
        await subject.engine.load(weights_at(version, subject.new_weights(version)))
        stood_still += time.monotonic() - paused
        await subject.engine.resume()
    results = await asyncio.gather(*tasks)
    whole = time.monotonic() - began
    labelled = dict.fromkeys((3, 10, 11), 0)
    for one, got in zip(asked, results, strict=True):
        check_whole(one, got)
        assert (got.finish, len(got.tokens)) == ("length", RESPONSE)
        for span in got.spans:
            labelled[span.version] += span.end - span.start
    assert labelled == {3: counts[0], 10: counts[1], 11: SLOTS * RESPONSE - sum(counts)}
    assert (await subject.engine.load_snapshot()).version == 11
    if not isinstance(subject.engine, FakeEngine):
        folders = {3: subject.folder, 10: subject.new_weights(10), 11: subject.new_weights(11)}
        check_log_probs(subject.folder, folders, zip(asked, results, strict=True))
        for got in results:
            check_timing(got, stood_still, whole)


async def test_wrong_weights_are_refused_and_the_old_ones_stay(subject: Subject, tmp_path: Path) -> None:
    published(tmp_path / "empty")
    other = published(tiny_model(tmp_path / "other", "llama"))
    version = (await subject.engine.load_snapshot()).version
    await subject.engine.pause("keep")
    with pytest.raises(WeightsGone, match="removed: a newer version is published"):
        await subject.engine.load(weights_at(20, tmp_path / "gone"))
    with pytest.raises(FileNotFoundError, match=r"no \*.safetensors"):
        await subject.engine.load(weights_at(20, tmp_path / "empty"))
    with pytest.raises(ValueError, match=r"k_norm\.weight is missing"):
        await subject.engine.load(weights_at(20, other))
    await subject.engine.resume()
    got = await subject.engine.submit(subject.ask(max_tokens=5))
    assert got.spans == (Span(version, 0, 5),)


@pytest.mark.parametrize(
    ("length", "max_tokens", "message"),
    [
        (0, 5, "0 tokens"),
        (LENGTH, 5, f"{LENGTH} tokens; the engine takes 1 to {LENGTH - 1}"),
        (5, 0, "max_tokens is 0"),
    ],
)
async def test_impossible_requests_are_refused(
    subject: Subject, length: int, max_tokens: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        await subject.engine.submit(request("impossible", length=length, max_tokens=max_tokens))
    assert (await subject.engine.load_snapshot()).running == 0


async def test_an_id_that_runs_already_is_refused(subject: Subject) -> None:
    asked, before = subject.ask(), await subject.generated()
    [task] = subject.launch([asked])
    await subject.under_way(before, 1)
    with pytest.raises(ValueError, match=f"request {asked.request_id} is running already"):
        await subject.engine.submit(asked)
    await subject.engine.abort(asked.request_id)
    assert (await task).finish == "abort"


async def test_a_response_ends_where_the_engine_is_full(subject: Subject) -> None:
    got = await subject.engine.submit(request("long", length=LENGTH - 3, max_tokens=50, exact=True))
    assert (len(got.tokens), got.finish) == (3, "length")


async def test_close_ends_running_and_waiting_submits(subject: Subject) -> None:
    """The last test of each engine: it is closed afterwards."""
    before = await subject.generated()
    running = subject.launch(subject.asks(4))
    await subject.under_way(before, 4)
    await subject.engine.pause("keep")
    waiting = subject.launch(subject.asks(2))
    await asyncio.sleep(0.02)
    await subject.engine.close()
    results = await asyncio.gather(*running, *waiting, return_exceptions=True)
    assert [type(result) for result in results] == [EngineDied] * 6
    for call in (subject.engine.submit(subject.ask()), subject.engine.pause("keep"), subject.engine.resume()):
        with pytest.raises(EngineDied, match="closed"):
            await call
