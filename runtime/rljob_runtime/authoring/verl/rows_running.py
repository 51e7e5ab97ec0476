"""Rows of the table: asynchrony, model and trainer."""

from rljob_runtime.authoring.verl.table import Section, built, direct, harmless, none, said

_ASYNC = "async_training"
_ACTOR = "actor_rollout_ref.actor"
_MODEL = "actor_rollout_ref.model"
_REF = "actor_rollout_ref.ref"
_ROLLOUT = "actor_rollout_ref.rollout"
_EVERY = "`training.evaluation.everyVersions`, where `data.val_files` names files"
_OFFLOAD = (
    "no engine shares the trainer's devices; where their memory does not suffice, "
    "`training.parallel.cpuOffload`, which is there during steps as well"
)

_MEGATRON_COMPUTES = (
    "recompute_method",
    "recompute_granularity",
    "recompute_num_layers",
    "recompute_modules",
    "apply_rope_fusion",
    "bias_activation_fusion",
    "bias_dropout_fusion",
    "masked_softmax_fusion",
    "gradient_accumulation_fusion",
    "deallocate_pipeline_outputs",
    "persist_layer_norm",
    "attention_backend",
    "use_flash_attn",
    "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage",
    "account_for_loss_in_pipeline_split",
    "account_for_embedding_in_pipeline_split",
    "moe_grouped_gemm",
    "moe_permute_fusion",
    "moe_token_dispatcher_type",
    "moe_enable_deepep",
    "moe_shared_expert_overlap",
    "moe_router_dtype",
)
"""Settings that leave a layer's result as it is, but for rounding."""
_MEGATRON_RUNS = (
    "dist_checkpointing_path",
    "vanilla_mbridge",
    "sequence_parallel",
    "use_distributed_optimizer",
    "use_remove_padding",
    "seed",
    "override_ddp_config.*",
)

ASYNCHRONY = Section(
    "Asynchrony",
    (
        built(
            f"{_ASYNC}.staleness_threshold",
            text="S: `training.async.maxStaleness: S`. The same number admits the same prompts: `(1 + S) * "
            "trigger_parameter_sync_step * require_batches * ppo_mini_batch_size` in each version. It is "
            "also a hard bound: ages are counted from a response's first token to the step that trains it, "
            "queue time included. A script of `main_ppo` is synchronous: `maxStaleness: 0`. "
            "The one-step-off recipe trains what the version before has drawn: `maxStaleness: 1`",
        ),
        direct(f"{_ASYNC}.trigger_parameter_sync_step", "training.async.stepsPerVersion", "integer"),
        built(f"{_ASYNC}.require_batches", text="`training.schedule.batchesPerStep`"),
        built(
            f"{_ASYNC}.partial_rollout",
            text="false: `training.async.weightSync.push.inFlight: wait`. true: `keep` (frozen in the "
            "engine) or `abort` (taken out and resubmitted with what they have). Either computes their KV "
            "cache anew, as there; `push.kvAfterUpdate: keep` does not. No response is cut short and trained",
        ),
        built(
            f"{_ROLLOUT}.over_sample_rate",
            text="`training.rollout.overSampling.rate`: whole groups are aborted, their prompts come again "
            "within two weight versions, and none is aborted twice. There unfinished responses are dropped",
        ),
        said(
            "(slime: `--mask-offpolicy-in-partial-rollout`)",
            "`training.async.staleTokens: mask`: no step waits for responses that outlive the bound, and "
            "their tokens beyond it are not trained. There all tokens of earlier weights are masked; here "
            "those that are older than maxStaleness",
        ),
        built(
            f"{_ASYNC}.use_rollout_log_probs",
            f"{_ASYNC}.compute_prox_log_prob",
            text="true, and `compute_prox_log_prob` false: `training.algorithm.policyLoss.clip`, and "
            "`rollout_is` is of no effect there. Otherwise the trainer computes what the ratio is against: "
            "`policyLoss.decoupledClip`, with other losses `rolloutCorrection`, both with importance weights",
        ),
        harmless(
            f"{_ASYNC}.checkpoint_engine.*",
            f"{_ASYNC}.use_trainer_do_validate",
            text="weights are sent as `training.async.weightSync` says, and engines evaluate",
        ),
        none(f"{_ASYNC}.*", text="no other setting of the recipe is known here"),
        built(
            "rollout.total_rollout_steps",
            text="`training.schedule.totalSteps`, divided by prompts per step: `total_rollout_steps / "
            "(ppo_mini_batch_size * require_batches)`; or `schedule.epochs`",
        ),
        built("rollout.total_epochs", "trainer.total_epochs", text="`training.schedule.epochs`"),
        built(
            "trainer.total_training_steps",
            text="`training.schedule.totalSteps`. Of steps and epochs a job has one; verl ends with "
            "whichever comes first. The fully-async recipe does not read it",
        ),
        none(
            f"{_ACTOR}.optim.total_training_steps",
            text="verl replaces it by the run's number of steps",
        ),
        built(
            "rollout.nnodes",
            "rollout.n_gpus_per_node",
            f"{_ROLLOUT}.nnodes",
            f"{_ROLLOUT}.n_gpus_per_node",
            text="`pools.fastRollout.replicas` engines of `pools.fastRollout.acceleratorsPerWorker` devices. "
            "A script of `main_ppo` has one set of devices that trains and generates in turn: half of it, "
            "rounded down, becomes the trainer, the rest engines",
        ),
        none(
            "rollout.max_concurrent_samples_per_replica",
            text="`training.rollout.maxRunningRequests` of each engine, which counts responses",
        ),
        none("rollout.*", text="no other setting of the recipe is known here"),
        built("rollout.test_freq", text=_EVERY),
        none("actor_rollout_ref.hybrid_engine", text="trainer and engines are always separate"),
        none(f"{_ROLLOUT}.mode", text="engines are always asynchronous"),
        said(
            "(none: a request goes to the server with the fewest in flight)",
            "`training.rollout.routing`: `leastInFlight` does the same, and so does the default while a job "
            "has a single engine",
        ),
    ),
)

