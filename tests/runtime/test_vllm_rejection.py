"""vLLM's check of drafted tokens, as the engine runs it, against the distribution of the model."""

from types import SimpleNamespace

import pytest
import torch
from vllm.triton_utils import HAS_TRITON

from rljob_runtime.engines.protocol import Sampling
from rljob_runtime.engines.torch_sampling import restrict
from rljob_runtime.engines.vllm_extension import repair_rejection_sampler


def metadata(rules: Sampling, requests: int, device: str) -> SimpleNamespace:
    """How vLLM's rejection sampler is told of sampling, the same for each request: of 8 tokens."""
    return SimpleNamespace(
        temperature=torch.full((requests,), rules.temperature, device=device),
        top_p=torch.full((requests,), rules.top_p, device=device),
        top_k=torch.full((requests,), rules.top_k or 8, dtype=torch.int32, device=device),
        all_greedy=False,
        all_random=True,
        generators={},
    )


def deviation(drawn: torch.Tensor, probabilities: torch.Tensor) -> float:
    """Pearson's chi-square of tokens drawn, shape (any,); no token without probability may be among them."""
    found = torch.bincount(drawn, minlength=len(probabilities)).double()
    expected = probabilities.double() * len(drawn)
    assert not found[expected == 0].any()
    part = expected > 0
    return float(((found - expected)[part] ** 2 / expected[part]).sum())


@pytest.mark.timeout(300)
@pytest.mark.parametrize("rules", [Sampling(), Sampling(temperature=0.7, top_p=0.9, top_k=6)])
def test_checked_drafts_have_the_distribution_of_the_model(rules: Sampling) -> None:
    """vLLM's own check of drafts, as an engine runs it: many requests with the same logits, and drafts that
    are likely, unlikely and (with top-k) impossible."""
    from vllm.platforms import current_platform
    from vllm.v1.sample import rejection_sampler

    requests, vocabulary, device = 40_000, 8, current_platform.device_type
    if device == "cpu":
        current_platform.import_kernels()
        current_platform.register_triton_kernel_overrides()
        repair_rejection_sampler()
    torch.manual_seed(0)
    logits = torch.randn(2, vocabulary)
    expected = restrict(logits / rules.temperature, rules).softmax(-1)
    drafts = torch.arange(requests * 2, device=device).reshape(-1, 2) // 2 % vocabulary
    ends = 2 * torch.arange(1, requests + 1, dtype=torch.int32, device=device)
    told = metadata(rules, requests, device)
    constrained = rejection_sampler.apply_sampling_constraints(
        logits.repeat(requests, 1).to(device), ends, told
    )
    torch.testing.assert_close(constrained[:2].softmax(-1).cpu(), expected)
    bonus = torch.zeros(requests, 1, dtype=torch.int32, device=device)
    drawn = rejection_sampler.rejection_sample(
        drafts.flatten().to(torch.int32), [2] * requests, 2, ends, None, constrained, bonus, told
    ).cpu()
    first, second = drawn[:, 0], drawn[:, 1]
    # 40 is exceeded once in a million times (7 degrees of freedom).
    assert deviation(first, expected[0]) < 40
    assert deviation(second[second >= 0], expected[1]) < 40
    kept = first == drafts[:, 0].cpu()
    assert torch.equal(kept, second >= 0), "a second token where and only where the first draft was kept"
    for draft in range(vocabulary):
        share = kept[draft::vocabulary].double().mean()
        assert abs(share - expected[0, draft]) < 0.04, "a draft is kept as often as the model draws it"


@pytest.mark.timeout(300)
@pytest.mark.skipif(not HAS_TRITON, reason="vLLM checks drafts that are made on a device with Triton")
def test_drafts_that_a_device_made_have_the_distribution_of_the_model() -> None:
    """The check of vLLM's newer model runner: of each request two drafts, some likely and some not."""
    from vllm.platforms import current_platform
    from vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils import rejection_sample

    device, vocabulary = current_platform.device_type, 8
    requests = 800 if device == "cpu" else 40_000
    torch.manual_seed(0)
    logits = torch.randn(3, vocabulary)
    expected = logits.softmax(-1)
    drafts = torch.arange(requests * 2).reshape(-1, 2) // 2 % vocabulary
    rows = torch.arange(requests, dtype=torch.int32, device=device)
    places = torch.arange(3, dtype=torch.int32, device=device)
    drawn, counts = rejection_sample(
        target_logits=logits.repeat(requests, 1).to(device),
        draft_logits=None,
        # The token before, and the drafts.
        draft_sampled=torch.nn.functional.pad(drafts, (1, 0)).flatten().int().to(device),
        cu_num_logits=3 * torch.arange(requests + 1, dtype=torch.int32, device=device),
        pos=places.repeat(requests).long() + 5,
        idx_mapping=rows,
        expanded_idx_mapping=rows.repeat_interleave(3),
        expanded_local_pos=places.repeat(requests),
        temperature=torch.ones(requests, device=device),
        seed=torch.randint(2**62, (requests,)).to(device),
        num_speculative_steps=2,
    )
    drawn, counts = drawn.cpu(), counts.cpu()
    for place, probabilities in enumerate(expected):
        # 40 is exceeded once in a million times (7 degrees of freedom).
        assert deviation(drawn[counts > place, place], probabilities) < 40
        if place < 2:
            kept = drawn[:, place] == drafts[:, place]
            assert torch.equal(kept & (counts > place), counts > place + 1)
