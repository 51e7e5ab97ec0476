"""A launch of verl becomes a manifest."""

from pathlib import Path

import pytest

from rljob_api import RLJob
from rljob_runtime.authoring.fields import broken
from rljob_runtime.authoring.verl.convert import convert
from rljob_runtime.authoring.verl.counterparts import TABLE
from rljob_runtime.authoring.verl.launch import read_launch
from rljob_runtime.authoring.verl.listing import listing
from rljob_runtime.manifest.source import parse
from tests.support.runtime.verl_launch import (
    ACTOR,
    DISTILLED,
    RECIPE,
    ROLLOUT,
    TEACHER,
    converted,
    fields,
    told,
)

SCRIPT = (Path(__file__).parent / "fully_async.sh").read_text()
NAMELESS = (
    f"{ROLLOUT}.tensor_model_parallel_size",
    f"{ACTOR}.use_kl_loss",
    "reward_model.reward_kwargs.overlong_buffer_cfg.enable",
    "trainer.nnodes",
    "trainer.project_name",
    "trainer.experiment_name",
)
"""Keys that became fields without being named in a comment."""


def test_a_whole_script():
    conversion = convert(read_launch(SCRIPT, {}), "train.sh")
    training = RLJob.model_validate(parse(conversion.text).value).spec.training
    found = fields(conversion)
    assert found == {
        "metadata.name": "grpo-qwen2-5-0-5b",
        "accelerator": "ascend",
        "pools.trainer.replicas": 1,
        "pools.trainer.acceleratorsPerWorker": 1,
        "pools.fastRollout.replicas": 1,
        "pools.fastRollout.acceleratorsPerWorker": 1,
        "training.model.path": "/models/Qwen2.5-0.5B-Instruct",
        "training.model.dtype": "bfloat16",
        "training.model.activationCheckpointing": "full",
        "training.data.parquet.path": "/data/gsm8k/train.parquet",
        "training.data.promptField": "prompt",
        "training.data.answerField": "reward_model.ground_truth",
        "training.data.maxPromptTokens": 2048,
        "training.reward.function": "rljob_runtime.rewards.math:math_answer",
        "training.reward.overlong.bufferTokens": 512,
        "training.reward.overlong.penaltyFactor": 1.0,
        "training.rollout.engine.vllm.enforceEager": True,
        "training.rollout.engine.vllm.gpuMemoryUtilization": 0.7,
        "training.rollout.engine.vllm.maxBatchedTokens": 6144,
        "training.rollout.samplesPerPrompt": 8,
        "training.rollout.maxResponseTokens": 4096,
        "training.rollout.temperature": 0.7,
        "training.rollout.topP": 1.0,
        "training.rollout.topK": 0,
        "training.algorithm.policyLoss.clip.low": 0.2,
        "training.algorithm.policyLoss.clip.high": 0.2,
        "training.algorithm.policyLoss.clip.dual": 3.0,
        "training.algorithm.advantage.grpo": {},
        "training.algorithm.kl.coefficient": 0.001,
        "training.algorithm.kl.estimator": "k3",
        "training.algorithm.entropyCoefficient": 0.001,
        "training.algorithm.aggregation": "token-mean",
        "training.optimizer.learningRate": 5e-7,
        "training.optimizer.schedule": "constant",
        "training.optimizer.weightDecay": 0.01,
        "training.schedule.epochs": 1,
        "training.schedule.promptsPerBatch": 64,
        "training.schedule.batchesPerStep": 1,
        "training.async.maxStaleness": 0.2,
        "training.async.stepsPerVersion": 4,
        "training.async.weightSync.push.inFlight": "wait",
        "training.parallel.maxTokensPerMicroBatch": 6144,
        "training.evaluation.sets": [
            {
                "name": "gsm8k-test",
                "data": {
                    "parquet": {"path": "/data/gsm8k/test.parquet"},
                    "promptField": "prompt",
                    "answerField": "reward_model.ground_truth",
                    "maxPromptTokens": 2048,
                },
            }
        ],
        "training.evaluation.everyVersions": 5,
        "training.evaluation.samplesPerPrompt": 1,
        "training.evaluation.sampling.temperature": 0.7,
        "training.evaluation.sampling.topP": 0.7,
        "training.evaluation.sampling.topK": 0,
    }
    assert training.longest_sample_tokens == training.parallel.max_tokens_per_micro_batch


def test_every_key_of_a_script_becomes_a_field_or_is_listed_with_its_line():
    launch = read_launch(SCRIPT, {})
    conversion = convert(launch, "train.sh")
    listed = {(remark.line, remark.subject.partition("=")[0]) for remark in conversion.remarks}
    commented = [line for line in conversion.text.splitlines() if "line " in line]
    for override in launch.overrides:
        taken = any(f"{override.key}, line {override.line}" in line for line in commented)
        # These two switch on what another key's comment is at.
        switch = override.key.endswith((".use_kl_loss", ".overlong_buffer_cfg.enable"))
        named = (
            override.key == "trainer.project_name" or override.key == f"{ROLLOUT}.tensor_model_parallel_size"
        )
        assert taken != ((override.line, override.key) in listed) or switch or named, override
    assert [remark.subject for remark in conversion.remarks if remark.decide] == [
        "training.reward.function",
        "--config-path=config",
        "--config-name=fully_async_ppo_megatron_trainer.yaml",
        "trainer.val_before_train=False",
        "rollout.total_rollout_steps=512000",
    ]


