"""Policy losses of a verl launch, and distillation."""

import pytest

from tests.support.runtime.verl_launch import ACTOR, RECIPE, converted, fields, of

CORRECTION = "algorithm.rollout_correction"
LOSS = "training.algorithm.policyLoss"
PLAIN = {"clip.low": 0.2, "clip.high": 0.2, "clip.dual": 3.0}
DECOUPLED = {"decoupledClip.low": 0.2, "decoupledClip.high": 0.2, "decoupledClip.dual": 3.0}


def loss_of(conversion):
    found = fields(conversion)
    return {path.removeprefix(f"{LOSS}."): found[path] for path in found if path.startswith(f"{LOSS}.")}


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], {"clip.low": 0.2, "clip.high": 0.2, "clip.dual": 3.0}),
        ([f"{ACTOR}.clip_ratio=0.3"], PLAIN),
        (
            [f"{ACTOR}.clip_ratio=0.3", f"{ACTOR}.clip_ratio_low=null", f"{ACTOR}.clip_ratio_high=null"],
            {"clip.low": 0.3, "clip.high": 0.3, "clip.dual": 3.0},
        ),
        ([f"{CORRECTION}.bypass_mode=True", f"{CORRECTION}.rollout_is=token"], PLAIN),
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
    assert loss_of(converted(*overrides)) == expected


def test_weights_beside_a_ratio_against_the_engines_are_told_to_have_no_effect():
    conversion = converted(f"{CORRECTION}.bypass_mode=True", f"{CORRECTION}.rollout_is=token")
    ((words, decide),) = of(conversion, f"{CORRECTION}.rollout_is")
    assert "of no effect in verl" in words
    assert not decide


def test_a_bound_that_has_no_effect_in_verl_is_told():
    ((words, decide),) = of(converted(f"{ACTOR}.clip_ratio=0.3"), f"{ACTOR}.clip_ratio")
    assert words == "of no effect in verl: clip_ratio_low and clip_ratio_high, 0.2 by default, count instead"
    assert not decide
    low = [f"{ACTOR}.clip_ratio=0.3", f"{ACTOR}.clip_ratio_low=null"]
    assert of(converted(*low), f"{ACTOR}.clip_ratio") == []


def test_reinforce_in_bypass_mode_is_told():
    key = f"{CORRECTION}.loss_type"
    ((words, decide),) = of(converted(f"{CORRECTION}.bypass_mode=True", f"{key}=reinforce"), key)
    assert "truncatedReinforce" in words
    assert decide
    ((_, decide),) = of(converted(f"{CORRECTION}.bypass_mode=True", f"{key}=ppo_clip"), key)
    assert not decide


@pytest.mark.parametrize(
    ("own", "proximal", "weights", "expected"),
    [
        (None, None, None, PLAIN),
        (True, False, None, PLAIN),
        (True, True, None, DECOUPLED | {"decoupledClip.level": "token"}),
        (None, True, None, DECOUPLED | {"decoupledClip.level": "token"}),
        (False, None, None, DECOUPLED | {"decoupledClip.level": "token"}),
        (True, True, "sequence", DECOUPLED | {"decoupledClip.level": "sequence"}),
        # The ratio is against the engines, and the weight is 1.
        (True, False, "token", PLAIN),
    ],
)
def test_ratios_of_the_fully_async_recipe(own, proximal, weights, expected):
    given = {
        "async_training.use_rollout_log_probs": own,
        "async_training.compute_prox_log_prob": proximal,
        f"{CORRECTION}.rollout_is": weights,
    }
    found = loss_of(
        converted(*(f"{key}={value}" for key, value in given.items() if value is not None), program=RECIPE)
    )
    found.pop("decoupledClip.weightCap", None)
    assert found == expected


@pytest.mark.parametrize("mode", ["vanilla", "gspo"])
def test_weights_that_verl_has_not_are_told_where_the_proximal_policy_is_computed(mode):
    asked = ["async_training.compute_prox_log_prob=True", f"{ACTOR}.policy_loss.loss_mode={mode}"]
    ((words, decide),) = of(converted(*asked, program=RECIPE), "async_training.compute_prox_log_prob")
    assert "weighs each token" in words
    assert "stepsPerVersion" in words
    assert decide
    one = converted(*asked, "async_training.trigger_parameter_sync_step=1", program=RECIPE)
    assert "stepsPerVersion" not in of(one, "async_training.compute_prox_log_prob")[0][0]
    weighed = [f"{CORRECTION}.rollout_is=token", "async_training.trigger_parameter_sync_step=1"]
    ((_, decide),) = of(converted(*asked, *weighed, program=RECIPE), "async_training.compute_prox_log_prob")
    assert not decide


@pytest.mark.parametrize("mode", ["vanilla", "gspo", "cispo", "sapo", "dppo_tv"])
def test_a_ratio_against_the_trainers_policy_is_told(mode):
    asked = f"{ACTOR}.policy_loss.loss_mode={mode}"
    ((words, decide),) = of(converted(asked), LOSS)
    assert ("decoupledClip" if mode == "vanilla" else "rolloutCorrection") in words
    assert decide
    assert of(converted(asked, f"{CORRECTION}.bypass_mode=True"), LOSS) == []
    assert of(converted(asked, f"{CORRECTION}.rollout_is=token"), LOSS) == []
    assert of(converted(asked, program=RECIPE), LOSS) == []


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
