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


def due(texts: FinishedTexts, running: int = 0) -> list[tuple[list[int], list[list[int]]]]:
    return [
        (
            np.frombuffer(prompt, np.int32).tolist(),
            [np.frombuffer(each, np.int32).tolist() for each in responses],
        )
        for prompt, responses in texts.due(running)
    ]


def test_each_response_is_due_once_and_when_few_run() -> None:
    texts = finished()
    ended(texts, [1, 2], [3, 4])
    ended(texts, [5], [6], finish="length")
    assert due(texts, running=3) == []
    assert due(texts, running=2) == [([1, 2], [[3, 4]]), ([5], [[6]])]
    assert due(texts, running=2) == []


def test_the_tokens_of_earlier_attempts_are_the_response_s() -> None:
    texts = finished()
    ended(texts, [1, 2, 3, 4], [5], generated=2)
    assert due(texts) == [([1, 2], [[3, 4, 5]])]


def test_a_response_that_was_cut_off_is_not_held() -> None:
    texts = finished()
    ended(texts, [1, 2], [3], finish="abort")
    assert due(texts) == []


def test_the_oldest_prompts_go_first_and_a_prompt_counts_once() -> None:
    texts = finished(kept_tokens=6)
    ended(texts, [1], [10, 11, 12])
    ended(texts, [1], [20, 21])
    ended(texts, [1], [30])
    assert due(texts) == [([1], [[20, 21], [30]])]
    ended(texts, [2], [40])
    ended(texts, [3, 4], [50])
    ended(texts, [2], [60])
    assert due(texts) == [([2], [[40], [60]]), ([3, 4], [[50]])]
    ended(texts, [2], [40])
    ended(texts, [3, 4, 5], [50, 51])
    assert due(texts) == [([3, 4, 5], [[50, 51]])]
    ended(texts, [1], [40] * 6)
    assert due(texts) == []
    ended(texts, [1], [50] * 5)
    assert due(texts) == [([1], [[50] * 5])]


def test_long_prompts_of_short_responses_are_bounded_too() -> None:
    texts = finished(kept_tokens=1000)
    for number in range(50):
        ended(texts, [number] * 400, [1])
    assert [prompt[0] for prompt, _ in due(texts)] == [48, 49]


def test_drafts_from_the_own_text_alone_need_no_siblings() -> None:
    texts = FinishedTexts(Speculation.model_validate({"ngram": {}}))
    ended(texts, [1], [2])
    assert due(texts) == []