@pytest.mark.parametrize("key", TABLE.keys)
def test_no_key_of_the_table_is_passed_over(key):
    """Whatever the value, a key is taken, or told about, and what is written is valid."""
    program = RECIPE if key.startswith(("async_training.", "rollout.")) else "verl.trainer.main_ppo"
    row = TABLE.row(key)
    for value in ("3", "True", "nothing", "${x}"):
        conversion = converted(f"{key}={value}", program=program)
        assert broken(conversion.fields) == []
        told_of = key in {subject.partition("=")[0] for subject in told(conversion)}
        assert told_of or key in conversion.text or key in NAMELESS, value
        assert told_of or "$" not in value, value
        assert told_of or (row is not None and not row.lost)


@pytest.mark.parametrize(
    ("overrides", "field", "value"),
    [
        (["data.filter_overlong_prompts=True"], "data.longPrompts", "skip"),
        (
            ["data.train_files=[/a/train.parquet,/b/train.jsonl]"],
            "data.sources",
            [
                {"name": "a-train", "parquet": {"path": "/a/train.parquet"}},
                {"name": "b-train", "jsonl": {"path": "/b/train.jsonl"}},
            ],
        ),
        (
            ["trainer.logger=[console,wandb]", "trainer.project_name=maths"],
            "loggers.wandb.project",
            "maths",
        ),
        (["trainer.logger=mlflow", "trainer.experiment_name=a"], "loggers.mlflow.runName", "a"),
        (["data.train_files=[/a.parquet]"], "data.parquet.path", "/a.parquet"),
        (["data.train_files=/a.jsonl"], "data.jsonl.path", "/a.jsonl"),
        ([], "data.parquet.path", "TO-BE-SET"),
        (["data.seed=7"], "seed", 7),
        (["algorithm.adv_estimator=rloo"], "algorithm.advantage.rloo", {}),
        (["algorithm.adv_estimator=reinforce_plus_plus"], "algorithm.advantage.reinforcePlusPlus", {}),
        (
            ["algorithm.adv_estimator=reinforce_plus_plus_baseline"],
            "algorithm.advantage.reinforcePlusPlus.baseline",
            True,
        ),
        (TEACHER, "algorithm.distillation.teacher.path", "/m/teacher"),
        ([*TEACHER, f"{DISTILLED}.use_task_rewards=False"], "algorithm.advantage.none", {}),
        ([*TEACHER, f"{DISTILLED}.distillation_loss_coef=0.1"], "algorithm.distillation.coefficient", 0.1),
        (["algorithm.norm_adv_by_std_in_grpo=False"], "algorithm.normalizeByStd", False),
        (
            ["custom_reward_function.path=/x/judge.py", "custom_reward_function.name=score"],
            "reward.function",
            "judge:score",
        ),
        (["reward.custom_reward_function.path=judge.py"], "reward.function", "judge:compute_score"),
        ([f"{ACTOR}.kl_loss_type=mse", f"{ACTOR}.use_kl_loss=True"], "algorithm.kl.estimator", "k2"),
        ([f"{ACTOR}.loss_agg_mode=seq-mean-token-mean"], "algorithm.aggregation", "sequence-mean"),
        ([f"{ACTOR}.loss_agg_mode=seq-mean-token-sum-norm"], "algorithm.aggregation", "fixed-length"),
        (["algorithm.filter_groups.enable=True"], "rollout.filter.zeroVariance.maxRefill", 1000),
        (
            ["algorithm.filter_groups.enable=True", "algorithm.filter_groups.max_num_gen_batches=10"],
            "rollout.filter.zeroVariance.maxRefill",
            9,
        ),
        (
            [f"{ACTOR}.use_dynamic_bsz=True", f"{ACTOR}.ppo_max_token_len_per_gpu=9000"],
            "parallel.maxTokensPerMicroBatch",
            9000,
        ),
        (
            [f"{ACTOR}.use_dynamic_bsz=True", f"{ACTOR}.ppo_max_token_len_per_gpu=99"],
            "parallel.maxTokensPerMicroBatch",
            1024,
        ),
        ([f"{ACTOR}.ppo_micro_batch_size_per_gpu=4"], "parallel.maxTokensPerMicroBatch", 4096),
        ([f"{ACTOR}.ulysses_sequence_parallel_size=4"], "parallel.contextParallel.fixed.degree", 4),
        ([f"{ACTOR}.megatron.tensor_model_parallel_size=2"], "parallel.tensorParallel", 2),
        (
            [
                f"{ACTOR}.megatron.tensor_model_parallel_size=2",
                f"{ACTOR}.ulysses_sequence_parallel_size=2",
            ],
            "parallel.contextParallel.fixed.degree",
            2,
        ),
        ([f"{ACTOR}.fsdp_config.fsdp_size=2"], "parallel.shardGroupSize", 2),
        ([f"{ACTOR}.fsdp_config.offload_policy=True"], "parallel.cpuOffload", True),
        ([f"{ACTOR}.optim.lr_warmup_steps=10"], "optimizer.warmupUpdates", 10),
        (
            [f"{ACTOR}.optim.lr_warmup_steps_ratio=0.1", "trainer.total_training_steps=100"],
            "optimizer.warmupUpdates",
            40,
        ),
        ([f"{ACTOR}.optim.betas=[0.9,0.95]"], "optimizer.beta2", 0.95),
        ([f"{ROLLOUT}.cudagraph_capture_sizes=[1,2,4]"], "rollout.engine.vllm.captureSizes", [1, 2, 4]),
        ([f"{ROLLOUT}.over_sample_rate=0.2"], "rollout.overSampling.rate", 0.2),
        (["actor_rollout_ref.model.enable_activation_offload=True"], "model.offloadActivations", True),
        (["trainer.save_freq=20"], "checkpoint.everySteps", 20),
    ],
)
def test_keys_that_are_more_than_a_copy(overrides, field, value):
    assert fields(converted(*overrides, "trainer.n_gpus_per_node=8"))[f"training.{field}"] == value


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (f"{ACTOR}.clip_ratio_low=0", "must be above 0 (found 0.0); left at its default"),
        (f"{ACTOR}.clip_ratio_c=1", "must be above 1 (found 1.0); left at its default"),
        ("algorithm.rollout_correction.rollout_is=group", "left out: it must be token or sequence"),
        ("trainer.total_epochs=0", "0 is below the smallest allowed value 1; left at its default"),
        ("data.train_batch_size=0", "left out: must be 1 or more"),
        ("algorithm.adv_estimator=gae", "gae has no counterpart"),
        ("data.max_prompt_length=0", "0 is below the smallest allowed value 1; left at its default"),
        ("data.max_prompt_length=long", "it must be a whole number; left at its default"),
        ("actor_rollout_ref.model.path=Qwen/Qwen3-8B", "this must be a folder"),
        ("actor_rollout_ref.model.path=~/models/x", "~ is not expanded"),
        ("data.train_files=hdfs://x/y.parquet", "set spec.training.data.parquet.path"),
        ("actor_rollout_ref.model.lora_adapter_path=old", "an adapter begins as no change"),
        (f"{ACTOR}.ppo_epochs=2", "each sample is trained once"),
        (
            f"{ACTOR}.megatron.tensor_model_parallel_size=3",
            "left out: it must divide the trainer's 4 accelerators",
        ),
        (f"{ACTOR}.ulysses_sequence_parallel_size=3", "it must be a power of two, at most the trainer's 4"),
        (f"{ROLLOUT}.name=sglang", "engines are vLLM here"),
        ("no.such.key=1", "not known here: nothing is made of it"),
    ],
)
def test_what_is_to_be_decided(override, words):
    conversion = converted(override)
    fields(conversion)
    (remark,) = [each for each in conversion.remarks if each.subject == override and words in each.words]
    assert remark.decide


