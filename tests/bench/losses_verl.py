"""Losses and advantages against verl's and TRL's own functions, on random tensors in float64.

    VERL_SOURCE=FOLDER TRL_SOURCE=FOLDER MAXRL_SOURCE=FOLDER \\
        python -m tests.bench.losses_verl --file losses_verl

The folders hold the packages `verl` and `trl` (a wheel unpacked, or a checkout), and a checkout of what the
authors of MaxRL published, which has a `verl` of its own; what these import must be installed. Without one of
them, its figures are left out, and a line says so. Each figure is the largest
difference over 20 batches: of the batch's loss, of its gradient by each log-probability, of an advantage.
"""

import argparse
import importlib
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rljob_api.algorithm import Advantage, Algorithm
from rljob_runtime.objective.advantages import GroupRewards, estimator
from tests.bench.figures import Figure, record
from tests.bench.losses_compared import (
    BATCHES,
    GROUP,
    RESPONSES,
    WIDTH,
    Batch,
    Theirs,
    algorithm_of,
    batch,
    compared,
)
from tests.bench.losses_distilled import trl_distillation, verl_distillation


def verl_losses() -> Iterator[Figure]:
    core = importlib.import_module("verl.trainer.ppo.core_algos")
    weigh = importlib.import_module("verl.trainer.ppo.rollout_corr_helper").compute_rollout_correction_weights
    config = importlib.import_module("verl.workers.config").ActorConfig

    def term(mode: str, aggregation: str, correction: dict[str, Any] | None, **settings: Any) -> Theirs:
        made = config(
            strategy="fsdp", rollout_n=1, ppo_mini_batch_size=8, ppo_micro_batch_size_per_gpu=1, **settings
        )

        def loss(given: Batch, new: Tensor) -> Tensor:
            weights, old = None, given.engine
            if mode == "reinforce":
                weights, _ = weigh(new.detach() - given.engine, given.mask.long(), **(correction or {}))
            elif correction is not None:
                weights, _ = weigh(given.proximal - given.engine, given.mask.long(), **correction)
                old = given.proximal
            more = {
                "log_prob": new,
                "advantages": given.advantages[:, None].expand_as(new),
                "response_mask": given.mask.double(),
                "loss_agg_mode": aggregation,
                "config": made,
                "rollout_is_weights": weights,
            }
            found: Tensor
            if mode == "reinforce":
                found, _ = core.compute_policy_loss_reinforce(rollout_log_prob=given.engine, **more)
            else:
                found, _ = core.get_policy_loss_fn(mode)(old_log_prob=old, **more)
            return found

        return loss

    clip = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 3.0}
    own_clip = {"low": 0.2, "high": 0.28, "dual": 3.0}
    tis = {"rollout_is": "sequence", "rollout_is_threshold": 2.0}
    own_tis = {"level": "sequence", "weightCap": 2.0}
    ice_pop = {"rollout_is": "token", "rollout_is_threshold": "0.5_5.0"}
    own_ice_pop = {"weightFloor": 0.5, "weightCap": 5.0, "outside": "mask"}
    tokens, sequences = "token-mean", "seq-mean-token-mean"
    yield from compared("clip", algorithm_of({"clip": own_clip}), term("vanilla", tokens, None, **clip))
    yield from compared(
        "clip, fixed-length",
        algorithm_of({"clip": own_clip}, aggregation="fixed-length"),
        term("vanilla", "seq-mean-token-sum-norm", None, **clip),
    )
    for name, theirs, own in (("truncated", tis, own_tis), ("IcePop", ice_pop, own_ice_pop)):
        decoupled = algorithm_of({"decoupledClip": {**own_clip, **own}})
        yield from compared(f"decoupledClip, {name}", decoupled, term("vanilla", tokens, theirs, **clip))
    yield from compared(
        "truncatedReinforce",
        algorithm_of({"truncatedReinforce": {"weightCap": 2.0}}),
        term("reinforce", tokens, {"rollout_is": "token", "rollout_is_threshold": 2.0}),
    )
    rows: list[tuple[str, str, str, dict[str, Any], dict[str, Any]]] = [
        (
            "gspo", "gspo", sequences, {"clip_ratio_low": 0.1, "clip_ratio_high": 0.2},
            {"low": 0.1, "high": 0.2},
        ),
        (
            "cispo", "cispo", tokens, {"clip_ratio_low": 0.5, "clip_ratio_high": 1.0},
            {"weightFloor": 0.5, "weightCap": 2.0},
        ),
        (
            "dppoTv", "dppo_tv", tokens,
            {"clip_ratio_low": 0.02, "clip_ratio_high": 0.02, "clip_ratio_c": 20.0},
            {"low": 0.02, "high": 0.02, "weightCap": 20.0},
        ),
        ("sapo", "sapo", sequences, {"tau_pos": 1.0, "tau_neg": 1.05}, {}),
    ]  # fmt: skip
    for name, mode, aggregation, settings, own in rows:
        mean = {"aggregation": "sequence-mean" if aggregation == sequences else "token-mean"}
        plain = algorithm_of({name: own}, **mean)
        yield from compared(name, plain, term(mode, aggregation, None, **settings))
        for how, theirs, weights in (("truncated", tis, own_tis), ("IcePop", ice_pop, own_ice_pop)):
            corrected = algorithm_of({name: own}, rolloutCorrection=weights, **mean)
            yield from compared(f"{name}, {how}", corrected, term(mode, aggregation, theirs, **settings))


