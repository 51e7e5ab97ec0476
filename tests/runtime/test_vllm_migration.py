"""Responses that move between two live vLLM engines, across weight updates as well."""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

from rljob_runtime.engines.protocol import Sampling
from rljob_runtime.groups.responses import Response, response_seed
from rljob_runtime.routing.policy import Policy
from rljob_runtime.samples import Generation, Prompt, Span, join_spans
from tests.support.runtime.engines import load, started
from tests.support.runtime.moving_responses import (
    GoTo,
    GoToInPause,
    MovingJob,
    NotingEngine,
    Step,
    Update,
    continued,
    prompts,
    whole,
)
from tests.support.runtime.tiny_models import (
    check_kept_kv,
    check_log_probs,
    perturbed,
    request,
    tiny_model,
    vllm_device,
    weights_at,
)
from tests.support.simulated.migrating_job import MovingPolicy

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

SLOTS, LENGTH = 16, 384
RULES = Sampling(temperature=0.8)
"""Without top-k and top-p, at whose limits rounding would decide."""
MOVING, OTHERS = 3, 5
"""Responses that move, and that stay on the first engine beside them."""
TOKENS, EACH = 240, 15
"""Tokens of a response, and those that it gets on an engine before the next step of the script."""


@dataclass
class Engines:
    """Two of one job: "a" and "b"."""

    both: list[NotingEngine]
    base: Path
    drawn: dict[str, list[Generation]]
    """By engine, what it made of its first requests: of one prompt, and of what "a" had made of it."""
    first: int = 0
    """The oldest version of the present case, which has the two after it as well."""

    async def begin(self, versions: tuple[int, int], keeps: bool) -> dict[int, Path]:
        """Another case, for which they hold these of its versions. The weights of each, by version."""
        self.first += 10
        folders = {
            version: perturbed(self.base, self.base.parent / f"v{version}", version)
            for version in range(self.first, self.first + 3)
        }
        for engine, version in zip(self.both, versions, strict=True):
            engine.keeps_kv = keeps
            await load(engine, self.first + version, folders[self.first + version])
            engine.counters()
        return folders

    def job(self, folders: Mapping[int, Path], policy: Policy | None = None) -> MovingJob:
        """One with the weights of these versions."""
        return MovingJob(self.both, [weights_at(*each) for each in folders.items()], SLOTS, policy)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engines(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engines]:
    base = tiny_model(tmp_path_factory.mktemp("migration") / "model")
    both = [
        NotingEngine(name, base, RULES, SLOTS, LENGTH, seed=response_seed(0, number, 0), **vllm_device())
        for number, name in enumerate("ab")
    ]
    async with AsyncExitStack() as stack:
        async with asyncio.TaskGroup() as starts:
            for engine in both:
                starts.create_task(stack.enter_async_context(started(engine)))
        # Before all tests: as many draws later the random numbers of both are compared once more.
        drawn = {
            engine.name: [await engine.submit(request("first", max_tokens=40, exact=True))] for engine in both
        }
        more = continued(request("more", max_tokens=40, exact=True), drawn["a"][0])
        for engine in both:
            drawn[engine.name].append(await engine.submit(more))
        yield Engines(both, base, drawn)


@dataclass(frozen=True)
class Case:
    steps: tuple[Step, ...]
    engines: str
    """Where a response that moves is, one after the other."""
    versions: tuple[int, ...]
    """Of its tokens."""
    held: tuple[int, int] = (0, 0)
    """What the engines hold in the beginning."""
    found: tuple[bool, bool] = (False, False)
    """Whether its last engine still has KV of it, which is of the weights that it goes on with: where KV is
    computed anew for new weights, and where it is kept."""

    @property
    def updates_first(self) -> bool:
        """Whether the first engine gets new weights."""
        updates = [step.update if isinstance(step, GoToInPause) else step for step in self.steps]
        return any(isinstance(step, Update) and "a" in step.engines for step in updates)


