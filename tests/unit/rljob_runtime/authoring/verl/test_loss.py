"""Policy losses of a verl launch, and distillation."""

import pytest

from tests.support.runtime.verl_launch import ACTOR, converted, fields


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], {"clip.low": 0.2, "clip.high": 0.2, "clip.dual": 3.0}),
        ([f"{ACTOR}.clip_ratio=0.3"], {"clip.low": 0.3, "clip.high": 0.3, "clip.dual": 3.0}),
        ([f"{ACTOR}.clip_ratio_high=0.28"], {"clip.low": 0.2, "clip.high": 0.28, "clip.dual": 3.0}),
        (
            ["algorithm.rollout_correction.rollout_is=token"],
            {"decoupledClip.low": 0.2, "decoupledClip.high": 0.2, "decoupledClip.dual": 3.0}
            | {"decoupledClip.level": "token", "decoupledClip.weightCap": 2.0},
        ),
        (
            [
                f"{ACTOR}.policy_loss.loss_mode=gspo",
                f"{ACTOR}.clip_ratio_low=3e-4",
                f"{ACTOR}.clip_ratio_high=4e-4",
            ],
            {"gspo.low": 3e-4, "gspo.high": 4e-4},
        ),
        (
            [
                f"{ACTOR}.policy_loss.loss_mode=cispo",
                f"{ACTOR}.clip_ratio_low=10",
                f"{ACTOR}.clip_ratio_high=4",
            ],
            {"cispo.weightFloor": 0.0, "cispo.weightCap": 5.0},
        ),
        (
            [f"{ACTOR}.policy_loss.loss_mode=dppo_tv"],
            {"dppoTv.low": 0.2, "dppoTv.high": 0.2, "dppoTv.weightCap": 3.0},
        ),
        (
            [f"{ACTOR}.policy_loss.loss_mode=sapo", f"{ACTOR}.tau_neg=1.2"],
            {"sapo.positiveTemperature": 1.0, "sapo.negativeTemperature": 1.2},
        ),
        ([f"{ACTOR}.policy_loss.loss_mode=clip_cov"], {"clip.low": 0.2, "clip.high": 0.2, "clip.dual": 3.0}),
    ],
)
def test_policy_losses(overrides, expected):
    found = fields(converted(*overrides))
    prefix = "training.algorithm.policyLoss."
    assert {path.removeprefix(prefix): found[path] for path in found if path.startswith(prefix)} == expected


@pytest.mark.parametrize(
    ("mode", "asked", "expected"),
    [
        ("gspo", None, "sequence-mean"),
        ("gspo", "token-mean", "sequence-mean"),
        ("sapo", None, "sequence-mean"),
        ("cispo", None, "token-mean"),
        ("vanilla", "seq-mean-token-mean", "sequence-mean"),
    ],
)
def test_losses_of_whole_responses_have_one_aggregation(mode, asked, expected):
    asked_for = [] if asked is None else [f"{ACTOR}.loss_agg_mode={asked}"]
    found = fields(converted(f"{ACTOR}.policy_loss.loss_mode={mode}", *asked_for))
    # Left out: token-mean, the default.
    assert found.get("training.algorithm.aggregation", "token-mean") == expected


def test_weights_of_other_losses_stand_beside_them():
    found = fields(
        converted(
            f"{ACTOR}.policy_loss.loss_mode=gspo",
            "algorithm.rollout_correction.rollout_is=sequence",
            "algorithm.rollout_correction.rollout_is_threshold=0.5_5.0",
        )
    )
    prefix = "training.algorithm.rolloutCorrection."
    assert {path.removeprefix(prefix): found[path] for path in found if path.startswith(prefix)} == {
        "level": "sequence",
        "weightFloor": 0.5,
        "weightCap": 5.0,
        "outside": "mask",
    }
