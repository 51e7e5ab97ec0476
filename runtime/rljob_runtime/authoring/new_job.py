"""The manifest of a new job, from answers.

Guarantees: its fields are valid for all answers that `answers.check` lets through.
"""

from rljob_runtime.authoring.answers import Answers
from rljob_runtime.authoring.data_files import kind_of
from rljob_runtime.authoring.fields import Field, Fields, about
from rljob_runtime.authoring.pools import PER_WORKER, divide, on_cpus, pool_fields
from rljob_runtime.authoring.write import manifest

_PER_NODE = 8
"""Accelerators of a node of a cluster, where nothing else is known."""
_PROMPT_TOKENS, _RESPONSE_TOKENS = 1024, 2048
BATCH = 64
"""Prompts of a batch, where the data has as many."""
_FEW_STEPS, _STEPS = 100, 200
"""An epoch of fewer steps than the first is too little to learn from: so many are trained then."""
COUNTED = _FEW_STEPS * BATCH
"""Data of so many prompts or more are not small."""
_TRAINING = "spec.training"


def new_job(answers: Answers, positions: int | None = None, prompts: int | None = None) -> tuple[str, Fields]:
    """The text of a manifest and its fields; all required questions must be answered. `positions`: most
    tokens that the model takes, prompt and response together; `prompts`: how many the data has, of which
    more than `COUNTED` do not matter; None where that is not known."""
    fields: Fields = {"metadata.name": Field(answers.name or _name(answers), "a-z, 0-9 and -")}
    fields |= _place(answers)
    fields |= _example(answers) if answers.is_example else _own(answers, positions, prompts)
    # The reference says what a field is; a comment of this file says more about the value.
    said = {
        path: field if field.comment else Field(field.value, about(path)) for path, field in fields.items()
    }
    return manifest(said, _head(answers)), said


def _name(answers: Answers) -> str:
    return f"{answers.task}-grpo" if answers.task != "own" else "grpo"


def _head(answers: Answers) -> list[str]:
    relative = "where the claim is mounted" if answers.where == "cluster" else "this file's folder"
    return [
        f"A job of GRPO, made by `rljob new`. Relative paths are relative to {relative}. Fields that are not "
        "here have the defaults of docs/rljob-reference.md.",
        "`rljob validate` checks it; `rljob simulate` predicts what it would do, and `rljob simulate --size "
        "N` which sizes of the pools are the fastest.",
    ]


def _place(answers: Answers) -> Fields:
    assert answers.accelerator is not None and answers.accelerators is not None
    fields: Fields = {"spec.accelerator": Field(answers.accelerator, "nvidia, ascend or cpu")}
    if answers.where == "cluster":
        fields["spec.storage.volume.persistentVolumeClaim.claimName"] = Field(
            answers.claim, "with model and data; the run's folder is written there too"
        )
    if answers.accelerator == "cpu":
        sizes = on_cpus(answers.accelerators)
    else:
        sizes = divide(answers.accelerators, PER_WORKER if answers.where == "machine" else _PER_NODE, 1)
    trainer = "workers that train: half of the accelerators, by nodes of " + str(_PER_NODE)
    if answers.where == "machine" or answers.accelerator == "cpu":
        trainer = "workers that train"
    if sizes.total > answers.accelerators:
        trainer += "; on one accelerator, rljob run --share lets the engine share it"
    fields |= pool_fields(sizes, (trainer, "processes of a worker", "engines that generate", "of one engine"))
    if answers.accelerator == "cpu":
        # A worker on CPUs has none.
        fields = {
            path: field for path, field in fields.items() if not path.endswith(".acceleratorsPerWorker")
        }
    return fields


def _common(group: int, response_tokens: int) -> Fields:
    return {
        f"{_TRAINING}.rollout.samplesPerPrompt": Field(group),
        f"{_TRAINING}.rollout.maxResponseTokens": Field(response_tokens),
        f"{_TRAINING}.rollout.temperature": Field(1.0),
        f"{_TRAINING}.algorithm.policyLoss.clip.low": Field(0.2),
        f"{_TRAINING}.algorithm.policyLoss.clip.high": Field(0.28),
        f"{_TRAINING}.async.maxStaleness": Field(
            1, "how many weight versions old a sample may be when it is trained; 0 is synchronous training"
        ),
    }


