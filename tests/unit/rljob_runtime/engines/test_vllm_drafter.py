"""When vLLM's proposer drafts, and for which request a row stands."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rljob_runtime.engines.drafter import Drafter
from rljob_runtime.engines.vllm_drafter import PROMPT_TOKENS, Proposer

LONGEST = 20


class Runner:
    """What the proposer reads of vLLM's model runner: rows of requests, each with a prompt of two."""

    def __init__(self, **texts: str) -> None:
        self.texts = texts
        parameters = SimpleNamespace(extra_args={PROMPT_TOKENS: 2})
        self.requests = {name: SimpleNamespace(sampling_params=parameters) for name in "abc"}

    @property
    def input_batch(self) -> Any:
        return SimpleNamespace(req_ids=list(self.texts))

    def step(self, proposer: Proposer, sampled: list[int]) -> list[str]:
        """What is drafted after each row sampled that many of its last tokens."""
        table, counts = np.zeros((8, LONGEST), np.int32), np.zeros(8, np.int32)
        for row, text in enumerate(self.texts.values()):
            table[row, : len(text)] = [ord(letter) for letter in text]
            counts[row] = len(text)
        ids = [
            [ord(letter) for letter in text[len(text) - count :]]
            for text, count in zip(self.texts.values(), sampled, strict=True)
        ]
        return ["".join(map(chr, draft)) for draft in proposer.propose(ids, counts, table)]


def proposer(runner: Runner, draft_tokens: int = 2, minimum_match: int = 2) -> Proposer:
    made = Proposer(SimpleNamespace(model_config=SimpleNamespace(max_model_len=LONGEST)))
    made.start(runner, Drafter(draft_tokens, minimum_match, 0.2, 100), at_most_running=2)
    return made


def test_nothing_is_drafted_before_the_start() -> None:
    made = Proposer(SimpleNamespace(model_config=SimpleNamespace(max_model_len=LONGEST)))
    assert Runner(a="xyxy").step(made, [1]) == [""]


def test_drafts_while_few_requests_run() -> None:
    runner = Runner(a="xyzxy", b="uvwuv")
    subject = proposer(runner)
    assert runner.step(subject, [1, 1]) == ["zx", "wu"]
    runner.texts["c"] = "xyzxy"
    assert runner.step(subject, [1, 1, 1]) == ["", "", ""]
    del runner.texts["a"]
    assert runner.step(subject, [1, 1]) == ["wu", "zx"]


def test_a_row_whose_prompt_is_computed_gets_no_draft() -> None:
    runner = Runner(a="xyzxy")
    subject = proposer(runner)
    assert runner.step(subject, [0]) == [""]
    assert runner.step(subject, [1]) == ["zx"]


@pytest.mark.parametrize(
    ("length", "drafted"), [(15, ""), (16, "bcd"), (17, "cd"), (18, "d"), (19, ""), (20, "")]
)
def test_a_draft_ends_where_the_engine_is_full(length: int, drafted: str) -> None:
    """The step that checks a draft samples one token more."""
    runner = Runner(a=("abcdefghijklmno" * 2)[:length])
    subject = proposer(runner, draft_tokens=4, minimum_match=1)
    assert runner.step(subject, [1]) == [drafted]


def test_siblings_are_those_with_the_same_prompt() -> None:
    runner = Runner(a="pqabc", b="rsabc")
    subject = proposer(runner)
    subject.learn(
        *(np.array([ord(letter) for letter in text], np.int32).tobytes() for text in ("pq", "abcd"))
    )
    assert runner.step(subject, [1, 1]) == ["d", ""]


def test_drafted_and_kept_tokens_are_counted() -> None:
    runner = Runner(a="xyzxy")
    subject = proposer(runner)
    runner.step(subject, [1])
    assert subject.counts() == (0, 0)
    runner.texts = {"a": "xyzxyzq"}
    runner.step(subject, [2])
    assert subject.counts() == (2, 1)