def verl_advantages() -> Iterator[Figure]:
    core = importlib.import_module("verl.trainer.ppo.core_algos")
    by_group = "compute_grpo_outcome_advantage"
    rows: list[tuple[str, dict[str, Any], bool, str, dict[str, Any]]] = [
        ("grpo", {"grpo": {}}, True, by_group, {"norm_adv_by_std_in_grpo": True}),
        ("Dr. GRPO", {"grpo": {}}, False, by_group, {"norm_adv_by_std_in_grpo": False}),
        ("rloo", {"rloo": {}}, True, "compute_rloo_outcome_advantage", {}),
        (
            "reinforcePlusPlus", {"reinforcePlusPlus": {}}, True,
            "compute_reinforce_plus_plus_outcome_advantage", {"config": SimpleNamespace(gamma=1.0)},
        ),
        (
            "reinforcePlusPlus, baseline", {"reinforcePlusPlus": {"baseline": True}}, True,
            "compute_reinforce_plus_plus_baseline_outcome_advantage", {},
        ),
    ]  # fmt: skip
    for name, choice, by_std, function, settings in rows:
        algorithm = Algorithm(advantage=Advantage.model_validate(choice), normalize_by_std=by_std)
        worst = 0.0
        for seed in range(BATCHES):
            given = batch(seed)
            scores = torch.zeros_like(given.new)
            scores[torch.arange(RESPONSES), given.mask.sum(1) - 1] = given.rewards
            if name != "reinforcePlusPlus":
                settings = settings | {"index": np.arange(RESPONSES) // GROUP}
            found, _ = getattr(core, function)(
                token_level_rewards=scores, response_mask=given.mask.double(), **settings
            )
            # Of a response's first token, which counts in each of them.
            worst = max(worst, float(np.abs(own_advantages(algorithm, given) - found[:, 0].numpy()).max()))
        yield Figure(f"advantage {name}", worst, "largest difference")


def maxrl_advantages() -> Iterator[Figure]:
    """With the 1e-6 that is added to a group's mean there, and without."""
    core = importlib.import_module("verl.trainer.ppo.core_algos")
    algorithm = Algorithm(advantage=Advantage.model_validate({"maxRl": {}}))
    for name, settings in (("maxRl", {"epsilon": 0.0}), ("maxRl, 1e-6 added to the mean", {})):
        worst = 0.0
        for seed in range(BATCHES):
            given = batch(seed)
            scores = torch.zeros_like(given.new)
            scores[:, 0] = given.rewards
            found, _ = core.compute_maxrl_outcome_advantage(
                token_level_rewards=scores,
                response_mask=given.mask.double(),
                index=np.arange(RESPONSES) // GROUP,
                **settings,
            )
            worst = max(worst, float(np.abs(own_advantages(algorithm, given) - found[:, 0].numpy()).max()))
        yield Figure(f"advantage {name}", worst, "largest difference")


def own_advantages(algorithm: Algorithm, given: Batch) -> Any:
    groups = [
        GroupRewards(
            uid,
            uid,
            given.rewards[first : first + GROUP].numpy(),
            np.ones(GROUP, dtype=np.bool_),
            given.mask[first : first + GROUP].sum(1).numpy(),
        )
        for uid, first in enumerate(range(0, RESPONSES, GROUP))
    ]
    return np.concatenate(estimator(algorithm)(groups))


def trl_losses() -> Iterator[Figure]:
    trainer = importlib.import_module("trl.trainer.grpo_trainer").GRPOTrainer

    def term(loss_type: str, level: str = "token", mask: float | None = None, **settings: Any) -> Theirs:
        def loss(given: Batch, new: Tensor) -> Tensor:
            accelerator = SimpleNamespace(
                gather=lambda value: value, reduce=lambda value, reduction: value, num_processes=1
            )
            made = SimpleNamespace(
                aux_loss_enabled=False, top_entropy_quantile=1.0, off_policy_mask_threshold=mask,
                importance_sampling_level=level, beta=0.0, loss_type=loss_type, use_vllm=False,
                epsilon_low=settings.get("low"), epsilon_high=settings.get("high"),
                args=SimpleNamespace(
                    delta=settings.get("delta"), steps_per_generation=1, sapo_temperature_pos=1.0,
                    sapo_temperature_neg=1.05,
                ),
                model=SimpleNamespace(training=True), current_gradient_accumulation_steps=1,
                accelerator=accelerator, _entropy_bonus_enabled=False, max_completion_length=WIDTH,
                _metrics=defaultdict(lambda: defaultdict(list)),
                get_off_policy_mask=trainer.get_off_policy_mask,
                _get_per_token_logps_and_entropies=lambda *_, **__: (new, torch.zeros_like(new), None),
            )  # fmt: skip
            inputs = {
                "prompt_ids": torch.zeros(RESPONSES, 1, dtype=torch.long),
                "prompt_mask": torch.ones(RESPONSES, 1, dtype=torch.long),
                "completion_ids": torch.zeros(RESPONSES, WIDTH, dtype=torch.long),
                "completion_mask": given.mask.long(),
                "advantages": given.advantages,
                "old_per_token_logps": given.engine,
                "num_items_in_batch": given.mask.sum(),
            }
            found: Tensor = trainer._compute_loss(made, None, inputs)
            return found

        return loss

    sequences = {"aggregation": "sequence-mean"}
    clip = {"low": 0.2, "high": 0.28, "dual": 3.0}
    yield from compared(
        "clip (dapo with a delta of 3)",
        algorithm_of({"clip": clip}),
        term("dapo", low=0.2, high=0.28, delta=3.0),
    )
    yield from compared(
        "clip, fixed-length (dr_grpo with a delta of 3)",
        algorithm_of({"clip": clip}, aggregation="fixed-length"),
        term("dr_grpo", low=0.2, high=0.28, delta=3.0),
    )
    yield from compared(
        "clip with offPolicyMask",
        algorithm_of({"clip": clip}, offPolicyMask={"maxDivergence": 0.05}),
        term("dapo", mask=0.05, low=0.2, high=0.28, delta=3.0),
    )
    yield from compared(
        "gspo (grpo by sequence)",
        algorithm_of({"gspo": {"low": 0.1, "high": 0.2}}, **sequences),
        term("grpo", "sequence", low=0.1, high=0.2),
    )
    yield from compared("cispo", algorithm_of({"cispo": {"weightCap": 2.0}}), term("cispo", high=2.0))
    yield from compared("sapo", algorithm_of({"sapo": {}}, **sequences), term("sapo"))


def importable(variable: str, package: str, whose: str) -> bool:
    """Whether the package can be imported from the folder that the variable names, and from no other; says
    whose figures are left out where not."""
    folder = os.environ.get(variable)
    if not folder:
        print(f"{whose} left out: {variable} does not say where the source is")
        return False
    # Of two sources of one name the earlier one goes.
    for name in [each for each in sys.modules if each.partition(".")[0] == package]:
        del sys.modules[name]
    sys.path.insert(0, folder)
    try:
        importlib.import_module(package)
    except ImportError as error:
        print(f"{whose} left out: {package} cannot be imported from {folder}: {error}")
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--file", help="file of tests/bench/results that the figures are written to")
    options = parser.parse_args()
    figures: list[Figure] = []
    if importable("MAXRL_SOURCE", "verl", "MaxRL's authors are"):
        figures += [replace(each, name=f"authors of MaxRL: {each.name}") for each in maxrl_advantages()]
    if importable("VERL_SOURCE", "verl", "verl is"):
        of_verl = (*verl_losses(), *verl_advantages(), *verl_distillation())
        figures += [replace(each, name=f"verl: {each.name}") for each in of_verl]
    if importable("TRL_SOURCE", "trl", "TRL is"):
        figures += [replace(each, name=f"TRL: {each.name}") for each in (*trl_losses(), *trl_distillation())]
    if options.file and figures:
        record(options.file, figures)
        return
    for figure in figures:
        print(f"{figure.name}: {figure.value:.2g}")


if __name__ == "__main__":
    main()