def _example(answers: Answers) -> Fields:
    # vLLM has no attention in float32 on NPUs.
    dtype = {f"{_TRAINING}.model.dtype": Field("bfloat16")} if answers.accelerator == "ascend" else {}
    return {
        f"{_TRAINING}.model.random": Field(
            {}, "a tiny model with random weights; see the reference for its shape"
        ),
        **dtype,
        f"{_TRAINING}.tokenizer.characters.alphabet": Field("abcdefgh"),
        f"{_TRAINING}.data.generated.task": Field(answers.task),
        f"{_TRAINING}.data.generated.minLength": Field(4),
        f"{_TRAINING}.data.generated.maxLength": Field(4),
        f"{_TRAINING}.data.generated.letters": Field(8),
        f"{_TRAINING}.data.maxPromptTokens": Field(16),
        f"{_TRAINING}.reward.function": Field(f"rljob_runtime.rewards.tasks:{answers.task}", "built in"),
        **_common(8, 8),
        f"{_TRAINING}.algorithm.entropyCoefficient": Field(0.02),
        f"{_TRAINING}.optimizer.learningRate": Field(1e-3, "for a tiny model; 1e-6 is usual for a real one"),
        f"{_TRAINING}.optimizer.beta2": Field(0.95),
        f"{_TRAINING}.schedule.totalSteps": Field(320),
        f"{_TRAINING}.schedule.promptsPerBatch": Field(32),
        f"{_TRAINING}.checkpoint.everySteps": Field(100),
    }


def lengths(positions: int | None) -> tuple[int, int]:
    """Most tokens of a prompt and of a response, for a model with so many positions, 2 or more."""
    if positions is None:
        return _PROMPT_TOKENS, _RESPONSE_TOKENS
    prompt = max(1, min(_PROMPT_TOKENS, positions // 3))
    return prompt, max(1, min(_RESPONSE_TOKENS, positions - prompt))


def _reward_fields(answers: Answers) -> Fields:
    names = answers.reward_field_names
    said = "columns that the reward gets too, in RewardInput.fields"
    return {f"{_TRAINING}.data.rewardFields": Field(names, said)} if names else {}


def _schedule(prompts: int | None) -> Fields:
    """Batches no larger than the data, and of small data more than one epoch."""
    schedule = f"{_TRAINING}.schedule"
    if not prompts or prompts >= COUNTED:
        return {
            f"{schedule}.epochs": Field(1, "or totalSteps"),
            f"{schedule}.promptsPerBatch": Field(BATCH),
        }
    batch = min(BATCH, prompts)
    steps = -(-prompts // batch)
    times = _STEPS * batch / prompts
    why = (
        f"the data has {_counted(prompts, 'prompt')}, so that one epoch is {_counted(steps, 'step')}: too "
        f"little to learn from. This trains each prompt about {times:.0f} times; or epochs"
    )
    return {
        f"{schedule}.totalSteps": Field(_STEPS, why),
        f"{schedule}.promptsPerBatch": Field(
            batch, "all prompts of the data" if batch == prompts else "prompts of a step"
        ),
    }


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _own(answers: Answers, positions: int | None, prompts: int | None) -> Fields:
    assert answers.data is not None
    prompt_tokens, response_tokens = lengths(positions)
    on_cpu = answers.accelerator == "cpu"
    if answers.task == "math":
        reward = Field(
            "rljob_runtime.rewards.math:math_answer", "1 where the last answer equals the reference, else 0"
        )
    else:
        reward = Field(answers.reward, "takes one rljob_runtime.rewards.RewardInput; see docs/rewards.md")
    return {
        f"{_TRAINING}.model.path": Field(
            answers.model, "config.json, *.safetensors and the tokenizer's files"
        ),
        f"{_TRAINING}.model.dtype": Field("float32" if on_cpu else "bfloat16"),
        f"{_TRAINING}.model.activationCheckpointing": Field(
            "full", "less memory, about a third more compute"
        ),
        **_source(answers.data),
        f"{_TRAINING}.data.promptField": Field(
            answers.prompt_field or "prompt",
            "a string, or a list of chat messages; a.b is field b of field a",
        ),
        f"{_TRAINING}.data.answerField": Field(
            answers.answer_field or "answer", "the reference answer that the reward gets"
        ),
        **_reward_fields(answers),
        f"{_TRAINING}.data.maxPromptTokens": Field(prompt_tokens),
        f"{_TRAINING}.data.longPrompts": Field("error", "skip leaves them out"),
        f"{_TRAINING}.reward.function": reward,
        **_common(8, response_tokens),
        f"{_TRAINING}.optimizer.learningRate": Field(1e-6),
        **_schedule(prompts),
        f"{_TRAINING}.parallel.maxTokensPerMicroBatch": Field(16384),
        f"{_TRAINING}.checkpoint.everySteps": Field(50),
        f"{_TRAINING}.checkpoint.keep": Field(2),
    }


def _source(data: str) -> Fields:
    if (kind := kind_of(data)) is not None:
        return {f"{_TRAINING}.data.{kind}.path": Field(data)}
    return {
        f"{_TRAINING}.data.huggingFace.name": Field(data, "on the hub, or a folder"),
        f"{_TRAINING}.data.huggingFace.split": Field("train"),
    }
