"""Carries out an evaluation: has the engines respond to each prompt of each set, and scores what they say.

Guarantees: each prompt of each set is responded to `samples_per_prompt` times and scored, or `run` raises;
nothing of an evaluation that is cancelled is left on an engine or with the pool; requests are no more than
engines and a short line before them hold, however large the sets are; a response that has tokens of another
weight version than the first one's is told of.

Requests of an evaluation go before those for training, and their groups have uids below 0.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from rljob_runtime.engines.protocol import Sampling
from rljob_runtime.evaluation.scores import GradedResponse
from rljob_runtime.groups.responses import Response, response_seed
from rljob_runtime.rewards import Score
from rljob_runtime.rollout.pool import EnginePool
from rljob_runtime.rollout.responder import Responder, Wanted
from rljob_runtime.rollout.rollouter import Scorer
from rljob_runtime.routing.requests import GroupRequest
from rljob_runtime.samples import Prompt

_LINE = 2
"""Requests under way at a time, as a multiple of those that its engines run: some always wait, so that no
engine does."""


@dataclass(frozen=True)
class HeldOutSet:
    """Prompts that are not trained."""

    name: str
    rows: int
    prompt: Callable[[int], Prompt]
    """The prompt of each number below `rows`."""


@dataclass(frozen=True)
class EvaluatorSettings:
    """What an evaluator needs of the RLJob."""

    samples_per_prompt: int
    most_tokens: int
    """Of a response."""
    seed: int
    sampling: Sampling
    kept: int = 0
    """Responses of each set that are kept whole: the first ones of its first prompts."""


@dataclass(frozen=True)
class KeptResponse:
    """A response that is kept whole."""

    prompt: Prompt
    index: int
    response: Response
    score: Score


@dataclass
class EvaluatedSet:
    """What an evaluation found of one set."""

    name: str
    graded: dict[int, list[GradedResponse]] = field(default_factory=dict)
    """By the prompt's number."""
    kept: list[KeptResponse] = field(default_factory=list)


class Evaluator:
    """See the module's guarantees."""

    def __init__(
        self,
        sets: Sequence[HeldOutSet],
        settings: EvaluatorSettings,
        pool: EnginePool,
        responder: Responder,
        scorer: Scorer,
        poke: Callable[[], None],
    ) -> None:
        """`poke`: has the pool decide where requests go, which were dispatched to it."""
        self._sets = sets
        self._settings = settings
        self._pool = pool
        self._responder = responder
        self._scorer = scorer
        self._poke = poke
        self._under_way: set[int] = set()
        """Groups that the pool has, by uid."""
        self._ended = asyncio.Event()
        """Set whenever a group has ended."""

    async def run(self, version: int, aside: bool = False) -> list[EvaluatedSet]:
        """Evaluate the weights of `version`, which all engines that get requests hold, or with `aside` those
        that are set aside, which alone are used then. It has no deadline: whoever awaits it watches whether
        anything moves. Raises `RewardPoolError`."""
        found = [EvaluatedSet(each.name) for each in self._sets]
        try:
            async with asyncio.TaskGroup() as tasks:
                for result, number, prompt in self._prompts(found):
                    await self._room(aside)
                    self._dispatch(prompt, version, aside)
                    tasks.create_task(self._evaluate(result, number, prompt, version))
        finally:
            for uid in self._under_way:
                self._pool.cancel(uid)
            self._under_way.clear()
        for result in found:
            result.kept.sort(key=lambda each: (-each.prompt.uid, each.index))
        return found

    def _prompts(self, found: Sequence[EvaluatedSet]) -> Iterator[tuple[EvaluatedSet, int, Prompt]]:
        uid = 0
        for each, result in zip(self._sets, found, strict=True):
            for number in range(each.rows):
                uid -= 1
                yield result, number, msgspec.structs.replace(each.prompt(number), uid=uid)

    async def _room(self, aside: bool) -> None:
        """Wait until another group may begin."""
        # Also where there is room: reading a prompt takes time, and the loop has others to serve.
        await asyncio.sleep(0)
        while self._under_way:
            self._ended.clear()
            slots = self._pool.aside_slots if aside else self._pool.slots
            places = sum(slot.limit for slot in slots)
            if (len(self._under_way) + 1) * self._settings.samples_per_prompt <= _LINE * places:
                return
            await self._ended.wait()

    def _dispatch(self, prompt: Prompt, version: int, aside: bool) -> None:
        # Its uid in the place of the row: what rows of the training data gave says nothing of it.
        self._pool.dispatch(
            GroupRequest(
                prompt.uid, prompt.uid, len(prompt.tokens), self._settings.samples_per_prompt, version
            ),
            aside,
        )
        self._under_way.add(prompt.uid)
        self._poke()

    async def _evaluate(self, result: EvaluatedSet, number: int, prompt: Prompt, version: int) -> None:
        settings = self._settings
        async with asyncio.TaskGroup() as tasks:
            growing = [
                tasks.create_task(self._respond(prompt, index, version))
                for index in range(settings.samples_per_prompt)
            ]
        self._under_way.discard(prompt.uid)
        self._ended.set()
        responses = [task.result() for task in growing]
        scores = await self._scorer(prompt, responses)
        result.graded[number] = [
            _graded(response, score, version) for response, score in zip(responses, scores, strict=True)
        ]
        left = settings.kept - number * settings.samples_per_prompt
        for index, (response, score) in enumerate(zip(responses, scores, strict=True)):
            if index < left:
                result.kept.append(KeptResponse(prompt, index, response, score))

    async def _respond(self, prompt: Prompt, index: int, version: int) -> Response:
        settings = self._settings
        wanted = Wanted(
            settings.most_tokens,
            # The same in each evaluation: two differ by their weights alone, as far as engines draw by it.
            response_seed(settings.seed, prompt.uid, index),
            sampling=settings.sampling,
            evaluates=version,
        )
        return await self._responder.respond(prompt, index, wanted)


def _graded(response: Response, score: Score, version: int) -> GradedResponse:
    return GradedResponse(
        None if score.failure is not None else score.value,
        len(response.tokens),
        cut_off=response.finish == "length",
        pinned=all(span.version == version for span in response.spans),
        failure=score.told_failure or "",
        parts=score.parts,
        metrics=score.metrics,
    )
