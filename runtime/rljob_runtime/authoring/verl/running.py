"""Fields of pools, model, schedule, asynchrony and rollout from a launch of verl."""

import re

from rljob_runtime.authoring.fields import Field
from rljob_runtime.authoring.pools import PER_WORKER, PoolSizes, divide, pool_fields
from rljob_runtime.authoring.verl.files import local_path
from rljob_runtime.authoring.verl.given import Given
from rljob_runtime.authoring.verl.values import items
from rljob_runtime.manifest.unset import UNSET

_ACTOR = "actor_rollout_ref.actor"
_ROLLOUT = "actor_rollout_ref.rollout"
_ASYNC = "async_training"
_HUB = re.compile(r"[\w.-]+/[\w.-]+")
_NO_NAME = "from-verl"


def name(given: Given) -> None:
    """The job's name: that of the experiment, or of the project."""
    slugs: list[str] = []
    for key in ("trainer.experiment_name", "trainer.project_name"):
        override = given.overrides.get(key)
        if given.known(key):
            slugs.append(slug(given.text(key) or ""))
            given.accounted.add(key)
        elif override is not None and override.unknown is not None:
            given.tell(key, f"no part of the job's name: {override.unknown}", False)
    given.fields["metadata.name"] = Field(next(filter(None, slugs), _NO_NAME))


def loggers(given: Given) -> None:
    """Where metrics are sent beside the run's folder."""
    key, field = "trainer.logger", "training.loggers"
    override = given.overrides.get(key)
    if override is None or not given.known(key):
        return
    given.accounted.add(key)
    names = [str(item) for item in items(override.value)]
    # What each calls a project.
    for each, own in (("wandb", "project"), ("mlflow", "experiment")):
        if each in names:
            project = given.text("trainer.project_name")
            if not project:
                given.tell(key, f"set spec.{field}.{each}.{own}: no trainer.project_name is known")
            project = project or UNSET
            given.put(f"{field}.{each}.{own}", project, given.origin(key))
            if run_name := given.text("trainer.experiment_name"):
                given.put(f"{field}.{each}.runName", run_name, given.origin("trainer.experiment_name"))
    if others := sorted({*names} - {"wandb", "mlflow", "console", "tensorboard"}):
        given.tell(key, f"no logger: {', '.join(others)}; spec.{field}.webhook posts metrics to any server")
    if {"console", "tensorboard"} & {*names}:
        given.tell(key, "the terminal and TensorBoard's files are always written", False)


def slug(text: str) -> str:
    """A text as the name of a job; empty where nothing is left of it."""
    return re.sub(r"^[^a-z]+", "", re.sub(r"[^a-z0-9]+", "-", text.lower()))[:40].strip("-")


def model(given: Given) -> None:
    """The policy and its tokenizer."""
    key = "actor_rollout_ref.model.path"
    path = given.text(key)
    path = local_path(given, key, path) if path is not None else None
    if path is None:
        given.tell(key, "set spec.training.model.path")
    elif _HUB.fullmatch(path):
        given.tell(key, "this must be a folder: a name on the Hugging Face hub is not downloaded")
    given.put("training.model.path", path or UNSET, given.origin(key))
    tokenizer = given.text("actor_rollout_ref.model.tokenizer_path", "data.tokenizer")
    if tokenizer:
        given.put(
            "training.tokenizer.path", tokenizer, given.origin("actor_rollout_ref.model.tokenizer_path")
        )
    _dtype(given)
    checkpointing = "actor_rollout_ref.model.enable_gradient_checkpointing"
    offload = "actor_rollout_ref.model.enable_activation_offload"
    offloaded = given.flag(offload)
    if given.flag(checkpointing) is not False:
        given.put("training.model.activationCheckpointing", "full", given.origin(checkpointing))
        if offloaded and given.fields["spec.accelerator"].value != "cpu":
            given.put("training.model.offloadActivations", True, given.origin(offload))
    elif offloaded:
        given.tell(offload, "left out: it needs activationCheckpointing: full")


def _dtype(given: Given) -> None:
    dtypes = {key: given.text(key) for key in (f"{_ACTOR}.fsdp_config.dtype", f"{_ROLLOUT}.dtype")}
    full = [key for key, dtype in dtypes.items() if dtype in ("float32", "fp32")]
    origin = given.origin(f"{_ACTOR}.fsdp_config.dtype")
    if full and given.fields["spec.accelerator"].value == "ascend":
        for key in full:
            given.tell(key, "model.dtype is bfloat16, as vLLM's attention on NPUs computes in 16 bits alone")
        given.put("training.model.dtype", "bfloat16", f"in place of float32: {full[0]}")
        return
    given.put("training.model.dtype", "float32" if full else "bfloat16", origin)


