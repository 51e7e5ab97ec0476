"""Generates one response, over as many engines and attempts as it takes.

Guarantees: a response survives weight updates (its tokens so far are kept) and the loss of its engine (it
goes on elsewhere from what earlier attempts had returned); an engine whose answer cannot be is lost, and
nothing of that answer is used; each stay on an engine is recorded once, also where it is cancelled; engines
that draft hear of finished siblings (`sibling_texts`), and nothing waits for that.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rljob_runtime.engines.answers import wrong_answer
from rljob_runtime.engines.protocol import EngineDied, Request, Sampling
from rljob_runtime.groups.counts import GroupCounts
from rljob_runtime.groups.responses import Response, request_id
from rljob_runtime.rollout.engine_slot import EngineSlot
from rljob_runtime.rollout.group_times import phases_of
from rljob_runtime.rollout.pool import EnginePool
from rljob_runtime.rollout.sibling_texts import News, SiblingTexts
from rljob_runtime.routing.requests import RequestKey
from rljob_runtime.samples import Generation, Prompt, Tokens
from rljob_runtime.trace.record.event_log import EventLog


@dataclass(frozen=True)
class Wanted:
    """What a response is to be."""

    most_tokens: int
    seed: int
    """Of its sampling."""
    exact: bool = False
    """It is to have `most_tokens` tokens, whatever is drawn."""
    sampling: Sampling | None = None
    """How its tokens are drawn; None: as the engine draws all others."""
    evaluates: int | None = None
    """The weight version that it is to say something of; None: it is to be trained."""


class Responder:
    """Generates responses of groups that were dispatched to the pool."""

    def __init__(
        self,
        pool: EnginePool,
        events: EventLog,
        counts: Callable[[], GroupCounts],
        texts: SiblingTexts | None = None,
    ) -> None:
        """`counts` returns what counts the requests that move, and the tokens that are generated. `texts`:
        where engines draft from finished siblings."""
        self._pool = pool
        self._events = events
        self._counts = counts
        self._texts = texts
        self._attempts = 0
        """Attempts so far; numbers the requests."""

    async def respond(self, prompt: Prompt, index: int, wanted: Wanted) -> Response:
        """Response `index` of the prompt's group. No deadline: engines end their requests or are lost."""
        key, texts = RequestKey(prompt.uid, index), self._texts
        response = Response(began=self._events.clock())
        if texts is not None:
            texts.begin(prompt)
        # In one coroutine: each more would be memory of every request in flight.
        try:
            while True:
                slot = await self._pool.acquire(key)
                if texts is not None:
                    _tell(texts.placed(key, slot))
                if not response.engine:
                    response.expect(self._pool.expects(key))
                request = self._request(prompt, index, response, wanted)
                if await self._attempt(slot, request, response, key, wanted):
                    self._pool.finished(key, len(response.tokens))
                    if texts is not None:
                        _tell(texts.finished(key, response.tokens))
                    return response
                self._counts().rerouted_requests += self._pool.moves(key)
                if self._pool.interrupted(key, len(response.tokens)):
                    self._counts().begin_anew(len(response.tokens))
                    response.begin_anew()
                if texts is not None:
                    _tell(texts.left(key))
        finally:
            if texts is not None:
                texts.end(key)

    def _request(self, prompt: Prompt, index: int, response: Response, wanted: Wanted) -> Request:
        """What is left of a response, for its next stay."""
        self._attempts += 1
        return Request(
            request_id=request_id(prompt.uid, index, self._attempts),
            tokens=_tokens_so_far(prompt, response),
            max_tokens=wanted.most_tokens - len(response.tokens),
            seed=wanted.seed,
            generated=len(response.tokens),
            exact=wanted.exact,
            sampling=wanted.sampling,
        )

    async def _attempt(
        self, slot: EngineSlot, request: Request, response: Response, key: RequestKey, wanted: Wanted
    ) -> bool:
        """One stay on the engine on which the request was placed; whether the response is complete then."""
        pool = self._pool
        if not pool.may_submit(slot, key):
            return False
        began = self._events.clock()
        extra: dict[str, Any] = {"uid": key.uid, "request": request.request_id}
        if pool.for_long(slot):
            extra["for_long"] = True

        def record(tokens: int, finish: str) -> None:
            """The stay, in which so many tokens were generated, and how it ended."""
            stay = pool.step, began, self._events.clock() - began
            came = {**extra, "tokens": tokens, "length": len(response.tokens), "finish": finish}
            if wanted.evaluates is None:
                slot.events.add("generate", *stay, **came)
            else:
                slot.events.add("evaluate", *stay, **came, version=wanted.evaluates)

        try:
            generation = await self._submit(slot, request, key)
        except EngineDied as error:
            self._counts().moved_requests += 1
            # Of no token: those that it had here are lost.
            extra["left"] = "lost"
            record(0, "abort")
            pool.lost(slot, str(error))
            return False
        except asyncio.CancelledError:
            # Its group is given up; the engine was busy with it all the same.
            record(0, "cancelled")
            raise
        response.extend(generation, slot.engine.name, slot.pool, self._events.clock())
        self._counts().generated(slot.pool, len(generation.tokens))
        if generation.timing is not None:
            extra["phases"] = phases_of(generation.timing)
        if generation.spans:
            extra["versions"] = [generation.spans[0].version, generation.spans[-1].version]
        if generation.finish == "abort" and len(generation.tokens) >= request.max_tokens:
            # The abort came with the last token; an attempt at none more would be refused.
            response.finish = "length"
        if response.finish == "abort":
            extra["left"] = pool.reason_left(slot, key)
            self._counts().continued_requests += 1
        record(len(generation.tokens), response.finish)
        return response.finish != "abort"

    async def _submit(self, slot: EngineSlot, request: Request, key: RequestKey) -> Generation:
        """Have an engine generate. Raises `EngineDied`, also where what it answers cannot be: it is to be
        started again, and nothing of it used."""
        pool, pauses = self._pool, slot.pauses if slot.joined else None
        pool.submitted(slot, key, request)
        tokens = 0
        try:
            generation = await slot.engine.submit(request)
            tokens = len(generation.tokens)
        finally:
            pool.left(slot, request.request_id, tokens)
        wrong = wrong_answer(request, generation, slot.newest)
        taken_out = pauses != slot.pauses or pool.moves(key)
        if wrong is None and generation.finish == "abort" and not taken_out and tokens == 0:
            # With tokens it would be of use, and get nearer to its end. So it would be given back for ever.
            wrong = f"gave back request {request.request_id}, which nobody took out, without a token"
        if wrong is not None:
            raise EngineDied(f"engine {slot.engine.name} {wrong}")
        return generation


def _tell(found: Iterable[News]) -> None:
    for news in found:
        news.slot.engine.learn(news.texts)


def _tokens_so_far(prompt: Prompt, response: Response) -> Tokens:
    """Prompt and response. Where there is no response yet, the prompt's own array: requests of one group that
    wait or run hold one copy of it, not one each."""
    if len(response.tokens) == 0:
        return prompt.tokens
    return np.concatenate([prompt.tokens, response.tokens])
