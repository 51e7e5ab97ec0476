"""What becomes of a pool's scores: the punishment for long responses is a part of its own."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest

from rljob_api.data import OverlongShaping
from rljob_runtime.data.tokenizer import CharacterTokenizer
from rljob_runtime.groups.responses import Response
from rljob_runtime.rewards import RewardInput, Score
from rljob_runtime.rollout.scorer import PoolScorer
from rljob_runtime.samples import Generation, Prompt, Span

LETTERS = CharacterTokenizer("abcdefgh")


class Pool:
    """Gives what it is told, and keeps what it was asked."""

    def __init__(self, *scores: Score) -> None:
        self.scores = list(scores)
        self.asked: list[RewardInput] = []

    async def score(self, samples: Sequence[RewardInput]) -> list[Score]:
        self.asked += samples
        return self.scores


def response(length: int) -> Response:
    found = Response(began=0.0)
    tokens = np.full(length, 4, np.int32)
    found.extend(
        Generation("r", tokens, tokens.astype(np.float32), (Span(0, 0, length),), "length"),
        "fast-0",
        "fast",
        1.0,
    )
    return found


def scored(pool: Pool, overlong: OverlongShaping | None, *lengths: int) -> list[Score]:
    prompt = Prompt(0, 0, 0, LETTERS.encode("ab"), "ab", "a", {"level": 3})
    scorer = PoolScorer(cast(Any, pool), LETTERS, 10, overlong)
    return asyncio.run(scorer(prompt, [response(length) for length in lengths]))


def test_a_function_gets_the_row_s_further_fields() -> None:
    pool = Pool(Score(1.0))
    assert scored(pool, None, 3) == [Score(1.0)]
    (asked,) = pool.asked
    assert (asked.prompt, asked.response, asked.answer, asked.fields) == ("ab", "aaa", "a", {"level": 3})


def test_the_punishment_for_length_is_a_part_beside_the_function_s_own() -> None:
    pool = Pool(Score(1.0, parts={"correct": 1.0}, metrics={"m": None}), Score(0.5), Score(0.0, "timeout"))
    found = scored(pool, OverlongShaping(buffer_tokens=4, penalty_factor=2.0), 8, 3, 8)
    assert [each.value for each in found] == pytest.approx([0.0, 0.5, 0.0])
    assert [each.parts for each in found] == [
        {"correct": 1.0, "shaping.overlong": -1.0}, {"shaping.overlong": 0.0}, {},
    ]  # fmt: skip
    assert (found[0].metrics, found[2].failure) == ({"m": None}, "timeout")
