"""The loss of a batch and its gradient do not depend on how the batch is split."""

from itertools import pairwise
from typing import get_args

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api.algorithm import (
    Aggregation,
    Algorithm,
    Cispo,
    Clip,
    DecoupledClip,
    DppoTv,
    Gspo,
    KlPenalty,
    OffPolicyMask,
    PolicyLoss,
    Sapo,
    TruncatedReinforce,
)  # fmt: skip
from rljob_runtime.objective.tokens import Tokens
from rljob_runtime.trainer.loss import token_loss, token_weights
from tests.support.depth import examples

LOSSES = st.sampled_from(
    [
        PolicyLoss(gspo=Gspo(low=0.1, high=0.2)),
        PolicyLoss(cispo=Cispo()),
        PolicyLoss(dppo_tv=DppoTv(low=0.01)),
        PolicyLoss(sapo=Sapo()),
        PolicyLoss(clip=Clip()),
        PolicyLoss(decoupled_clip=DecoupledClip(level="sequence", outside="mask", weight_floor=0.5)),
        PolicyLoss(truncated_reinforce=TruncatedReinforce()),
    ]
)


@settings(deadline=None, max_examples=examples(60))
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    cuts=st.sets(st.integers(1, 7)),
    loss=LOSSES,
    mask=st.none() | st.just(OffPolicyMask(max_divergence=0.1)),
    aggregation=st.sampled_from(get_args(Aggregation)),
    seed=st.integers(0, 1000),
)
def test_any_split_into_micro_batches(
    lengths: list[int],
    cuts: set[int],
    loss: PolicyLoss,
    mask: OffPolicyMask | None,
    aggregation: Aggregation,
    seed: int,
) -> None:
    algorithm = Algorithm(
        policy_loss=loss,
        off_policy_mask=mask,
        kl=KlPenalty(coefficient=0.5),
        entropy_coefficient=0.1,
        aggregation=aggregation,
    )
    generator = torch.Generator().manual_seed(seed)
    columns = -3 + 0.5 * torch.randn(6, sum(lengths), generator=generator)
    responses = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))

    def part(first: int, last: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss and gradient of responses first..last-1."""
        inside = (responses >= first) & (responses < last)
        new, engine, advantages, entropy, proximal, reference = columns[:, inside].unbind()
        new = new.clone().requires_grad_()
        tokens = Tokens(new, engine, advantages + 3, responses[inside] - first, entropy, proximal, reference)
        weights = token_weights(aggregation, torch.tensor(lengths[first:last]), sum(lengths), len(lengths), 9)
        total = (token_loss(algorithm, tokens).total * weights).sum()
        return total.detach(), torch.autograd.grad(total, new)[0]

    bounds = [0, *sorted(cut for cut in cuts if cut < len(lengths)), len(lengths)]
    whole, gradient = part(0, len(lengths))
    losses, gradients = zip(*(part(first, last) for first, last in pairwise(bounds)), strict=True)
    torch.testing.assert_close(torch.stack(losses).sum(), whole, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(torch.cat(gradients), gradient, rtol=1e-5, atol=1e-6)
