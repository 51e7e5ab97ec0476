"""What an engine may answer, and what is told of an answer that cannot be."""

from typing import Any

import msgspec
import numpy as np
import pytest

from rljob_runtime.engines.answers import wrong_answer, wrong_progress
from rljob_runtime.engines.protocol import Request
from rljob_runtime.samples import Generation, Span

REQUEST = Request("7.0#3", np.zeros(4, np.int32), max_tokens=3, seed=0)
ANSWER = Generation(
    "7.0#3", np.full(3, 5, np.int32), np.zeros(3, np.float32), (Span(1, 0, 1), Span(2, 1, 3)), "length"
)
NOTHING: dict[str, Any] = {"tokens": np.zeros(0, np.int32), "log_probs": np.zeros(0, np.float32), "spans": ()}


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({}, None),
        ({**NOTHING, "finish": "abort"}, None),
        ({**NOTHING, "finish": "stop"}, None),
        ({"request_id": "7.0#2"}, "answered request 7.0#3 with one for request 7.0#2"),
        (
            {"tokens": np.zeros(4, np.int32)},
            "answered request 7.0#3 with 4 tokens, and 3 were asked for at most",
        ),
        (
            {"log_probs": np.zeros(2, np.float32)},
            "answered request 7.0#3 with 3 tokens and 2 log-probabilities",
        ),
        (
            {"spans": (Span(1, 0, 1),)},
            "answered request 7.0#3 with version spans that do not cover its 3 tokens",
        ),
        (
            {"spans": (Span(1, 0, 1), Span(3, 1, 3))},
            "answered request 7.0#3 with tokens of version 3, and has version 2",
        ),
    ],
)
def test_answers(changes: dict[str, Any], wrong: str | None) -> None:
    assert wrong_answer(REQUEST, msgspec.structs.replace(ANSWER, **changes), version=2) == wrong


@pytest.mark.parametrize(
    ("told", "wrong"),
    [
        ({}, None),
        ({"a": 0, "b": 9}, None),
        ({"unknown": 1000, "other": -1}, None),
        ({"a": 3, "b": 10}, "reports 10 tokens of request b, which may have 0 to 9"),
        ({"a": -1}, "reports -1 tokens of request a, which may have 0 to 3"),
    ],
)
def test_reports_of_progress(told: dict[str, int], wrong: str | None) -> None:
    assert wrong_progress(told, {"a": 3, "b": 9}) == wrong
