"""The two ways in which tokens and their log-probabilities leave vLLM's engine core: held back until a
response ends, and one by one. Each with a KV cache that does not hold what runs: requests are pre-empted."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch
import vllm
import zmq
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.engine.core import EngineCoreProc
from vllm.v1.outputs import LogprobsLists
from vllm.v1.serial_utils import MsgpackDecoder

from rljob_api.rollout import VllmEngine as VllmOptions
from rljob_runtime.engines.protocol import Request, Sampling
from rljob_runtime.engines.vllm import VllmEngine
from rljob_runtime.engines.vllm_holding import misfit
from rljob_runtime.engines.vllm_prefills import delays, prefills_misfit
from rljob_runtime.engines.vllm_sending import copy_what_is_sent
from rljob_runtime.samples import Generation
from tests.support.runtime.engines import beside_others, load, started
from tests.support.runtime.tiny_models import (
    check_log_probs,
    perturbed,
    published,
    request,
    tiny_model,
    vllm_device,
    weights_at,
)

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

SLOTS, LENGTH, RESPONSE = 16, 256, 240
KV_BYTES = 2**21
"""Room for at most half of what may run."""
HELD_BACK = {"0.22.1": True, "0.32.0": True}
"""By version of vLLM that the runtime is tested with: whether tokens wait in its engine core."""
ON_CPU = vllm_device()["accelerator"] == "cpu"


class Outputs(Queue[Any]):
    """Of an engine core."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = Event()
        """The last one was taken."""

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        taken = super().get(block, timeout)
        if taken == EngineCoreProc.ENGINE_CORE_DEAD:
            self.ended.set()
        return taken


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return published(tiny_model(tmp_path_factory.mktemp("outputs") / "model"))


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[True, False], ids=["held", "by token"])
async def engine(request: pytest.FixtureRequest, base: Path) -> AsyncIterator[VllmEngine]:
    device: dict[str, Any] = {"options": VllmOptions(kvCacheGiB=KV_BYTES / 2**30)} if ON_CPU else {}
    name = "held" if request.param else "by-token"
    made = VllmEngine(
        name, base, Sampling(), SLOTS, LENGTH, **vllm_device() | device, hold_outputs=request.param
    )
    if not ON_CPU:
        made.take_kv_cache(KV_BYTES)
    async with started(made) as engine:
        yield engine


def asks(name: str, count: int = SLOTS, max_tokens: int = RESPONSE) -> list[Request]:
    return [request(f"{name}{seed}", seed, max_tokens=max_tokens, exact=True) for seed in range(count)]


@contextmanager
def arriving(engine: VllmEngine) -> Iterator[list[str]]:
    """The requests whose outputs vLLM's front end processes meanwhile, by its own names: one for each."""
    processor, names = engine._live_core()._llm.output_processor, []
    process = processor.process_outputs

    def watched(outputs: list[Any], *arguments: Any, **named: Any) -> Any:
        names.extend(output.request_id for output in outputs)
        return process(outputs, *arguments, **named)

    processor.process_outputs = watched
    try:
        yield names
    finally:
        del processor.process_outputs


async def under_way(engine: VllmEngine, tokens: int) -> None:
    """Return when so many more tokens were generated."""
    before = (await engine.load_snapshot()).generated_tokens
    async with asyncio.timeout(60):
        while (await engine.load_snapshot()).generated_tokens < before + tokens:  # noqa: ASYNC110 - progress is told when asked
            await asyncio.sleep(0.002)


async def test_this_version_of_vllm_holds_outputs_back(engine: VllmEngine) -> None:
    assert (misfit("cpu") is None) == (misfit("nvidia") is None) == HELD_BACK[vllm.__version__]
    assert engine._live_core().holds_outputs == (engine.name == "held" and HELD_BACK[vllm.__version__])


async def test_one_that_differs_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scheduler, "update_from_output", lambda self, model_runner_output: {})
    assert misfit("cpu") == "this version of vLLM differs in Scheduler.update_from_output"


async def test_one_that_would_not_let_prompts_wait_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert delays("cpu", True)
    monkeypatch.setattr(Scheduler, "schedule", lambda self: None)
    assert prefills_misfit() == ["Scheduler.schedule"]
    assert not delays("cpu", True)


async def test_what_is_still_travelling_is_not_written_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """vLLM's own output thread, with messages as ours are and a front end that comes late."""
    monkeypatch.setattr(zmq, "COPY_THRESHOLD", zmq.COPY_THRESHOLD)
    copy_what_is_sent(EngineCoreProc)
    large = list(range(50_000))
    log_probs = LogprobsLists(
        np.empty((0, 1), np.int32), np.ones((100, 1), np.float32), np.empty(0, np.int32), None
    )
    core = EngineCoreProc.__new__(EngineCoreProc)
    core.output_queue = Outputs()
    for output in (EngineCoreOutput("a", large, new_logprobs=log_probs), EngineCoreOutput("b", [1])):
        core.output_queue.put_nowait((0, EngineCoreOutputs(outputs=[output])))
    core.output_queue.put_nowait(EngineCoreProc.ENGINE_CORE_DEAD)
    where = f"ipc://{tmp_path}/outputs"
    thread = Thread(target=core.process_output_sockets, args=([where], None, 0), daemon=True)
    thread.start()
    # It takes the end when it has encoded and sent the others.
    assert await asyncio.to_thread(core.output_queue.ended.wait, 10)
    with zmq.Context() as context, context.socket(zmq.PULL) as pull:
        pull.linger, pull.rcvtimeo = 0, 10_000
        pull.bind(where)
        decode = MsgpackDecoder(EngineCoreOutputs).decode
        arrived = [decode(pull.recv_multipart(copy=False)).outputs[0] for _ in range(2)]
    thread.join(10)
    assert not thread.is_alive()
    assert [output.request_id for output in arrived] == ["a", "b"]
    assert [output.new_token_ids for output in arrived] == [large, [1]]
    assert (arrived[0].new_logprobs.logprobs == 1).all()


