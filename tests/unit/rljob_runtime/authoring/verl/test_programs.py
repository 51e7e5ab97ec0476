"""The programs of verl, and what a job of each is."""

import pytest

from rljob_runtime.authoring.verl.launch import NoLaunch, read_launch
from rljob_runtime.authoring.verl.programs import program_of, why_not
from tests.support.runtime.verl_launch import ROLLOUT, converted, fields, of

ONE_STEP_OFF = "verl.experimental.one_step_off_policy.main_ppo"


@pytest.mark.parametrize(
    ("started", "name"),
    [
        ("verl.trainer.main_ppo", "main_ppo"),
        ("/opt/verl/trainer/main_ppo.py", "main_ppo"),
        ("main_ppo.py", "main_ppo"),
        ("recipe.dapo.main_dapo", "the DAPO recipe"),
        ("recipe.dapo.src.main_dapo", "the DAPO recipe"),
        (ONE_STEP_OFF, "the one-step-off recipe"),
        ("verl/experimental/one_step_off_policy/main_ppo.py", "the one-step-off recipe"),
        ("recipe.one_step_off_policy.main_ppo", "the one-step-off recipe"),
        ("recipe.one_step_off_policy.async_main_ppo", "the one-step-off recipe"),
        ("verl.experimental.fully_async_policy.fully_async_main", "the fully-async recipe"),
        ("recipe.fully_async_policy.fully_async_main", "the fully-async recipe"),
        ("recipe.prime.main_prime", None),
        ("recipe.spin.main_spin", None),
        ("verl.experimental.vla.main_ppo", None),
        ("main_ppo_mine.py", None),
    ],
)
def test_a_program_by_its_module_or_file(started, name):
    program = program_of(started)
    assert (program.name if program else None) == name
    assert why_not(started) is None


@pytest.mark.parametrize(
    ("module", "why"),
    [
        ("verl.trainer.main_generation", "it generates responses"),
        ("verl.trainer.main_generation_server", "it generates responses"),
        ("verl.trainer.main_eval", "it scores responses"),
    ],
)
def test_what_trains_nothing_is_refused(module, why):
    with pytest.raises(NoLaunch, match=f"{module}: {why}") as refused:
        read_launch(f"x=1\npython3 -m {module} data.path=/d\n", {})
    assert refused.value.line == 2


def test_a_launch_that_trains_is_read_beside_one_that_does_not():
    launch = read_launch(
        "python3 -m verl.trainer.main_eval a.b=1\npython3 -m verl.trainer.main_ppo a.c=2\n", {}
    )
    assert launch.program == "verl.trainer.main_ppo"
    assert [override.key for override in launch.overrides] == ["a.c"]
    (remark,) = launch.remarks
    assert remark.subject == "verl.trainer.main_eval"
    assert remark.words == "not read: it scores responses that are there, and trains nothing"


@pytest.mark.parametrize("module", ["recipe.prime.main_prime", "recipe.spin.main_spin"])
def test_a_program_that_is_not_known_is_told(module):
    ((words, decide),) = of(converted(program=module), module)
    assert words.startswith("not known here, and read as main_ppo")
    assert decide
    assert of(converted(), "verl.trainer.main_ppo") == []


def test_one_step_off():
    """Devices of the engines' own, one version of staleness, ratios against the engines."""
    conversion = converted(
        "trainer.nnodes=2",
        "trainer.n_gpus_per_node=6",
        "rollout.nnodes=2",
        "rollout.n_gpus_per_node=2",
        f"{ROLLOUT}.tensor_model_parallel_size=2",
        f"{ROLLOUT}.gpu_memory_utilization=0.6",
        "data.train_batch_size=512",
        "actor_rollout_ref.actor.ppo_mini_batch_size=32",
        program=ONE_STEP_OFF,
    )
    found = fields(conversion)
    expected = {
        "pools.trainer.replicas": 2,
        "pools.trainer.acceleratorsPerWorker": 6,
        "pools.fastRollout.replicas": 2,
        "pools.fastRollout.acceleratorsPerWorker": 2,
        "training.async.maxStaleness": 1,
        "training.schedule.promptsPerBatch": 32,
        "training.schedule.batchesPerStep": 16,
        "training.rollout.engine.vllm.gpuMemoryUtilization": 0.6,
        "training.algorithm.policyLoss.clip.low": 0.2,
    }
    assert {path: found.get(path) for path in expected} == expected
    for key in (
        "rollout.nnodes",
        "rollout.n_gpus_per_node",
        "training.async.maxStaleness",
        "training.algorithm.policyLoss",
    ):
        assert of(conversion, key) == []


def test_one_step_off_without_bypass():
    conversion = converted("algorithm.rollout_correction.bypass_mode=False", program=ONE_STEP_OFF)
    assert "decoupledClip" in of(conversion, "training.algorithm.policyLoss")[0][0]