CASES = {
    "to another engine": Case((GoTo("b"),), "ab", (0,)),
    "to newer weights": Case((GoTo("b"),), "ab", (0, 1), held=(0, 1)),
    "to older weights": Case((GoTo("b"),), "ab", (1, 0), held=(1, 0)),
    "to newer weights, and an update there": Case((GoTo("b"), Update("b", 2)), "ab", (0, 1, 2), held=(0, 1)),
    "and back": Case((GoTo("b"), GoTo("a")), "aba", (0,), found=(True, True)),
    "and back, after an update": Case((GoTo("b"), Update("ab", 1), GoTo("a")), "aba", (0, 1)),
    "an update, to another engine, and back": Case(
        (Update("a", 1), GoTo("b"), GoTo("a")), "aba", (0, 1), held=(0, 1), found=(True, False)
    ),
    "out of a pause": Case((GoToInPause(Update("a", 1), "b"),), "ab", (0,)),
}


@pytest.mark.parametrize(
    ("case", "keeps"),
    [
        pytest.param(case, keeps, id=f"{name}, {'keep' if keeps else 'recompute'}")
        for name, case in CASES.items()
        # To keep KV is to go on upon it: after an update, or where a response was before.
        for keeps in ((False,) if case.steps == (GoTo("b"),) else (False, True))
    ],
)
async def test_a_response_moves(engines: Engines, case: Case, keeps: bool) -> None:
    folders = await engines.begin(case.held, keeps)
    job = engines.job(folders)
    asked = prompts(100 * engines.first, MOVING + OTHERS)
    moving, others = asked[:MOVING], asked[MOVING:]
    responses = await job.run(moving, others, TOKENS, case.steps, EACH)

    moves = len(case.engines) - 1
    for prompt, response in zip(moving, responses[:MOVING], strict=True):
        check_moved(job, prompt, response)
        assert "".join(stay.engine for stay in job.stays_of(prompt.uid)) == case.engines
        assert response.moves == moves
        versions = [span.version - engines.first for span in response.spans]
        assert tuple(versions) == case.versions
    check_counts(job, moves)
    for prompt, response in zip(others, responses[MOVING:], strict=True):
        check_stayed(job, prompt, response, updated=case.updates_first)
    check_weights(engines, folders, job, asked, responses)
    last = next(engine for engine in engines.both if engine.name == case.engines[-1])
    counters = last.counters()
    # Each stay's prompt was looked for in the KV cache once, so computed once at most.
    assert counters["prefix_asked"] == sum(
        len(stay.request.tokens) for stay in job.stays if stay.engine == last.name
    )
    assert (counters["prefix_hits"] > 0) == case.found[keeps]


def check_moved(job: MovingJob, prompt: Prompt, response: Response) -> None:
    """All that its engines made is in it, in order, and each went on from what was there, which it computed
    once."""
    spans: tuple[Span, ...] = ()
    stays, done = job.stays_of(prompt.uid), 0
    for stay in stays:
        asked, got = stay.request, stay.got
        np.testing.assert_array_equal(asked.tokens, np.concatenate([prompt.tokens, response.tokens[:done]]))
        assert (asked.generated, asked.max_tokens) == (done, TOKENS - done)
        np.testing.assert_array_equal(got.tokens, response.tokens[done : done + len(got.tokens)])
        np.testing.assert_array_equal(got.log_probs, response.log_probs[done : done + len(got.tokens)])
        done, spans = done + len(got.tokens), join_spans(spans, got.spans)
        assert got.timing is not None and got.timing.prefill > 0 and got.timing.preemptions == 0
        assert got.timing.recomputed == 0 or got.timing.paused > 0
    assert done == len(response.tokens) == TOKENS
    assert response.spans == spans
    assert [stay.got.finish for stay in stays] == ["abort"] * (len(stays) - 1) + ["length"]
    left = [
        event[3].get("left")
        for event in job.events.noted
        if event[0] == "generate" and event[3]["uid"] == prompt.uid
    ]
    assert left == ["moved"] * (len(stays) - 1) + [None]