async def test_a_request_sends_two_outputs_where_nobody_asks(engine: VllmEngine, base: Path) -> None:
    await load(engine, engine.version + 1, base)
    asked = asks("quiet", max_tokens=60)
    engine.counters()
    with arriving(engine) as names:
        results = await asyncio.gather(*[engine.submit(one) for one in asked])
    assert len(set(names)) == SLOTS
    # The first one says when it was scheduled.
    assert len(names) == (2 * SLOTS if engine._live_core().holds_outputs else 60 * SLOTS)
    counts = engine.counters()
    assert (counts["running"], counts["prefix_asked"]) == (0, sum(len(one.tokens) for one in asked))
    assert 0 < counts["kv_use"] <= 1
    check_log_probs(base, {engine.version: base}, zip(asked, results, strict=True))


@pytest.mark.parametrize("reported", [True, False], ids=["versions reported", "versions counted"])
async def test_log_probabilities_are_exact_whatever_happens(
    engine: VllmEngine, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reported: bool
) -> None:
    """Requests are pre-empted, see two updates under pauses, one that aborts; four are aborted by themselves
    and go on elsewhere: here, with the tokens that they have. What versions they are of is counted in pauses
    where outputs are held back, and where vLLM does not report it."""
    core = engine._live_core()
    monkeypatch.setattr(core, "reports_versions", core.reports_versions and reported)
    await load(engine, engine.version + 1, base)
    start = engine.version
    folders = {start: base, **{start + n: perturbed(base, tmp_path / f"v{n}", n) for n in (1, 2)}}
    asked = asks(f"{start}-")
    tasks = [asyncio.create_task(engine.submit(one)) for one in asked]
    await under_way(engine, SLOTS * 15)
    await asyncio.gather(*(engine.abort(one.request_id) for one in asked[:4]))
    pairs = list(zip(asked[:4], await asyncio.gather(*tasks[:4]), strict=True))
    assert {got.finish for _, got in pairs} == {"abort"}
    rest = [
        Request(
            f"{one.request_id}-more",
            np.concatenate([one.tokens, got.tokens]),
            RESPONSE - len(got.tokens),
            one.seed,
            len(got.tokens),
            True,
        )
        for one, got in pairs
    ]
    asked, tasks = asked[4:] + rest, tasks[4:] + [asyncio.create_task(engine.submit(one)) for one in rest]
    await under_way(engine, SLOTS * 10)
    await engine.pause("keep")
    await engine.load(weights_at(start + 1, folders[start + 1]))
    await engine.resume()
    await under_way(engine, SLOTS * 30)
    await engine.pause("abort")
    results: list[Generation] = await asyncio.gather(*tasks)
    await engine.load(weights_at(start + 2, folders[start + 2]))
    await engine.resume()
    pairs += zip(asked, results, strict=True)
    last = asks(f"{start}-last", max_tokens=RESPONSE)
    pairs += zip(last, await asyncio.gather(*[engine.submit(one) for one in last]), strict=True)
    assert {span.version for _, got in pairs for span in got.spans} == set(folders)
    assert any(len(got.spans) == 2 for _, got in pairs)
    assert sum(got.timing.preemptions for _, got in pairs if got.timing is not None) > 0
    check_log_probs(base, folders, pairs)
    monkeypatch.undo()
    await engine._life.guard(core.label(engine.version))


async def test_nothing_is_left_of_requests_that_were_given_up(engine: VllmEngine) -> None:
    tasks = [asyncio.create_task(engine.submit(one)) for one in asks("given-up", 4)]
    await under_way(engine, 20)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    core = engine._live_core()
    # An abort takes effect at the end of the step that runs; a request after it is computed in later ones.
    await engine.submit(request("after", max_tokens=5, exact=True))
    with arriving(engine) as names:
        await core.flush()
    assert names == []
    assert core._log_probs._parts == {}


@pytest.mark.skipif(torch.cuda.device_count() == 1, reason="needs two accelerators")
async def test_ranks_of_one_engine_hold_back_as_one_does(base: Path, tmp_path: Path) -> None:
    """The model is computed in other processes than the scheduler's."""
    made = beside_others(
        VllmEngine("ranks", base, Sampling(), SLOTS, LENGTH, **vllm_device(), tensor_parallel=2)
    )
    folders = {0: base, 1: perturbed(base, tmp_path / "v1", 1)}
    async with started(made) as engine:
        assert engine._live_core().holds_outputs == HELD_BACK[vllm.__version__]
        asked = asks("ranks")
        tasks = [asyncio.create_task(engine.submit(one)) for one in asked]
        await under_way(engine, SLOTS * 10)
        await engine.pause("keep")
        await engine.load(weights_at(1, folders[1]))
        await engine.resume()
        await engine.abort(asked[3].request_id)
        results = await asyncio.gather(*tasks)
        assert [got.finish for got in results].count("abort") == 1
        assert {span.version for got in results for span in got.spans} == {0, 1}
        check_log_probs(base, folders, zip(asked, results, strict=True))
