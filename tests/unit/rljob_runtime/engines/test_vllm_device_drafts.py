"""What a rank drafts for the requests of a step, and which engines can draft so."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rljob_runtime.engines import vllm_device_drafts
from rljob_runtime.engines.tensor_search import drafts
from rljob_runtime.engines.vllm_device_drafts import Speculator, obstacle
from rljob_runtime.engines.vllm_drafter import PROMPT_TOKENS

ROOM, LONGEST, DRAFT = 4, 300, 3


def codes(text: str) -> list[int]:
    return [ord(letter) for letter in text]


class Runner:
    """What the speculator reads of vLLM's newer model runner: requests in places of its own order."""

    def __init__(self) -> None:
        self.device, self.max_num_reqs, self.max_model_len = torch.device("cpu"), ROOM, LONGEST
        self.places: dict[str, int] = {}
        self.tokens = torch.zeros((ROOM, LONGEST), dtype=torch.int32)
        self.req_states = SimpleNamespace(
            all_token_ids=SimpleNamespace(gpu=self.tokens),
            total_len=SimpleNamespace(gpu=torch.zeros(ROOM, dtype=torch.int32)),
            num_computed_tokens_np=np.zeros(ROOM, np.int32),
            draft_tokens=torch.zeros((ROOM, DRAFT), dtype=torch.int64),
        )

    def add(self, speculator: Speculator, prompt_tokens: int | None = 1, /, **texts: str) -> None:
        """Requests begin, each with a text whose first tokens are the prompt."""
        extra = None if prompt_tokens is None else {PROMPT_TOKENS: prompt_tokens}
        new = [
            SimpleNamespace(
                req_id=name,
                prefill_token_ids=codes(text),
                sampling_params=SimpleNamespace(extra_args=extra),
            )
            for name, text in texts.items()
        ]
        speculator.note(step(scheduled_new_reqs=new))
        for name, text in texts.items():
            place = self.places.setdefault(name, ROOM - 1 - len(self.places))
            self.tokens[place, : len(text)] = torch.tensor(codes(text))
            self.req_states.total_len.gpu[place] = len(text)
            # The CPU counts the tokens of the step that draws the last one.
            self.req_states.num_computed_tokens_np[place] = len(text) - 2

    def drafts(self, speculator: Speculator, *names: str, tried: bool = True, **named: Any) -> list[str]:
        """What is on the device for each of these requests when the step after them begins; `tried`: whether
        that one tries drafts."""
        places = np.array([self.places[name] for name in names])
        batch = SimpleNamespace(
            num_reqs=len(names),
            req_ids=list(names),
            idx_mapping=torch.from_numpy(places).int(),
            idx_mapping_np=places,
            num_scheduled_tokens=np.ones(len(names), np.int32),
        )
        proposed = speculator.propose(batch, *[None] * 10, **named)
        assert proposed.dtype == torch.int64
        on_device = self.req_states.draft_tokens
        on_device[batch.idx_mapping] = proposed
        speculator.note(step(scheduled_spec_decode_tokens={name: [-1] for name in names} if tried else {}))
        return ["".join(map(chr, on_device[place].tolist())) for place in places]


def step(**changed: Any) -> Any:
    """A step, as vLLM's scheduler describes it."""
    nothing = {"finished_req_ids": set(), "scheduled_new_reqs": [], "scheduled_spec_decode_tokens": {}}
    return SimpleNamespace(**nothing | changed)


def speculator(runner: Runner, minimum: int = 2, at_most_running: int = 3, kept: int = 1000) -> Speculator:
    return Speculator(runner, DRAFT, minimum, at_most_running, kept)


def learn(drafting: Speculator, prompt: str, response: str) -> None:
    as_bytes = [np.array(codes(text), np.int32).tobytes() for text in (prompt, response)]
    drafting.learn(*as_bytes)


def test_each_request_is_looked_up_in_its_own_text() -> None:
    runner = Runner()
    drafting = speculator(runner)
    runner.add(drafting, a="xabcdab", b="ykkk", c="zmno")
    assert runner.drafts(drafting, "c", "a", "b") == ["ooo", "cda", "kkk"]


def test_siblings_are_those_of_the_same_prompt_that_ended_by_then() -> None:
    runner = Runner()
    drafting = speculator(runner)
    learn(drafting, "x", "12345")
    runner.add(drafting, a="xq23", b="yq23")
    assert runner.drafts(drafting, "a", "b") == ["453", "333"]
    learn(drafting, "y", "9q23678")
    assert runner.drafts(drafting, "a", "b") == ["453", "678"]
    assert runner.drafts(drafting, "b") == ["678"]