def check_weights(
    engines: Engines, folders: dict[int, Path], job: MovingJob, asked: list[Prompt], responses: list[Response]
) -> None:
    """Each token has the log-probability of the weights of its version, upon KV of these weights or, where
    engines keep it, of those that the tokens of its stay had."""
    if engines.both[0].keeps_kv:
        stays = [(stay.request, stay.got) for stay in job.stays if len(stay.got.tokens)]
        check_kept_kv(engines.base, folders, stays, RULES)
    else:
        pairs = [whole(*pair) for pair in zip(asked, responses, strict=True)]
        check_log_probs(engines.base, folders, pairs, RULES)


def check_counts(job: MovingJob, moves: int) -> None:
    """Each move is counted once, as a move of routing."""
    counts = job.counts
    assert (counts.rerouted_requests, counts.continued_requests) == (MOVING * moves,) * 2
    assert (counts.moved_requests, counts.restarted_requests, job.lost) == (0, 0, [])
    assert counts.fast_tokens == (MOVING + OTHERS) * TOKENS


def check_stayed(job: MovingJob, prompt: Prompt, response: Response, updated: bool) -> None:
    """It was on the first engine all the time, which did not stand still unless it was `updated`."""
    (stay,) = job.stays_of(prompt.uid)
    assert (stay.engine, stay.got.finish, len(response.tokens)) == ("a", "length", TOKENS)
    timing = stay.got.timing
    assert timing is not None and timing.preemptions == 0
    assert (timing.paused > 0, timing.recomputed == 0 or updated) == (updated, True)


async def test_a_response_moves_before_it_has_a_token(engines: Engines) -> None:
    """At whatever it is then: placed on its engine, half-way into it, or in its first step."""
    folders = await engines.begin((0, 1), keeps=False)
    job, asked = engines.job(folders), prompts(100 * engines.first, SLOTS)
    responses = await job.run_with_early_moves(asked, TOKENS, "b")
    for prompt, response in zip(asked, responses, strict=True):
        *before, last = job.stays_of(prompt.uid)
        assert (last.engine, len(response.tokens), response.finish) == ("b", TOKENS, "length")
        assert [stay.engine for stay in before] == ["a"] * len(before)
        assert sum(len(stay.got.tokens) for stay in (*before, last)) == TOKENS
    assert (job.counts.rerouted_requests, job.counts.moved_requests, job.lost) == (len(asked), 0, [])
    unbegun = [stay for stay in job.stays if not len(stay.got.tokens)]
    assert len(unbegun) > 0 and len(job.stays) < 2 * len(asked), "no response moved as early as it was to"
    check_weights(engines, folders, job, asked, responses)


@pytest.mark.parametrize("keeps", [False, True], ids=["recompute", "keep"])
async def test_responses_move_at_random_while_weights_are_updated(engines: Engines, keeps: bool) -> None:
    """To either engine, or to wait for one; with their tokens, or without."""
    folders = await engines.begin((0, 0), keeps)
    job = engines.job(folders, MovingPolicy(random.Random(engines.first), every=0.02))
    asked = prompts(100 * engines.first, 2 * SLOTS)
    responses = await job.run_with_updates(asked, 100, [Update("a", 1), Update("b", 1), Update("ab", 2)])
    assert [len(response.tokens) for response in responses] == [100] * len(asked)
    assert {span.version for response in responses for span in response.spans} == set(folders)
    assert (job.counts.moved_requests, job.lost) == (0, [])
    assert min(job.counts.rerouted_requests, job.counts.restarted_requests) > 0
    check_weights(engines, folders, job, asked, responses)


async def test_engines_of_a_job_draw_from_different_random_numbers(engines: Engines) -> None:
    """Of the same prompt each makes another response, and "b" goes on from what "a" had made otherwise than
    "a" itself, although each has drawn as many tokens: with one seed both would draw the same."""
    for of_a, of_b in zip(engines.drawn["a"], engines.drawn["b"], strict=True):
        assert len(of_a.tokens) == len(of_b.tokens) == 40
        assert np.mean(of_a.tokens == of_b.tokens) < 0.5
