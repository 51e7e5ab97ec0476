"""Batches, length and pools of a verl launch."""

import pytest

from tests.support.runtime.verl_launch import ACTOR, RECIPE, ROLLOUT, converted, fields, of, told


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["data.train_batch_size=512", f"{ACTOR}.ppo_mini_batch_size=128"], (128, 4)),
        (["data.train_batch_size=64", f"{ACTOR}.ppo_mini_batch_size=128"], (64, 1)),
        (["data.train_batch_size=100", f"{ACTOR}.ppo_mini_batch_size=64"], (64, 1)),
        ([], (256, 4)),
    ],
)
def test_batches_of_a_synchronous_script(overrides, expected):
    found = fields(converted(*overrides))
    assert (found["training.schedule.promptsPerBatch"], found["training.schedule.batchesPerStep"]) == expected
    assert found["training.async.maxStaleness"] == 0


@pytest.mark.parametrize(
    ("program", "overrides", "expected"),
    [
        ("verl.trainer.main_ppo", ["trainer.total_epochs=3"], ("epochs", 3)),
        (
            "verl.trainer.main_ppo",
            ["trainer.total_epochs=3", "trainer.total_training_steps=7"],
            ("totalSteps", 7),
        ),
        ("verl.trainer.main_ppo", [], ("epochs", 30)),
        (
            RECIPE,
            ["rollout.total_rollout_steps=51200", "async_training.require_batches=2"],
            ("totalSteps", 100),
        ),
        (RECIPE, ["rollout.total_rollout_steps=51200", "rollout.total_epochs=2"], ("epochs", 2)),
        (RECIPE, [], ("epochs", 10)),
        (RECIPE, ["trainer.total_training_steps=7"], ("epochs", 10)),
        (
            RECIPE,
            ["trainer.total_training_steps=7", "rollout.total_rollout_steps=25600"],
            ("totalSteps", 100),
        ),
    ],
)
def test_length_of_training(program, overrides, expected):
    found = fields(converted(*overrides, program=program))
    given = [(name, found.get(f"training.schedule.{name}")) for name in ("totalSteps", "epochs")]
    assert [each for each in given if each[1] is not None] == [expected]


def test_of_steps_and_epochs_the_one_that_is_left_out_is_told():
    conversion = converted("trainer.total_epochs=1", "trainer.total_training_steps=500")
    assert of(conversion, "trainer.total_epochs") == [
        ("verl ends with whichever comes first; to end earlier than totalSteps, epochs: 1", True)
    ]
    assert of(conversion, "trainer.total_training_steps") == []
    rollouts = converted("rollout.total_rollout_steps=51200", "rollout.total_epochs=2", program=RECIPE)
    assert of(rollouts, "rollout.total_rollout_steps") == [
        ("verl ends with whichever comes first; to end earlier than epochs, totalSteps: 200", True)
    ]


def test_steps_that_the_fully_async_recipe_does_not_read_are_told():
    conversion = converted("trainer.total_training_steps=7", program=RECIPE)
    assert of(conversion, "trainer.total_training_steps") == [
        ("of no effect in verl's fully-async recipe: rollout.total_rollout_steps ends it", False)
    ]


def test_prompts_after_which_the_fully_async_recipe_ends_by_itself_are_told():
    key = "rollout.total_rollout_steps"
    assert of(converted(program=RECIPE), key) == [
        ("it is not given, and verl's default of it ends after 100 prompts", True)
    ]
    assert of(converted(f"{key}=null", program=RECIPE), key)[0][1] is False


def test_the_optimizers_number_of_steps_is_not_that_of_the_run():
    key = f"{ACTOR}.optim.total_training_steps"
    conversion = converted(f"{key}=500", "trainer.total_epochs=3")
    assert fields(conversion)["training.schedule.epochs"] == 3
    ((words, decide),) = of(conversion, key)
    assert "verl replaces it" in words
    assert not decide


@pytest.mark.parametrize(
    ("program", "overrides", "pools"),
    [
        (
            "verl.trainer.main_ppo",
            ["trainer.n_gpus_per_node=8", f"{ROLLOUT}.tensor_model_parallel_size=2"],
            (1, 4, 2, 2),
        ),
        (
            "verl.trainer.main_ppo",
            ["trainer.n_gpus_per_node=8", f"{ROLLOUT}.tensor_model_parallel_size=8"],
            (1, 4, 1, 4),
        ),
        ("verl.trainer.main_ppo", ["trainer.n_gpus_per_node=1"], (1, 1, 1, 1)),
        (
            "verl.trainer.main_ppo",
            ["trainer.nnodes=4", f"{ROLLOUT}.tensor_model_parallel_size=1"],
            (2, 8, 16, 1),
        ),
        (
            RECIPE,
            ["trainer.nnodes=2", "rollout.nnodes=3", f"{ROLLOUT}.tensor_model_parallel_size=4"],
            (2, 8, 6, 4),
        ),
        (
            "verl.trainer.main_ppo",
            [f"{ROLLOUT}.nnodes=2", f"{ROLLOUT}.tensor_model_parallel_size=4"],
            (1, 8, 4, 4),
        ),
        ("verl.trainer.main_ppo", ["trainer.device=cpu", "trainer.n_gpus_per_node=4"], (1, 1, 1, 1)),
    ],
)
def test_pools(program, overrides, pools):
    found = fields(converted(*overrides, program=program))
    names = [
        f"pools.{pool}.{name}"
        for pool in ("trainer", "fastRollout")
        for name in ("replicas", "acceleratorsPerWorker")
    ]
    assert tuple(found[name] for name in names) == pools


def test_models_are_in_bfloat16_on_npus() -> None:
    full, npu = f"{ROLLOUT}.dtype=float32", "trainer.device=npu"
    assert fields(converted(full))["training.model.dtype"] == "float32"
    conversion = converted(full, npu)
    assert fields(conversion)["training.model.dtype"] == "bfloat16"
    assert "in 16 bits alone" in told(conversion)[full]
    actor = f"{ACTOR}.fsdp_config.dtype=fp32"
    assert "in 16 bits alone" in told(converted(full, npu, actor))[actor]
