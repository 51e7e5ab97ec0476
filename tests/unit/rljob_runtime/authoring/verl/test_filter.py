"""Groups that are left out, from a verl launch."""

import pytest

from tests.support.runtime.verl_launch import converted, fields, of

GROUP = "algorithm.filter_groups"
MOST = f"{GROUP}.max_num_gen_batches"
FIELD = "training.rollout.filter.zeroVariance"
DAPO = "recipe.dapo.main_dapo"
OVERLONG = [
    "reward_model.reward_manager=dapo",
    "reward_model.reward_kwargs.overlong_buffer_cfg.enable=True",
    "reward_model.reward_kwargs.overlong_buffer_cfg.len=128",
]


def filtered(*overrides, program=DAPO):
    return converted(f"{GROUP}.enable=True", *overrides, program=program)


@pytest.mark.parametrize(
    ("overrides", "refill", "words"),
    [
        # verl generates without end.
        ([], 1000, "has no bound: 1000, the most"),
        ([f"{MOST}=0"], 1000, "has no bound: 1000, the most"),
        ([f"{MOST}=1"], 1, "ends with an error"),
        ([f"{MOST}=2"], 1, None),
        ([f"{MOST}=10"], 9, None),
        ([f"{MOST}=5000"], 1000, "1000, the most"),
        # A batch that is generated holds three that are trained.
        ([f"{MOST}=10", "data.train_batch_size=512", "data.gen_batch_size=1536"], 29, None),
    ],
)
def test_how_many_groups_are_refused_at_most(overrides, refill, words):
    conversion = filtered(*overrides)
    assert fields(conversion)[f"{FIELD}.maxRefill"] == refill
    told = of(conversion, MOST)
    if words is None:
        assert told == []
    else:
        assert words in told[0][0]


@pytest.mark.parametrize(
    ("overrides", "differs"),
    [
        (["metric=acc"], False),
        (["metric=acc", *OVERLONG], True),
        (["metric=score", *OVERLONG], True),
        (["metric=seq_reward", *OVERLONG], False),
        (["metric=seq_final_reward", *OVERLONG], False),
        (["metric=acc", "custom_reward_function.path=/x/judge.py"], True),
        (["metric=score", "custom_reward_function.path=/x/judge.py"], False),
        (["metric=length"], True),
    ],
)
def test_what_is_compared_is_told_where_it_is_another_number(overrides, differs):
    metric, *others = overrides
    told = of(filtered(f"{GROUP}.{metric}", *others), f"{GROUP}.metric")
    assert (
        ("what is compared is the reward with its shaping", True) in told
        if differs
        else not any(decide for _, decide in told)
    )


def test_a_filter_that_main_ppo_has_not_is_told():
    ((words, decide),) = of(filtered(program="verl.trainer.main_ppo"), f"{GROUP}.enable")
    assert words.startswith("main_ppo trains every group")
    assert decide
    assert of(filtered(), f"{GROUP}.enable") == []
    assert of(filtered(program="recipe.entropy.main_entropy"), f"{GROUP}.enable") == []