def test_more_ranks_for_a_sample_than_tensor_groups():
    conversion = converted(
        f"{ACTOR}.megatron.tensor_model_parallel_size=2", f"{ACTOR}.ulysses_sequence_parallel_size=4"
    )
    assert "training.parallel.contextParallel.fixed.degree" not in fields(conversion)
    words = told(conversion)[f"{ACTOR}.ulysses_sequence_parallel_size=4"]
    assert words.endswith("at most the trainer's 4 accelerators by tensorParallel 2")


def test_of_a_key_that_is_given_twice_the_last_counts():
    conversion = converted("data.seed=1", "data.seed=2")
    assert fields(conversion)["training.seed"] == 2
    assert told(conversion)["data.seed"] == "given again in line 1"


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("Run_7 of Me", "run-7-of-me"),
        ("7b-grpo", "b-grpo"),
        ("___", "from-verl"),
        ("x" * 60, "x" * 40),
        ("a" * 39 + "_b", "a" * 39),
    ],
)
def test_names(name, slug):
    assert fields(converted(f"trainer.experiment_name={name}"))["metadata.name"] == slug


def test_the_list_names_script_and_line_and_says_what_is_to_do_first():
    conversion = convert(
        read_launch("python3 -m verl.trainer.main_ppo \\\n  a.b=1 \\\n data.val_files=x", {}), "s.sh"
    )
    lines = listing(conversion, "s.sh").splitlines()
    assert lines[0] == "s.sh: 0 of 2 keys became fields."
    assert "s.sh:2  a.b=1: not known here: nothing is made of it." in lines
    assert lines[-2:] == [
        "Nothing to do (1):",
        "s.sh:3  data.val_files=x: nothing to set: so by default, or without effect beside the script's "
        "other settings.",
    ]
