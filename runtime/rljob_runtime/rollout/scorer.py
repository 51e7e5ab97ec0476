"""Rewards for the rollouter: decodes responses, scores them in the reward pool, adds the length shaping."""

from collections.abc import Sequence

import msgspec

from rljob_api.data import OverlongShaping
from rljob_runtime.data.tokenizer import TextTokenizer
from rljob_runtime.groups.responses import Response
from rljob_runtime.rewards import RewardInput, Score
from rljob_runtime.rewards.overlong import overlong_punishment
from rljob_runtime.rewards.pool import RewardPool
from rljob_runtime.samples import Prompt

OVERLONG_PART = "shaping.overlong"
"""The part that the punishment for a response's length is; no function can have one of this name."""


class PoolScorer:
    """Implements the rollouter's `Scorer` on a `RewardPool`."""

    def __init__(
        self,
        pool: RewardPool,
        tokenizer: TextTokenizer,
        max_response_tokens: int,
        overlong: OverlongShaping | None,
    ) -> None:
        """`overlong`: how long responses are punished; None: not at all."""
        self._pool = pool
        self._tokenizer = tokenizer
        self._max_response_tokens = max_response_tokens
        self._overlong = overlong

    async def __call__(self, prompt: Prompt, responses: Sequence[Response]) -> list[Score]:
        """For each response its score, with the punishment for its length. Ends by the pool's time limit for
        each reward; raises `RewardPoolError`."""
        scores = await self._pool.score([self._input(prompt, response) for response in responses])
        return [
            self._shaped(score, len(response.tokens))
            for score, response in zip(scores, responses, strict=True)
        ]

    def _input(self, prompt: Prompt, response: Response) -> RewardInput:
        finished = response.finish == "stop"
        # The stop token ends the text and is no part of it.
        text = self._tokenizer.decode(response.tokens[:-1] if finished else response.tokens)
        return RewardInput(
            prompt=prompt.text,
            response=text,
            answer=prompt.answer,
            prompt_tokens=prompt.tokens,
            response_tokens=response.tokens,
            finished=finished,
            fields=prompt.fields,
            source=prompt.source,
        )

    def _shaped(self, score: Score, length: int) -> Score:
        if self._overlong is None or score.failure is not None:
            return score
        punishment = overlong_punishment(length, self._max_response_tokens, self._overlong)
        parts = {**score.parts, OVERLONG_PART: punishment}
        return msgspec.structs.replace(score, value=score.value + punishment, parts=parts)
