"""A scheduler that gives steps places for drafts, with vLLM's own asynchronous one behind it."""

import logging
import random
from pathlib import Path
from typing import Any

import pytest
from vllm.triton_utils import HAS_TRITON
from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from rljob_api.rollout import Speculation
from rljob_runtime.engines import vllm_plain_steps
from rljob_runtime.engines.protocol import Sampling
from rljob_runtime.engines.vllm_blocks import Sparing
from rljob_runtime.engines.vllm_configured import configured
from rljob_runtime.engines.vllm_drafting import Drafting
from rljob_runtime.engines.vllm_plain_steps import Continuing
from rljob_runtime.engines.vllm_scheduler import FACTORY, Holding
from rljob_runtime.engines.vllm_shape import VllmShape
from tests.support.runtime.tiny_models import tiny_model, vllm_device
from tests.support.runtime.vllm_schedulers import Steps
from tests.support.runtime.vllm_told import kept, told

LONGEST, DRAFT, AT_MOST = 160, 3, 4
SIZES: dict[str, Any] = {"requests": 8, "tokens": 64, "longest": LONGEST}
PARTS = (Sparing, Drafting, Continuing, Holding)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("drafting") / "model", tied=True)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_plain_steps, "_FEWEST", 1)


def drafting(model: Path, parts: tuple[type, ...] = PARTS, chance: float = 0.05, **named: Any) -> Steps:
    steps = Steps(model, parts, **SIZES | {"blocks": 200, "records": True} | named)
    steps.scheduler.start_drafting(DRAFT, chance, AT_MOST)
    return steps


@pytest.mark.parametrize("blocks", [200, 24], ids=["room for all", "requests are pre-empted"])
@pytest.mark.parametrize("asynchronous", [True, False], ids=["two steps under way", "one step"])
def test_each_request_gets_all_its_tokens_with_their_log_probabilities(
    model: Path, blocks: int, asynchronous: bool
) -> None:
    drawn = random.Random(f"{blocks} {asynchronous}")
    both = [
        drafting(model, parts, blocks=blocks, asynchronous=asynchronous)
        for parts in ((Drafting, Holding), PARTS)
    ]
    assert {isinstance(each.scheduler, AsyncScheduler) for each in both} == {asynchronous}
    plain, spared = both
    asked, aborted, preempted, tried = {}, set(), False, 0
    for number in range(500):
        if drawn.random() < 0.12 and number < 400:
            name, prompt = f"r{number}", [drawn.randrange(60) for _ in range(drawn.randrange(1, 70))]
            asked[name] = min(drawn.randrange(1, 90), LONGEST - len(prompt))
            for each in both:
                each.add(name, prompt, asked[name])
        if drawn.random() < 0.02 and plain.scheduler.requests:
            aborted.add(name := drawn.choice(sorted(plain.scheduler.requests)))
            for each in both:
                each.abort(name)
        step, other = (each.step() for each in both)
        assert told(step) == told(other), f"step {number}"
        assert step.scheduled_spec_decode_tokens == other.scheduled_spec_decode_tokens
        assert kept(plain) == kept(spared), f"step {number}"
        preempted |= bool(step.preempted_req_ids)
        if step.scheduled_spec_decode_tokens:
            tried += 1
            assert len(step.num_scheduled_tokens) <= AT_MOST + len(step.scheduled_new_reqs)
    for _ in range(200):
        for each in both:
            each.step()
    for each in both:
        each.drain()
        assert not each.scheduler.requests
    assert tried > 50 and preempted == (blocks < 100)
    for name in asked.keys() - aborted:
        tokens, log_probs = spared.left[name]
        assert tokens == spared.drawn[name][: asked[name]] and len(tokens) == asked[name], name
        assert log_probs == [-token for token in tokens], name
    counted, accepted = spared.scheduler.draft_counts()
    assert DRAFT * tried <= counted and 0 < accepted < counted


def test_steps_of_many_requests_are_vllm_s_own(model: Path) -> None:
    plain = Steps(model, (Sparing, Holding), **SIZES, blocks=200)
    ours = drafting(model)
    for each in (plain, ours):
        for name in range(AT_MOST + 1):
            each.add(f"r{name}", [name] * 5, 40)
    for number in range(30):
        step, other = plain.step(), ours.step()
        assert told(step) == told(other), f"step {number}"
        assert not other.scheduled_spec_decode_tokens
    ours.abort("r0")
    assert all(len(drafts) == DRAFT for drafts in ours.step().scheduled_spec_decode_tokens.values())


def test_nothing_is_tried_of_a_prompt_nor_before_it_is_told_to(model: Path) -> None:
    steps = Steps(model, PARTS, **SIZES, blocks=200)
    assert steps.scheduler.draft_counts() == (0, 0)
    steps.add("short", [1] * 5, 40)
    for _ in range(5):
        assert not steps.step().scheduled_spec_decode_tokens
    steps.scheduler.start_drafting(DRAFT, 0.05, AT_MOST)
    steps.add("long", [2] * 150, 5)
    first = steps.step()
    assert first.num_scheduled_tokens == {"short": 1 + DRAFT, "long": 60}
    assert steps.step().scheduled_spec_decode_tokens == {"short": [-1] * DRAFT}
    assert steps.step().num_scheduled_tokens == {"short": 1 + DRAFT, "long": 30}
    assert set(steps.step().scheduled_spec_decode_tokens) == {"short", "long"}


def test_drafts_that_are_not_kept_become_few(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = drafting(model, chance=0.2)
    monkeypatch.setattr(steps, "_token", lambda: 0)  # so that a step keeps nothing
    steps.add("r", [1] * 5, 120)
    tried = [len(steps.step().scheduled_spec_decode_tokens.get("r", ())) for _ in range(100)]
    assert tried[1:4] == [DRAFT] * 3 and sum(tried[20:]) <= 5


WHY_NOT = "drafts are made on the CPU, for which vLLM prepares no step while another runs: "


@pytest.mark.parametrize(
    ("drafts", "may", "factory", "on_device", "said"),
    [
        (None, True, FACTORY, False, []),
        ({"suffix": {}}, False, FACTORY, False, []),
        ({"suffix": {}}, True, None, False, [WHY_NOT + "the scheduler is vLLM's own"]),
        (
            {"suffix": {}},
            True,
            FACTORY,
            HAS_TRITON,
            [] if HAS_TRITON else [WHY_NOT + "vLLM runs this model with its older model runner"],
        ),
    ],
    ids=["no drafts", "not on the device", "no scheduler of ours", "as an engine"],
)
def test_where_drafts_are_made_is_chosen_and_told(
    model: Path,
    drafts: dict[str, Any] | None,
    may: bool,
    factory: str | None,
    on_device: bool,
    said: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    device = vllm_device()
    options = device["options"].model_copy(
        update={"speculation": drafts and Speculation.model_validate(drafts)}
    )
    shape = VllmShape(
        model, Sampling(), 4, LONGEST, "float32", options, device["accelerator"], 1, 1, 0, device_drafts=may
    )
    with caplog.at_level(logging.INFO, "rljob_runtime"):
        asked, chosen = configured(shape, None, factory)
    ours = [record.message for record in caplog.records if record.name.startswith("rljob_runtime")]
    assert (chosen, ours) == (on_device, said)
    told = asked.speculative_config
    assert (told is None) == (drafts is None or on_device)
    assert told is None or told["method"] == "custom_class"
