"""Which finished responses a drafter hears of, and when."""

import numpy as np

from rljob_api.rollout import Speculation
from rljob_runtime.engines.finished_texts import FinishedTexts, finished_text
from rljob_runtime.engines.protocol import Request
from rljob_runtime.samples import FinishReason, Generation


def finished(kept_tokens: int = 100) -> FinishedTexts:
    return FinishedTexts(
        Speculation.model_validate({"suffix": {"keptTokens": kept_tokens}, "atMostRunning": 2})
    )


def ended(
    texts: FinishedTexts, tokens: list[int], got: list[int], generated: int = 0, finish: FinishReason = "stop"
) -> None:
    request = Request("r", np.array(tokens, np.int32), 9, 0, generated)
    text = finished_text(
        request, Generation("r", np.array(got, np.int32), np.zeros(len(got), np.float32), (), finish)
    )
    if text is not None:
        texts.add(text)


def due(texts: FinishedTexts, running: int = 0) -> list[tuple[list[int], list[int]]]:
    return [
        (np.frombuffer(prompt, np.int32).tolist(), np.frombuffer(response, np.int32).tolist())
        for prompt, response in texts.due(running)
    ]


def test_each_response_is_due_once_and_when_few_run() -> None:
    texts = finished()
    ended(texts, [1, 2], [3, 4])
    ended(texts, [5], [6], finish="length")
    assert due(texts, running=3) == []
    assert due(texts, running=2) == [([1, 2], [3, 4]), ([5], [6])]
    assert due(texts, running=2) == []


def test_the_tokens_of_earlier_attempts_are_the_response_s() -> None:
    texts = finished()
    ended(texts, [1, 2, 3, 4], [5], generated=2)
    assert due(texts) == [([1, 2], [3, 4, 5])]


def test_a_response_that_was_cut_off_is_not_held() -> None:
    texts = finished()
    ended(texts, [1, 2], [3], finish="abort")
    assert due(texts) == []


def test_the_oldest_go_first() -> None:
    texts = finished(kept_tokens=5)
    ended(texts, [1], [10, 11, 12])
    ended(texts, [1], [20, 21])
    ended(texts, [1], [30])
    assert due(texts) == [([1], [20, 21]), ([1], [30])]
    ended(texts, [1], [40] * 6)
    assert due(texts) == []
    ended(texts, [1], [50] * 5)
    assert due(texts) == [([1], [50] * 5)]


def test_drafts_from_the_own_text_alone_need_no_siblings() -> None:
    texts = FinishedTexts(Speculation.model_validate({"ngram": {}}))
    ended(texts, [1], [2])
    assert due(texts) == []
