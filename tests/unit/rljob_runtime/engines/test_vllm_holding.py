"""Log-probabilities that arrive in parts."""

import logging
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rljob_runtime.engines.vllm_holding import ArrivedLogProbs, holds


def output(request_id: str, *log_probs: float) -> Any:
    packed = SimpleNamespace(logprobs=np.array(log_probs, np.float32).reshape(-1, 1))
    return SimpleNamespace(request_id=request_id, new_logprobs=packed if log_probs else None)


def arrived(**running: str) -> ArrivedLogProbs:
    """Those of running requests, by vLLM's name of each."""
    states = {name: SimpleNamespace(external_req_id=ours) for name, ours in running.items()}
    return ArrivedLogProbs(SimpleNamespace(request_states=states))


def test_parts_are_joined_and_vllm_sees_none_of_them() -> None:
    log_probs = arrived(a1="a", b1="b")
    outputs = [output("a1", -1.0, -2.0), output("b1", -3.0), output("a1"), output("a1", -4.0)]
    log_probs.strip(outputs)
    assert [each.new_logprobs for each in outputs] == [None] * 4
    assert log_probs.take("a", 3).tolist() == [-1.0, -2.0, -4.0]
    assert log_probs.take("b", 1).tolist() == [-3.0]
    assert log_probs.take("a", 3).tolist() == [], "they are taken once"


def test_a_response_that_was_cut_short_has_as_many_as_tokens() -> None:
    log_probs = arrived(a1="a")
    log_probs.strip([output("a1", -1.0, -2.0)])
    assert log_probs.take("a", 1).tolist() == [-1.0]


def test_what_comes_for_an_aborted_request_is_not_the_next_one_s_of_its_name() -> None:
    log_probs = arrived(a2="a")
    log_probs.strip([output("a1", -1.0), output("a2", -2.0)])
    assert log_probs.take("a", 1).tolist() == [-2.0]


def test_on_ascend_outputs_are_not_held_back_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert not holds("ascend")
    assert "each token leaves the engine core" in caplog.text
    assert caplog.messages[0].endswith(": the scheduler of vLLM on ascend is another")