def pools(given: Given) -> None:
    """Accelerators, and who gets how many."""
    device = given.text("trainer.device") or "cuda"
    kinds = {"cuda": "nvidia", "npu": "ascend", "cpu": "cpu"}
    if device not in kinds:
        given.tell("trainer.device", "must be cuda, npu or cpu; cuda is taken")
    kind = kinds.get(device, "nvidia")
    given.put("accelerator", kind, given.origin("trainer.device"))
    nodes, each = (
        _count(given, "trainer.nnodes", 1, 4096),
        _count(given, "trainer.n_gpus_per_node", 8, PER_WORKER),
    )
    # Recipes have the devices of the engines under a name of their own.
    apart = "rollout" if given.program.own_devices else _ROLLOUT
    if given.program.own_devices or (given.integer(f"{_ROLLOUT}.nnodes") or 0) > 0:
        per_engine = _count(given, f"{_ROLLOUT}.tensor_model_parallel_size", 2, PER_WORKER)
        on_each = _count(given, f"{apart}.n_gpus_per_node", 8, PER_WORKER)
        others = _count(given, f"{apart}.nnodes", 1, 4096) * on_each
        sizes = PoolSizes(nodes, each, min(4096, max(1, others // per_engine)), per_engine)
        words = tuple(
            given.origin(f"{part}.{key}")
            for part in ("trainer", apart)
            for key in ("nnodes", "n_gpus_per_node")
        )
    else:
        per_engine = _count(given, f"{_ROLLOUT}.tensor_model_parallel_size", 2, PER_WORKER)
        asked = per_engine
        while per_engine > max(1, nodes * each // 2):
            per_engine //= 2
        if per_engine < asked:
            key = f"{_ROLLOUT}.tensor_model_parallel_size"
            given.tell(key, f"{per_engine} is taken: half of the {nodes * each} accelerators train")
        sizes = divide(nodes * each, each, per_engine)
        words = (
            f"of {nodes * each} accelerators that verl trains and generates with in turn",
            "",
            "the others",
            "",
        )
        train, generate = sizes.trainers * sizes.trainer_accelerators, sizes.engines * per_engine
        told = f"trainer and engines have devices of their own here: {train} train and {generate} generate; "
        told += "rljob simulate --size N compares other sizes"
        if sizes.total > nodes * each:
            told += ". On one device: rljob run --share"
        given.tell("trainer.n_gpus_per_node", told)
    if kind == "cpu":
        sizes = PoolSizes(sizes.trainers, 1, sizes.engines, 1)
    given.accounted |= {"trainer.nnodes", f"{_ROLLOUT}.tensor_model_parallel_size"}
    given.fields |= pool_fields(sizes, words)


def schedule(given: Given) -> None:
    """Steps and batches."""
    field = "training.schedule"
    key = f"{_ACTOR}.ppo_mini_batch_size"
    prompts = given.integer(key)
    whole = given.integer("data.train_batch_size")
    if prompts is not None and prompts < 1:
        given.tell(key, "left out: must be 1 or more")
        prompts = None
    if given.program.asynchronous:
        prompts = prompts or 256
        batches = _count(given, f"{_ASYNC}.require_batches", 1, 1024)
    else:
        if whole is not None and whole < 1:
            given.tell(
                "data.train_batch_size", "left out: must be 1 or more; verl's default of 1024 is taken"
            )
        whole = whole if whole and whole > 0 else 1024
        prompts = min(prompts or 256, whole)
        batches = min(1024, whole // prompts)
        if whole % prompts:
            given.tell(
                "data.train_batch_size", f"a step has {prompts * batches} prompts: whole batches of {key}"
            )
    given.put(f"{field}.promptsPerBatch", min(prompts, 1_000_000), given.origin(key))
    batches_key = f"{_ASYNC}.require_batches" if given.program.asynchronous else "data.train_batch_size"
    given.put(f"{field}.batchesPerStep", batches, given.origin(batches_key))
    _length(given, prompts * batches)


def _length(given: Given, prompts_per_step: int) -> None:
    field, recipe = "training.schedule", given.program.asynchronous
    steps_key, steps = _steps(given, prompts_per_step)
    epochs_key = next(
        (key for key in ("rollout.total_epochs", "trainer.total_epochs") if given.known(key)), ""
    )
    epochs = given.integer("rollout.total_epochs", "trainer.total_epochs")
    first = "verl ends with whichever comes first; to end earlier than"
    if steps and (not epochs or not recipe):
        if given.take(steps_key, f"{field}.totalSteps", steps):
            if epochs:
                given.tell(epochs_key, f"{first} totalSteps, epochs: {epochs}")
            return
    elif steps:
        given.tell(steps_key, f"{first} epochs, totalSteps: {steps}")
    if epochs is None or not given.take(epochs_key, f"{field}.epochs", epochs):
        default, key = (10, "rollout.total_epochs") if recipe else (30, "trainer.total_epochs")
        given.put(f"{field}.epochs", default, f"verl's default of {key}")


def _steps(given: Given, prompts_per_step: int) -> tuple[str, int | None]:
    """The key that says after how many steps training ends, and that number; None where it says none."""
    key, prompts_key = "trainer.total_training_steps", "rollout.total_rollout_steps"
    steps, prompts = given.integer(key), given.integer(prompts_key)
    if given.program.asynchronous:
        if steps is not None:
            words = f"of no effect in verl's fully-async recipe: {prompts_key} ends it"
            given.tell(key, words, False)
        if prompts_key not in given.overrides:
            given.tell(prompts_key, "it is not given, and verl's default of it ends after 100 prompts")
        steps = None
    if steps is not None and steps > 0:
        return key, steps
    if prompts is not None and prompts > 0:
        return prompts_key, max(1, prompts // prompts_per_step)
    return key, None


def asynchrony(given: Given) -> None:
    """How far generation may run ahead."""
    field, key = "training.async", f"{_ASYNC}.staleness_threshold"
    bound = given.number(key)
    staleness = given.program.staleness
    if not given.program.asynchronous and staleness:
        given.put(
            f"{field}.maxStaleness", staleness, f"as {given.program.name}: generation is that far ahead"
        )
        return
    if not given.program.asynchronous:
        given.put(
            f"{field}.maxStaleness",
            0,
            "as verl's main_ppo: each step waits for responses of the newest weights",
        )
        given.tell(
            f"{field}.maxStaleness",
            "0, as verl's main_ppo, keeps engines idle while the trainer works: 1 lets both work at a time",
        )
        return
    if bound is None or not given.take(key, f"{field}.maxStaleness", bound):
        given.put(f"{field}.maxStaleness", 0.1, f"verl's default of {key}")
    partial = given.flag(f"{_ASYNC}.partial_rollout")
    if partial is not None:
        given.put(
            f"{field}.weightSync.push.inFlight",
            "keep" if partial else "wait",
            given.origin(f"{_ASYNC}.partial_rollout"),
        )


def parallel(given: Given) -> None:
    """How the trainer splits its work; pools and lengths of samples must be there."""
    field = "training.parallel"
    value = {
        name: given.fields[f"spec.{name}"].value
        for name in (
            "training.data.maxPromptTokens",
            "training.rollout.maxResponseTokens",
            "pools.trainer.replicas",
            "pools.trainer.acceleratorsPerWorker",
        )
    }
    longest = value["training.data.maxPromptTokens"] + value["training.rollout.maxResponseTokens"]
    ranks = value["pools.trainer.replicas"] * value["pools.trainer.acceleratorsPerWorker"]
    key = f"{_ACTOR}.megatron.tensor_model_parallel_size"
    tensor = given.integer(key) or 1
    if tensor > 1 and ranks % tensor:
        given.tell(key, f"left out: it must divide the trainer's {ranks} accelerators")
    elif tensor > 1 and given.take(key, f"{field}.tensorParallel", tensor):
        pass
    else:
        tensor = 1
    shared = _shared(given, ranks, tensor)
    _micro_batch(given, -(-longest // shared))
    _shards(given, ranks, tensor)


def _shared(given: Given, ranks: int, tensor: int) -> int:
    key, field = f"{_ACTOR}.ulysses_sequence_parallel_size", "training.parallel.contextParallel"
    inner = f"{_ACTOR}.fsdp_config.ulysses_sequence_parallel_size"
    key = key if given.known(key) else inner
    degree = given.integer(key) or 1
    if degree <= 1:
        return 1
    if degree * tensor > ranks or degree & (degree - 1):
        each = f" by tensorParallel {tensor}" if tensor > 1 else ""
        given.tell(
            key,
            f"left out: it must be a power of two, at most the trainer's {ranks} accelerators{each}",
        )
        return 1
    if not given.take(key, f"{field}.fixed.degree", degree):
        return 1
    given.put(f"{field}.attention", "ulysses", given.origin(key))
    return degree


def _micro_batch(given: Given, least: int) -> None:
    dynamic = given.flag(f"{_ACTOR}.use_dynamic_bsz")
    key = f"{_ACTOR}.ppo_max_token_len_per_gpu"
    tokens = given.integer(key)
    samples = given.integer(f"{_ACTOR}.ppo_micro_batch_size_per_gpu")
    given.integer(f"{_ACTOR}.ppo_micro_batch_size")
    if not dynamic:
        key, tokens = f"{_ACTOR}.ppo_micro_batch_size_per_gpu", samples * least if samples else None
    if tokens is None:
        return
    # An odd number of tokens would not hold two ranks' equal parts of a sample.
    if tokens < least + least % 2:
        given.tell(key, f"raised to {least + least % 2}: the longest sample must fit")
        tokens = least + least % 2
    given.take(key, "training.parallel.maxTokensPerMicroBatch", tokens)


def _shards(given: Given, ranks: int, tensor: int) -> None:
    key = f"{_ACTOR}.fsdp_config.fsdp_size"
    size = given.integer(key)
    if size is not None and 0 < size < ranks:
        if ranks % size or size % tensor:
            given.tell(key, f"left out: it must divide the trainer's {ranks} accelerators")
        else:
            given.take(key, "training.parallel.shardGroupSize", size)
    offload = f"{_ACTOR}.fsdp_config.offload_policy"
    if given.flag(offload) and given.fields["spec.accelerator"].value != "cpu":
        given.put("training.parallel.cpuOffload", True, given.origin(offload))
    for part in ("param_offload", "optimizer_offload"):
        if given.flag(f"{_ACTOR}.fsdp_config.{part}"):
            words = (
                "not taken over: no engine shares the trainer's devices; where their memory is too small, "
            )
            given.tell(f"{_ACTOR}.fsdp_config.{part}", f"{words}parallel.cpuOffload: true", False)


def rollout(given: Given) -> None:
    """Engines and sampling."""
    field = "training.rollout"
    engine = given.text(f"{_ROLLOUT}.name") or "vllm"
    if engine != "vllm":
        given.tell(f"{_ROLLOUT}.name", "engines are vLLM here")
    if not given.known(f"{_ROLLOUT}.n"):
        given.put(f"{field}.samplesPerPrompt", 8, "a group of GRPO")
        given.tell(f"{_ROLLOUT}.n", "verl's default is 1, of which no group can be made; 8 is taken")
    top_k = given.integer(f"{_ROLLOUT}.top_k")
    if top_k is not None:
        given.take(f"{_ROLLOUT}.top_k", f"{field}.topK", max(0, top_k))
    rate = given.number(f"{_ROLLOUT}.over_sample_rate")
    if rate:
        given.take(f"{_ROLLOUT}.over_sample_rate", f"{field}.overSampling.rate", rate)
    part = given.number(f"{_ROLLOUT}.gpu_memory_utilization")
    if part is not None and given.program.own_devices:
        given.take(f"{_ROLLOUT}.gpu_memory_utilization", f"{field}.engine.vllm.gpuMemoryUtilization", part)
    elif part is not None:
        words = "not taken over: engines share no device here, and take 0.85 of theirs"
        given.tell(f"{_ROLLOUT}.gpu_memory_utilization", words, False)
    sizes = given.overrides.get(f"{_ROLLOUT}.cudagraph_capture_sizes")
    if sizes is not None and given.known(f"{_ROLLOUT}.cudagraph_capture_sizes"):
        given.take(
            f"{_ROLLOUT}.cudagraph_capture_sizes", f"{field}.engine.vllm.captureSizes", items(sizes.value)
        )


def checkpoint(given: Given) -> None:
    """When checkpoints are written."""
    steps = given.integer("trainer.save_freq")
    if steps is not None and steps > 0:
        given.take("trainer.save_freq", "training.checkpoint.everySteps", steps)
    elif steps is not None:
        given.tell(
            "trainer.save_freq", "a checkpoint is what a restart goes on from: every 50 steps is left", False
        )


def _count(given: Given, key: str, default: int, most: int) -> int:
    """The number of a key, from 1 to `most`."""
    number = given.integer(key)
    if number is None:
        return min(default, most)
    if not 1 <= number <= most:
        given.tell(key, f"must be from 1 to {most}; {max(1, min(number, most))} is taken")
    return max(1, min(number, most))