MODEL_AND_TRAINER = Section(
    "Model and trainer",
    (
        built(f"{_MODEL}.path", text="`training.model.path`: a folder, which is not downloaded"),
        built(f"{_MODEL}.tokenizer_path", "data.tokenizer", text="`training.tokenizer.path`"),
        built(
            f"{_MODEL}.enable_gradient_checkpointing",
            text="`training.model.activationCheckpointing: full`",
        ),
        built(
            f"{_MODEL}.enable_activation_offload",
            text="`training.model.offloadActivations`, with `activationCheckpointing: full`",
        ),
        harmless(
            f"{_MODEL}.override_config.attn_implementation",
            f"{_MODEL}.use_shm",
            f"{_MODEL}.tiled_mlp.*",
            text="how the model computes, not what",
        ),
        harmless(
            f"{_MODEL}.override_config.max_position_embeddings",
            f"{_MODEL}.override_config.model_config.max_position_embeddings",
            text="what the model's `config.json` says counts: a job that needs more positions is refused",
        ),
        none(f"{_MODEL}.override_config.*", text="what the model's `config.json` says counts"),
        harmless(
            f"{_MODEL}.use_fused_kernels",
            f"{_MODEL}.fused_kernel_options.*",
            f"{_MODEL}.use_liger",
            f"{_ACTOR}.use_torch_compile",
            f"{_ACTOR}.entropy_from_logits_with_chunking",
            f"{_ACTOR}.entropy_checkpointing",
            text="log-probabilities never need all logits (`training.compute.logitsMiB`), and layers are "
            "compiled (`training.compute.compile`)",
        ),
        none(f"{_MODEL}.use_remove_padding", text="samples are always packed without padding"),
        none(f"{_MODEL}.trust_remote_code", text="code of a model's folder is never run", off=("false",)),
        built(f"{_MODEL}.lora_rank", text="`training.adapter.rank`; not on NPUs ([LoRA](lora.md))"),
        built(f"{_MODEL}.lora_alpha", text="`training.adapter.alpha`"),
        built(
            f"{_MODEL}.target_modules",
            text="`training.adapter.targetModules`, a list; `all-linear` is the default",
        ),
        none(
            f"{_MODEL}.lora_adapter_path",
            f"{_MODEL}.exclude_modules",
            text="an adapter begins as no change, on the layers that `targetModules` names",
            off=("none",),
        ),
        none(
            f"{_MODEL}.custom_chat_template",
            text="the chat template is the tokenizer's own",
            off=("none",),
        ),
        none(
            f"{_MODEL}.lora.*",
            text="Megatron's LoRA: write `training.adapter` by hand",
            off=("0", "none", "false"),
        ),
        none(
            f"{_MODEL}.*",
            text="no other setting of verl's models is known here: the model is a Hugging Face folder",
        ),
        built(
            f"{_ACTOR}.fsdp_config.offload_policy",
            f"{_ACTOR}.fsdp_config.param_offload",
            f"{_ACTOR}.fsdp_config.optimizer_offload",
            text="`offload_policy`: `training.parallel.cpuOffload`. The others make room for verl's engines: "
            + _OFFLOAD,
        ),
        built(f"{_ACTOR}.fsdp_config.fsdp_size", text="`training.parallel.shardGroupSize`; -1: leave it out"),
        built(
            f"{_ACTOR}.fsdp_config.dtype",
            f"{_ROLLOUT}.dtype",
            text="`training.model.dtype`; on NPUs bfloat16",
        ),
        none(
            f"{_ACTOR}.fsdp_config.model_dtype",
            text="weights are sharded by FSDP2, with float32 master weights",
            off=("fp32", "float32", "none"),
        ),
        harmless(
            f"{_ACTOR}.fsdp_config.strategy",
            f"{_ACTOR}.fsdp_config.forward_prefetch",
            f"{_ACTOR}.fsdp_config.reshard_after_forward",
            f"{_ACTOR}.fsdp_config.use_orig_params",
            f"{_ACTOR}.fsdp_config.use_torch_compile",
            f"{_ACTOR}.fsdp_config.wrap_policy.*",
            text="weights are sharded by FSDP2, layer by layer",
        ),
        none(
            f"{_ACTOR}.fsdp_config.*",
            text="weights are sharded by FSDP2, with float32 master weights; no other setting is known here",
        ),
        none(
            "model_engine",
            f"{_ACTOR}.model_engine",
            f"{_ACTOR}.strategy",
            f"{_REF}.strategy",
            text="the trainer is FSDP2",
        ),
        none(
            f"{_ACTOR}.megatron.use_mbridge",
            f"{_ACTOR}.megatron.use_dist_checkpointing",
            text="the model is a Hugging Face folder, and checkpoints are torch.distributed.checkpoint",
        ),
        none(
            f"{_ACTOR}.megatron.param_offload",
            f"{_ACTOR}.megatron.grad_offload",
            f"{_ACTOR}.megatron.optimizer_offload",
            text=_OFFLOAD,
        ),
        built(
            f"{_ACTOR}.megatron.tensor_model_parallel_size",
            text="N: `training.parallel.tensorParallel: N`",
        ),
        none(
            f"{_ACTOR}.megatron.pipeline_model_parallel_size",
            f"{_ACTOR}.megatron.virtual_pipeline_model_parallel_size",
            f"{_ACTOR}.megatron.context_parallel_size",
            text="FSDP2 shards the model over all ranks of the trainer, or over groups of them "
            "(`training.parallel.shardGroupSize`); long samples are shared by "
            "`training.parallel.contextParallel`",
            off=("1", "none"),
        ),
        none(
            f"{_ACTOR}.megatron.expert_model_parallel_size",
            f"{_ACTOR}.megatron.expert_tensor_parallel_size",
            text="of a model with experts each rank of a tensor group has an equal part by number "
            "(`training.parallel.tensorParallel`), whole experts",
            off=("1", "none"),
        ),
        harmless(
            *(f"{_ACTOR}.megatron.override_transformer_config.{name}" for name in _MEGATRON_COMPUTES),
            *(f"{_ACTOR}.megatron.{name}" for name in _MEGATRON_RUNS),
            text="how Megatron computes, not what",
        ),
        none(f"{_ACTOR}.megatron.*", text="no other setting of Megatron is known here"),
        none(
            f"{_REF}.log_prob_micro_batch_size_per_gpu",
            f"{_REF}.log_prob_max_token_len_per_gpu",
            f"{_REF}.log_prob_micro_batch_size",
            f"{_REF}.log_prob_use_dynamic_bsz",
            text="the reference model takes the trainer's micro-batches",
        ),
        none(f"{_REF}.model.*", text="the reference is the model that training begins with"),
        harmless(f"{_REF}.*", text="the reference model is sharded like the policy"),
        built(
            "trainer.nnodes",
            "trainer.n_gpus_per_node",
            text="`pools.trainer.replicas`, `pools.trainer.acceleratorsPerWorker`",
        ),
        built("trainer.device", text="`accelerator`: cuda is `nvidia`, npu `ascend`, cpu `cpu`"),
        built(
            "trainer.project_name",
            "trainer.experiment_name",
            text="`metadata.name`, and the names in `training.loggers`; the run's folder is `--output`",
        ),
        built(
            "trainer.logger",
            text="wandb, mlflow: [`training.loggers`](loggers.md); other services: none. The terminal, "
            "TensorBoard files and events (`training.profiling.events`) are always written",
        ),
        built(
            "trainer.save_freq",
            text="`training.checkpoint.everySteps`. There is no -1: a checkpoint is what a restart goes on "
            "from",
        ),
        direct("trainer.max_actor_ckpt_to_keep", "training.checkpoint.keep", "integer"),
        direct("trainer.default_local_dir", "training.checkpoint.path", "text"),
        none(
            "trainer.default_hdfs_dir",
            text="checkpoints are written to a folder, `training.checkpoint.path`",
            off=("none",),
        ),
        none("trainer.resume_mode", text="`rljob run --auto-resume` is auto; `rljob run --restart` disable"),
        none(
            "trainer.resume_from_path",
            text="`rljob run --resume` goes on from the newest checkpoint",
            off=("none",),
        ),
        none(
            "trainer.rollout_data_dir",
            text="`training.profiling.samplesPerStep`: that many responses of each step, in `samples.jsonl`, "
            "in the report and by [`rljob samples`](operations.md#what-the-model-says)",
        ),
        none(
            "trainer.val_before_train",
            text="a job with `training.evaluation` evaluates the initial weights too",
            off=("true",),
        ),
        none("trainer.val_only", text="a job trains", off=("false",)),
        none(
            "trainer.log_val_generations",
            "trainer.validation_data_dir",
            text="`training.profiling.samplesPerStep` responses of each set are kept, in "
            "`evaluation_samples.jsonl`",
        ),
        built("trainer.test_freq", text=_EVERY),
        none("trainer.critic_warmup", text="there is no critic", off=("0",)),
        none("trainer.balance_batch", text="tokens are always balanced over ranks and micro-batches"),
        none(
            "trainer.v1.*",
            text="verl's newer asynchronous trainer: set `training.async.maxStaleness` and `stepsPerVersion` "
            "by hand",
            off=(),
        ),
        harmless(
            "trainer.use_legacy_worker_impl",
            "trainer.max_critic_ckpt_to_keep",
            "trainer.del_local_ckpt_after_load",
            "trainer.remove_previous_ckpt_in_save",
            "trainer.esi_redundant_time",
            "trainer.ray_wait_register_center_timeout",
            text="settings of verl's own processes",
        ),
        none("trainer.*", text="no other setting of verl's trainer is known here"),
        none("skip.*", text="responses are always drawn anew"),
        harmless(
            "ray_kwargs.*",
            "ray_init.*",
            "global_profiler.*",
            "transfer_queue.*",
            "hydra.*",
            f"{_ACTOR}.profiler.*",
            f"{_ROLLOUT}.profiler.*",
            text="settings of verl's own processes",
        ),
        none("actor_rollout_ref.nccl_timeout", text="see `training.timeouts`"),
        none(
            f"{_ACTOR}.veomni.*",
            f"{_ACTOR}.torchtitan.*",
            f"{_ACTOR}.engine.*",
            text="settings of another trainer; here it is FSDP2, with `training.parallel`",
            off=("0", "1", "true", "false", "none"),
        ),
        harmless(f"{_ACTOR}.checkpoint.*", text="a checkpoint holds all that a resumed run needs"),
        none(f"{_ACTOR}.*", text="no other setting of verl's actor is known here", off=("none", "false")),
    ),
)