def test_the_prompt_of_a_request_that_ended_is_forgotten() -> None:
    runner = Runner()
    drafting = speculator(runner)
    learn(drafting, "x", "12345")
    runner.add(drafting, a="xq23")
    drafting.note(step(finished_req_ids={"a", "never seen"}))
    assert runner.drafts(drafting, "a") == ["333"]
    # Not of ours: nothing tells where its prompt ends.
    runner.add(drafting, None, b="xq23")
    assert runner.drafts(drafting, "b") == ["333"]


def test_nothing_is_looked_up_while_many_run_or_nothing_does() -> None:
    runner = Runner()
    drafting = speculator(runner, at_most_running=2)
    runner.add(drafting, a="xabcdab", b="xabcdab", c="xabcdab")
    nothing = "\0" * DRAFT
    assert runner.drafts(drafting, "a", "b", "c") == [nothing] * 3
    assert runner.drafts(drafting, "a", dummy_run=True) == [nothing]
    assert runner.drafts(drafting, "a", "b") == ["cda", "cda"]


def test_nothing_is_looked_up_before_a_step_that_tries_no_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, searches = Runner(), []
    monkeypatch.setattr(vllm_device_drafts, "drafts", lambda *given: searches.append(given) or drafts(*given))
    drafting = speculator(runner)
    runner.add(drafting, a="xabcdab", b="ykkk")
    assert runner.drafts(drafting, "a", "b", tried=False) == ["\0" * DRAFT] * 2
    assert not searches
    assert runner.drafts(drafting, "a", "b") == ["cda", "kkk"]
    # A step that draws nothing is followed by no other drafts than the one before it.
    drafting.note(step(scheduled_spec_decode_tokens={"a": [-1]}))
    assert len(searches) == 1


def test_only_so_much_is_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Runner()
    drafting = speculator(runner)
    learn(drafting, "x", "q23456")
    learn(drafting, "x", "o")
    runner.add(drafting, a="xq23", b="xq23")
    assert runner.drafts(drafting, "a", "b") == ["456", "456"]
    monkeypatch.setattr(vllm_device_drafts, "MOST_TOKENS", 16)
    learn(drafting, "x", "p")
    assert runner.drafts(drafting, "a") == ["456"]
    assert runner.drafts(drafting, "a", "b") == ["333", "333"]


def test_a_text_as_long_as_the_engine_takes_is_looked_up() -> None:
    runner = Runner()
    drafting = speculator(runner)
    runner.add(drafting, a="x" + "ab" * ((LONGEST - 1) // 2) + "a")
    assert runner.drafts(drafting, "a") == ["bab"]


def config(**changed: Any) -> Any:
    """vLLM's, of an engine that can draft on its device."""
    given: dict[str, Any] = {
        "v2": True,
        "stages": 1,
        "layers": None,
        "window": None,
        "state": False,
    } | changed
    return SimpleNamespace(
        use_v2_model_runner=given["v2"],
        parallel_config=SimpleNamespace(pipeline_parallel_size=given["stages"]),
        model_config=SimpleNamespace(
            hf_text_config=SimpleNamespace(layer_types=given["layers"]),
            get_sliding_window=lambda: given["window"],
            has_inner_state=given["state"],
        ),
    )


KEEPS_NOT_ALL = "some of the model's layers do not keep all tokens"


@pytest.mark.parametrize(
    ("changed", "factory", "different", "why"),
    [
        ({}, "ours", [], ""),
        ({"layers": ["full_attention"] * 2}, "ours", [], ""),
        ({}, None, [], "the scheduler is vLLM's own"),
        ({"v2": False}, "ours", [], "vLLM runs this model with its older model runner"),
        ({"stages": 2}, "ours", [], "the model's layers are on several ranks"),
        ({"layers": ["full_attention", "sliding_attention"]}, "ours", [], KEEPS_NOT_ALL),
        ({"window": 512}, "ours", [], KEEPS_NOT_ALL),
        ({"state": True}, "ours", [], KEEPS_NOT_ALL),
        ({}, "ours", ["X", "Y"], "this version of vLLM differs in X, Y"),
    ],
)
def test_which_engines_draft_on_their_device(
    changed: dict[str, Any],
    factory: str | None,
    different: list[str],
    why: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(vllm_device_drafts, "misfit", lambda: different)
    assert obstacle(config(**changed), factory) == why
