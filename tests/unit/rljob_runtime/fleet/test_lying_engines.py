"""Engines that say what cannot be, or nothing at all: they are taken out and started again, what they ran
goes on elsewhere, and every prompt is trained once."""

import asyncio
import itertools
from collections.abc import Callable, Mapping

import msgspec
import numpy as np
import pytest

from rljob_runtime.engines.fake import FakeTiming
from rljob_runtime.engines.protocol import LoadSnapshot, Request
from rljob_runtime.routing.adaptive import Adaptive
from rljob_runtime.routing.policy import Policy
from rljob_runtime.routing.probe import ProbePolicy, ProbeSettings
from rljob_runtime.samples import Generation, Span
from tests.support.simulated.scaled_job import PodEngine, ScaledJob
from tests.support.simulated.simulated_job import Scenario

MOST_TOKENS = 400
STEPS = 10
POLICIES: dict[str, Callable[[], Policy]] = {
    "least in flight": Policy,
    "adaptive": lambda: Adaptive(MOST_TOKENS),
    "probe": lambda: ProbePolicy(ProbeSettings(4)),
}


def length(request: Request) -> int:
    return 300 if request.seed % 8 == 0 else 20 + request.seed % 40


def answers(changed: Callable[[Generation], Generation]) -> Callable[[PodEngine], None]:
    """Every answer of the engine is changed."""

    def lie(engine: PodEngine) -> None:
        submit = engine.submit

        async def submitted(request: Request) -> Generation:
            return changed(await submit(request))

        engine.submit = submitted  # type: ignore[method-assign]

    return lie


def reports(changed: Callable[[dict[str, int]], Mapping[str, int]]) -> Callable[[PodEngine], None]:
    """Every report of progress is changed."""

    def lie(engine: PodEngine) -> None:
        told = engine._reports._counts
        engine._reports._counts = lambda: changed(dict(told()))

    return lie


def longer(generation: Generation) -> Generation:
    tokens = np.full(MOST_TOKENS + 1, 5, np.int32)
    spans = (Span(generation.spans[0].version if generation.spans else 0, 0, len(tokens)),)
    log_probs = np.zeros(len(tokens), np.float32)
    return msgspec.structs.replace(generation, tokens=tokens, log_probs=log_probs, spans=spans)


def never(engine: PodEngine) -> None:
    """It takes requests, and neither generates nor gives anything back."""

    async def submitted(request: Request) -> Generation:
        await engine_is_closed.wait()
        return await type(engine).submit(engine, request)

    engine_is_closed = asyncio.Event()
    die = engine.die

    def died(reason: str) -> None:
        die(reason)
        engine_is_closed.set()

    engine.submit = submitted  # type: ignore[method-assign]
    engine.die = died  # type: ignore[method-assign]


def boasts(engine: PodEngine) -> None:
    """The same, and it tells of ever more tokens."""
    never(engine)
    honest, told = engine.load_snapshot, itertools.count(10_000, 10_000)

    async def load_snapshot() -> LoadSnapshot:
        return msgspec.structs.replace(await honest(), generated_tokens=next(told))

    engine.load_snapshot = load_snapshot  # type: ignore[method-assign]


def gives_back(engine: PodEngine) -> None:
    """It gives back what it is given, at once and with nothing."""

    async def submitted(request: Request) -> Generation:
        nothing = np.zeros(0, np.int32), np.zeros(0, np.float32)
        await asyncio.sleep(0.001)
        return Generation(request.request_id, *nothing, (), "abort")

    engine.submit = submitted  # type: ignore[method-assign]


def moved(generation: Generation, by: int) -> tuple[Span, ...]:
    return tuple(Span(span.version + by, span.start, span.end) for span in generation.spans)


