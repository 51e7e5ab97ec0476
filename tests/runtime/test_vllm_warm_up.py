"""What vLLM warms up with when an engine starts on an accelerator."""

import json
import os
from pathlib import Path

import pytest
from vllm.sampling_params import SamplingParams

from rljob_runtime.engines import early_core
from rljob_runtime.engines.early_core import EarlyCore
from rljob_runtime.engines.protocol import Sampling
from rljob_runtime.engines.vllm_extension import HOST_VARIABLE
from rljob_runtime.engines.vllm_warm_up import VARIABLE, as_sampled, warm_up_as_sampled

_DEADLINE = 120.0
"""Seconds, of a process that imports vLLM."""
CASES = {
    # how a job draws, and whether its engines warm up what cuts at topP or topK
    "plain": (Sampling(), False),
    "a temperature": (Sampling(temperature=0.6), False),
    "the likeliest token": (Sampling(temperature=0.0), False),
    "top-p": (Sampling(top_p=0.9), True),
    "top-k": (Sampling(top_k=40), True),
}


@pytest.fixture(autouse=True)
def prepared(monkeypatch: pytest.MonkeyPatch) -> SamplingParams:
    """As in an engine's process that has not been told what it is to run. Gives what vLLM warms up with."""
    monkeypatch.delenv(VARIABLE, raising=False)
    # Kept, so that it is as before when the test has ended.
    monkeypatch.setattr(SamplingParams, "for_sampler_warmup", SamplingParams.for_sampler_warmup)
    usual = SamplingParams.for_sampler_warmup()
    warm_up_as_sampled()
    return usual


@pytest.mark.parametrize(("sampling", "cuts"), CASES.values(), ids=CASES)
def test_engines_warm_up_what_their_requests_draw_with(
    sampling: Sampling, cuts: bool, prepared: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, json.dumps(as_sampled(sampling)))
    found, asked = SamplingParams.for_sampler_warmup(), SamplingParams(**as_sampled(sampling))
    assert found == asked != prepared and found.logprobs == 0
    assert cuts == (found.top_p < 1 or found.top_k > 0)
    # vLLM has one for each of the requests that it makes up.
    assert found is not SamplingParams.for_sampler_warmup()


def test_an_engine_that_is_told_nothing_warms_up_all(prepared: SamplingParams) -> None:
    assert SamplingParams.for_sampler_warmup() == prepared and prepared.top_p < 1


def test_an_engine_core_that_was_there_before_warms_up_as_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has imported what changes vLLM when it is told of the job."""
    monkeypatch.setattr(early_core, "_imported", lambda _: ("rljob_runtime.engines.vllm_extension",))
    monkeypatch.setenv(HOST_VARIABLE, str(os.getpid()))
    early, told = EarlyCore("cpu"), tmp_path / "told"
    monkeypatch.setenv(VARIABLE, json.dumps(as_sampled(Sampling(temperature=0.6))))
    early.run(write, {"where": told})
    early.process.join(_DEADLINE)
    assert early.process.exitcode == 0, early.last_words()
    assert told.read_text() == "0.6 1.0"


def write(where: Path) -> None:
    asked = SamplingParams.for_sampler_warmup()
    where.write_text(f"{asked.temperature} {asked.top_p}")
