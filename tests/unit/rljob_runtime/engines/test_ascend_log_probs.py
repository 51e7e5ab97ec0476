"""Log-probabilities of workers on NPUs, drawn by vLLM's own sampler."""

from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler
from vllm.v1.worker import worker_base

from rljob_runtime.engines.ascend_log_probs import keep_log_probs_as_asked

LOGITS = torch.tensor([[3.0, 1.0, 2.0, -1.0], [0.0, 1.0, 2.0, 3.0]])
TEMPERATURE, TOP_K = 2.0, 2


class Worker(worker_base.WorkerBase):
    """One that makes its sampler without a mode, as vllm-ascend's does."""

    def init_device(self) -> None:
        self.model_runner: Any = SimpleNamespace(sampler=Sampler())


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a worker of a kind for a device, as vLLM does."""

    def bare(worker: Any, configuration: Any) -> None:
        worker.vllm_config = configuration

    monkeypatch.setattr(worker_base.WorkerBase, "__init__", bare)
    keep_log_probs_as_asked()

    def make(device: str, kind: Any = Worker) -> Any:
        worker = kind(
            SimpleNamespace(
                device_config=SimpleNamespace(device_type=device),
                model_config=SimpleNamespace(logprobs_mode="processed_logprobs"),
            )
        )
        worker.init_device()
        return worker

    return make


def drawn(sampler: Sampler, greedy: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and their log-probabilities, each of shape (requests,)."""
    given: dict[str, Any] = {
        "temperature": None if greedy else torch.full((2,), TEMPERATURE),
        "all_greedy": greedy,
        "all_random": not greedy,
        "top_k": None if greedy else torch.full((2,), TOP_K, dtype=torch.int32),
        "generators": {},
        "max_num_logprobs": 0,
        "no_penalties": True,
        "output_token_ids": [[], []],
        "bad_words_token_ids": {},
        "logitsprocs": LogitsProcessors(),
    }
    unset = {each.name: None for each in fields(SamplingMetadata)}
    out = sampler(LOGITS.clone(), SamplingMetadata(**(unset | given)))
    assert out.logprobs_tensors is not None
    return out.sampled_token_ids[:, 0].long(), out.logprobs_tensors.logprobs[:, 0]


def truth(greedy: bool) -> torch.Tensor:
    """Of the distribution that tokens are drawn from: shape (requests, tokens)."""
    if greedy:
        return LOGITS.log_softmax(-1)
    least = LOGITS.topk(TOP_K).values[:, -1:]
    return (LOGITS / TEMPERATURE).masked_fill(least > LOGITS, -torch.inf).log_softmax(-1)


@pytest.mark.parametrize("greedy", [False, True])
def test_on_an_npu_they_are_of_the_distribution_that_tokens_are_drawn_from(made: Any, greedy: bool) -> None:
    tokens, log_probs = drawn(made("npu").model_runner.sampler, greedy)
    torch.testing.assert_close(log_probs, truth(greedy).gather(1, tokens[:, None])[:, 0])


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_elsewhere_a_sampler_stays_as_vllm_made_it(made: Any, device: str) -> None:
    sampler = made(device).model_runner.sampler
    assert sampler.logprobs_mode == sampler.topk_topp_sampler.logprobs_mode == "raw_logprobs"


@pytest.mark.parametrize(
    "runner",
    [
        SimpleNamespace(),
        SimpleNamespace(sampler=None),
        SimpleNamespace(sampler=SimpleNamespace(topk_topp_sampler=SimpleNamespace(logprobs_mode="raw"))),
        SimpleNamespace(sampler=SimpleNamespace(logprobs_mode="raw_logprobs")),
    ],
)
def test_an_engine_whose_sampler_has_no_mode_does_not_start(made: Any, runner: Any) -> None:
    class Other(Worker):
        def init_device(self) -> None:
            self.model_runner = runner

    with pytest.raises(RuntimeError, match="SimpleNamespace has no sampler whose logprobs_mode can be set"):
        made("npu", Other)