LIES: dict[str, tuple[Callable[[PodEngine], None], str | None]] = {
    "more tokens than asked for": (answers(longer), "401 tokens"),
    "another request's answer": (
        answers(lambda each: msgspec.structs.replace(each, request_id="0.0#1")),
        "for request 0.0#1",
    ),
    "fewer log-probabilities than tokens": (
        answers(lambda each: msgspec.structs.replace(each, log_probs=each.log_probs[:1])),
        "1 log-probabilities",
    ),
    "tokens without a version": (
        answers(lambda each: msgspec.structs.replace(each, spans=each.spans[1:])),
        "do not cover",
    ),
    "a version that it does not have": (
        answers(lambda each: msgspec.structs.replace(each, spans=moved(each, 1))),
        "of version",
    ),
    "it gives everything back": (gives_back, "gave back request"),
    "it never answers": (never, "generated nothing for 600 s"),
    "it never answers, and tells of tokens": (boasts, "generated nothing for 600 s"),
    "more progress than can be": (reports(lambda told: dict.fromkeys(told, 10**9)), "1000000000 tokens"),
    "negative progress": (reports(lambda told: dict.fromkeys(told, -5)), "-5 tokens"),
    # What is said of requests that it does not have says nothing, and what is not said is not known.
    "progress of others' requests": (reports(lambda told: {f"{name}9": 1 for name in told}), None),
    "no progress": (reports(lambda told: dict.fromkeys(told, 0)), None),
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("lie", LIES)
def test_an_engine_that_lies_is_taken_out_and_its_work_moves(lie: str, policy: str) -> None:
    begin, words = LIES[lie]
    ended = []

    async def script(job: ScaledJob) -> None:
        await asyncio.sleep(3)
        (pod, *_) = [pod for pod in job.serving if pod.startswith("fast")]
        (liar,) = job.cluster.working(pod)
        begin(liar)
        # In the end it is made up for, or does no harm; what is done about it depends on no other engine.
        while words is not None and liar.alive:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(1)
        ended.append(pod)

    scenario = Scenario(
        steps=STEPS, groups_per_step=4, samples_per_prompt=4, max_response_tokens=MOST_TOKENS, engines=2,
        heavy_engines=1, max_running=8, length_of=length, policy=POLICIES[policy], stall_seconds=600.0,
        timing=FakeTiming(step_seconds=0.02, load_seconds=0.02),
        faults=lambda job: job.shepherd(script(job)),
    )  # fmt: skip
    job = ScaledJob(scenario).run()

    assert sorted(group.uid for group in job.trained) == list(range(STEPS * 4))
    for sample in [sample for group in job.trained for sample in group.samples]:
        assert len(sample.tokens) == len(sample.log_probs) <= MOST_TOKENS
        assert [5] * len(sample.tokens) == sample.tokens.tolist()
    assert all(step.staleness_max <= 1 for step in job.steps)
    assert job.rollouter.counts.open == 0
    (pod,) = ended
    if words is None:
        assert len(job.cluster.engines[pod]) == 1
        return
    assert len(job.cluster.engines[pod]) == 2, "the engine that took its place does not lie"
    (why,) = [said for said in job.said if "a replacement starts" in said]
    assert words in why


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        ({"kv_tokens": 0}, "says that its KV cache holds 0 tokens"),
        ({"kv_tokens": -1}, "says that its KV cache holds -1 tokens"),
        (None, "it was not ready within 1800 s (spec.training.timeouts.startSeconds)"),
    ],
    ids=["no cache", "a negative one", "no answer"],
)
def test_an_engine_that_lies_as_it_starts_is_started_again(
    monkeypatch: pytest.MonkeyPatch, lie: dict[str, int] | None, words: str
) -> None:
    honest, lied = PodEngine.load_snapshot, []

    async def load_snapshot(engine: PodEngine) -> LoadSnapshot:
        if lied:
            return await honest(engine)
        lied.append(engine)
        if lie is None:
            await asyncio.get_running_loop().create_future()
        return msgspec.structs.replace(await honest(engine), **(lie or {}))

    monkeypatch.setattr(PodEngine, "load_snapshot", load_snapshot)

    async def nothing() -> None:
        pass

    job = ScaledJob(Scenario(engines=1, faults=lambda job: job.shepherd(nothing())))
    job.run()
    (pod,) = job.serving
    assert lied == job.cluster.engines[pod][:1] and len(job.cluster.engines[pod]) == 2
    assert any(words in said and "it is started again" in said for said in job.said), job.said


@pytest.mark.parametrize("kv_tokens", [1, 10**12])
def test_a_cache_that_is_said_to_be_small_or_large_holds_up_nothing(
    monkeypatch: pytest.MonkeyPatch, kv_tokens: int
) -> None:
    monkeypatch.setattr("tests.support.simulated.scaled_job.KV_TOKENS", kv_tokens)

    async def nothing() -> None:
        pass

    job = ScaledJob(
        Scenario(
            engines=2, heavy_engines=1, length_of=length, policy=lambda: Adaptive(MOST_TOKENS), steps=STEPS,
            faults=lambda job: job.shepherd(nothing()),
        )
    )  # fmt: skip
    job.run()
    assert len(job.steps) == STEPS
