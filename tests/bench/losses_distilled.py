"""On-policy distillation against verl's and TRL's, as `losses_verl` does it with the other losses.

verl's with `loss_mode: k1` and `use_policy_gradient` is ours with a teacher alone. Beside rewards verl adds
two losses, each clipped by itself, and we add two advantages: that is the same where nothing is clipped.
TRL's (`iw_opd`, here with all weights 1) has no ratio, so that its gradient is ours on tokens of the very
policy that is trained.
"""

import importlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from tests.bench.figures import Figure
from tests.bench.losses_compared import RESPONSES, WIDTH, Batch, Theirs, algorithm_of, batch, compared

COEFFICIENT = 0.5
CLIP = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28}
OWN_CLIP = {"low": 0.2, "high": 0.28, "dual": 3.0}
TRUNCATED = {"rollout_is": "sequence", "rollout_is_threshold": 2.0}


def taught(loss: dict[str, Any], coefficient: float = 1.0) -> Any:
    """An algorithm that has a teacher."""
    return algorithm_of(loss, distillation={"teacher": {"path": "teacher"}, "coefficient": coefficient})


def alone(seed: int) -> Batch:
    """A batch from whose rewards nothing is learned."""
    return replace(batch(seed), advantages=torch.zeros(RESPONSES, dtype=torch.float64))


def near(seed: int) -> Batch:
    """A batch of ratios that no bound clips."""
    given = batch(seed)
    return replace(given, engine=given.new + 0.02 * (given.engine - given.new))


def on_policy(seed: int) -> Batch:
    """One of the policy that is trained."""
    return replace(alone(seed), engine=batch(seed).new)


def verl_distillation() -> Iterator[Figure]:
    core = importlib.import_module("verl.trainer.ppo.core_algos")
    weigh = importlib.import_module("verl.trainer.ppo.rollout_corr_helper").compute_rollout_correction_weights
    configs = importlib.import_module("verl.workers.config")
    distill = importlib.import_module("verl.trainer.distillation.losses").distillation_loss
    made = configs.ActorConfig(
        strategy="fsdp", rollout_n=1, ppo_mini_batch_size=8, ppo_micro_batch_size_per_gpu=1, **CLIP
    )
    wanted = configs.DistillationConfig(
        distillation_loss=configs.DistillationLossConfig(
            loss_mode="k1", use_policy_gradient=True, loss_max_clamp=None, **CLIP
        )
    )

    def teacher_s(given: Batch, new: Tensor, correction: dict[str, Any] | None) -> Tensor:
        weights, old = None, given.engine
        if correction is not None:
            weights, _ = weigh(given.proximal - given.engine, given.mask.long(), **correction)
            old = given.proximal
        found: Tensor
        found, _ = distill(made, wanted, {"log_probs": in_a_row(new, given)}, data_of(given, old, weights))
        return found

    def only(correction: dict[str, Any] | None) -> Theirs:
        return lambda given, new: teacher_s(given, new, correction)

    def beside_rewards(given: Batch, new: Tensor) -> Tensor:
        found: Tensor
        found, _ = core.get_policy_loss_fn("vanilla")(
            old_log_prob=given.engine,
            log_prob=new,
            advantages=given.advantages[:, None].expand_as(new),
            response_mask=given.mask.double(),
            loss_agg_mode="token-mean",
            config=made,
            rollout_is_weights=None,
        )
        return found + COEFFICIENT * teacher_s(given, new, None)

    clip = {"clip": OWN_CLIP}
    truncated = {"decoupledClip": {**OWN_CLIP, "level": "sequence", "weightCap": 2.0}}
    yield from compared("distillation", taught(clip), only(None), alone)
    yield from compared("distillation, truncated", taught(truncated), only(TRUNCATED), alone)
    yield from compared(
        "distillation beside rewards, nothing clipped", taught(clip, COEFFICIENT), beside_rewards, near
    )


def in_a_row(values: Tensor, given: Batch) -> Tensor:
    """Log-probabilities of responses as verl's models give them: of all sequences in a row, each after a
    prompt of one token and earlier by one place."""
    last = torch.zeros(1, dtype=values.dtype)
    lengths = given.mask.sum(1).tolist()
    return torch.cat(
        [part for row, length in zip(values, lengths, strict=True) for part in (row[:length], last)]
    )


def data_of(given: Batch, old: Tensor, weights: Tensor | None) -> Any:
    tensors = importlib.import_module("tensordict")
    prompt = torch.ones(RESPONSES, 1, dtype=torch.long)
    data = {
        "prompts": prompt,
        "responses": torch.zeros(RESPONSES, WIDTH, dtype=torch.long),
        "attention_mask": torch.cat([prompt, given.mask.long()], dim=1),
        "response_mask": given.mask.double(),
        "old_log_probs": old,
        "teacher_logprobs": in_a_row(given.teacher, given)[:, None],
        **({} if weights is None else {"rollout_is_weights": weights}),
    }
    whole = tensors.TensorDict(data, batch_size=[])
    for name, value in (("dp_size", 1), ("batch_num_tokens", None), ("global_batch_size", None)):
        whole.set_non_tensor(name, value)
    return whole


def trl_distillation() -> Iterator[Figure]:
    trainer = importlib.import_module("trl.experimental.iw_opd.iw_opd_trainer").IWOPDTrainer

    def loss(given: Batch, new: Tensor) -> Tensor:
        made = SimpleNamespace(
            temperature=1.0, iw_opd_gamma=0.0, iw_opd_epsilon=1e-8, model=SimpleNamespace(training=True),
            _metrics=defaultdict(lambda: defaultdict(list)),
        )  # fmt: skip
        # Two tokens, of which the first was drawn.
        logits = torch.stack([new, torch.log(-torch.expm1(new))], dim=-1)
        found: Tensor = trainer._compute_iw_opd_loss(
            made, logits, torch.zeros(RESPONSES, WIDTH, dtype=torch.long),
            torch.zeros(RESPONSES, WIDTH, dtype=torch.long).masked_fill(~given.mask, -100),
            given.teacher, given.engine,
        )  # fmt: skip
        return found

    found = compared(
        "distillation (iw_opd with gamma 0), on policy", taught({"clip": OWN_CLIP}), loss, on_policy
    )
    # The losses themselves are others: -log pi * A, and -pi / pi_old * A.
    yield from (each for each in found if each.name.endswith("gradient"))
