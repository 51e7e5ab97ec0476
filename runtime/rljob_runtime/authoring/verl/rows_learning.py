"""Rows of the table: data, reward and algorithm."""

from rljob_runtime.authoring.verl.learning import OVERLONG_LENGTHS
from rljob_runtime.authoring.verl.table import Section, built, direct, harmless, none, said

_ACTOR = "actor_rollout_ref.actor"
_OFFLOADED = (
    "optimizer_cpu_offload",
    "optimizer_offload_fraction",
    "overlap_cpu_optimizer_d2h_h2d",
    "use_precision_aware_optimizer",
)
_TOKENS = "`training.parallel.maxTokensPerMicroBatch`"

DATA_AND_REWARD = Section(
    "Data and reward",
    (
        built(
            "data.train_files",
            text="`training.data.parquet.path`; also `jsonl`, `huggingFace`, `generated`. A list: "
            "[`training.data.sources`](data.md), one for each file",
        ),
        built(
            "data.val_files",
            text="[`training.evaluation.sets`](evaluation.md), one for each file, where `test_freq` is above "
            "0; the reward is that of training",
        ),
        none("data.val_batch_size", text="prompts are evaluated as engines have room"),
        none("data.val_max_samples", text="each prompt of a set is evaluated", off=("-1",)),
        direct("data.prompt_key", "training.data.promptField", "text"),
        said(
            "(the reference answer: `reward_model.ground_truth` in verl's files)",
            "`training.data.answerField: reward_model.ground_truth`",
        ),
        said(
            "(`extra_info` and other columns, for the reward)",
            "`training.data.rewardFields: [extra_info.index]`",
        ),
        built(
            "data.truncation",
            text="error: `training.data.longPrompts: error`. left, right, middle: none, a prompt is never "
            "cut; `longPrompts: skip` leaves it out",
        ),
        built("data.filter_overlong_prompts", text="true: `training.data.longPrompts: skip`"),
        none("data.filter_overlong_prompts_workers", text="prompts are tokenized while the job runs"),
        direct("data.max_prompt_length", "training.data.maxPromptTokens", "integer"),
        direct("data.max_response_length", "training.rollout.maxResponseTokens", "integer"),
        built(
            "data.train_batch_size",
            text="`training.schedule.promptsPerBatch * batchesPerStep`, see `ppo_mini_batch_size`; 0 in the "
            "fully-async recipe",
        ),
        none("data.gen_batch_size", text="prompts are begun one by one, as the bound of staleness admits"),
        none(
            "data.train_max_samples",
            text="the whole file is trained; `training.schedule.totalSteps` ends earlier",
            off=("-1",),
        ),
        direct("data.shuffle", "training.data.shuffle", "flag"),
        direct("data.seed", "training.seed", "integer"),
        none(
            "data.return_raw_chat",
            "data.return_raw_input_ids",
            "data.return_full_prompt",
            text="a prompt that is a list of messages gets the tokenizer's chat template, a string does not",
        ),
        none(
            "data.reward_fn_key",
            text="one reward function scores all rows; it gets the name of a row's source, "
            "`RewardInput.source`",
        ),
        none(
            "data.image_key",
            "data.video_key",
            "data.audio_key",
            text="prompts are text, and rows with images are refused",
        ),
        none("data.dataloader_num_workers", "data.use_shm", text="prompts are read by the driver"),
        none(
            "data.custom_cls.*",
            text="write the rows to a JSON Lines or parquet file before the job",
            off=("none",),
        ),
        none("data.image_patch_size", text="prompts are text, and rows with images are refused"),
        none("data.validation_shuffle", text="each prompt of a set is evaluated, in any order"),
        none(
            "data.apply_chat_template_kwargs.*",
            text="the tokenizer's chat template is applied without arguments",
            off=(),
        ),
        none("data.trust_remote_code", text="code of a tokenizer's folder is never run", off=("false",)),
        built(
            "custom_reward_function.path",
            "custom_reward_function.name",
            "reward.custom_reward_function.path",
            "reward.custom_reward_function.name",
            text="`training.reward.function: MODULE:NAME`, the module beside the manifest. The function must "
            "be rewritten: it gets one `RewardInput` in place of verl's arguments ([rewards](rewards.md))",
        ),
        none(
            "custom_reward_function.reward_kwargs.*",
            "reward.custom_reward_function.reward_kwargs.*",
            text="write them as `training.reward.arguments`",
            off=(),
        ),
        built(
            "reward_model.reward_manager",
            "reward.reward_manager.name",
            text="dapo: `training.reward.function` with `training.reward.overlong`; naive: without. Others: "
            "none, write the reward as a function",
        ),
        built(
            "reward_model.reward_kwargs.overlong_buffer_cfg.enable",
            "reward_model.overlong_buffer.enable",
            "reward.reward_kwargs.overlong_buffer_cfg.enable",
            text="set or leave out `training.reward.overlong`",
        ),
        built(
            "reward_model.reward_kwargs.overlong_buffer_cfg.len",
            "reward_model.overlong_buffer.len",
            "reward.reward_kwargs.overlong_buffer_cfg.len",
            text="`training.reward.overlong.bufferTokens`",
        ),
        built(
            "reward_model.reward_kwargs.overlong_buffer_cfg.penalty_factor",
            "reward_model.overlong_buffer.penalty_factor",
            "reward.reward_kwargs.overlong_buffer_cfg.penalty_factor",
            text="`training.reward.overlong.penaltyFactor`",
        ),
        none(
            "reward_model.reward_kwargs.overlong_buffer_cfg.log",
            "reward_model.overlong_buffer.log",
            "reward.reward_kwargs.overlong_buffer_cfg.log",
            text="the punishment is always recorded, as the [part](rewards.md#parts-and-metrics) "
            "`shaping.overlong` of the reward",
        ),
        built(
            *OVERLONG_LENGTHS,
            text="the zone of `training.reward.overlong` ends at `training.rollout.maxResponseTokens`",
        ),
        direct("reward_model.num_workers", "training.reward.workers", "integer"),
        direct("reward.num_workers", "training.reward.workers", "integer"),
        none(
            "reward_model.enable",
            "reward.reward_model.enable",
            text="no model scores responses; a reward function may ask a server of its own",
            off=("false",),
        ),
        harmless(
            "reward_model.launch_reward_fn_async",
            "reward_model.use_reward_loop",
            text="rewards are always computed beside generation",
        ),
        none(
            "reward_model.*",
            "reward.*",
            "sandbox_fusion.*",
            text="settings of verl's reward models and managers",
        ),
    ),
)

ALGORITHM = Section(
    "Algorithm",
    (
        built(
            "algorithm.adv_estimator",
            text="`training.algorithm.advantage`: grpo is `grpo` (the default), rloo `rloo`, "
            "reinforce_plus_plus `reinforcePlusPlus`, reinforce_plus_plus_baseline `reinforcePlusPlus` with "
            "`baseline: true`. There is no gamma: a reward is of the whole response. Others: none",
        ),
        built(
            "algorithm.norm_adv_by_std_in_grpo",
            text="`training.algorithm.normalizeByStd`; false is Dr. GRPO",
        ),
        said(
            "(slime: `--use-opsm`, `--opsm-delta`; TRL: `off_policy_mask_threshold`)",
            "`training.algorithm.offPolicyMask.maxDivergence`",
        ),
        none(
            "algorithm.use_kl_in_reward",
            text="the penalty is a term of the loss, `training.algorithm.kl`",
            off=("false",),
        ),
        harmless(
            "algorithm.kl_ctrl.*",
            "algorithm.kl_penalty",
            text="the penalty is a term of the loss, see `kl_loss_coef`",
        ),
        none("algorithm.gamma", "algorithm.lam", text="there is no critic", off=("1", "1.0")),
        built(
            "algorithm.filter_groups.enable",
            "algorithm.filter_groups.metric",
            text="set or leave out `training.rollout.filter.zeroVariance`; what is compared is the reward "
            "with its shaping (`metric: seq_final_reward`), where verl's `acc` and `score` are without the "
            "overlong punishment. A range of pass rates: `filter.passRate` beside it",
        ),
        built(
            "algorithm.filter_groups.max_num_gen_batches",
            text="`training.rollout.filter.zeroVariance.maxRefill`: batches that are refused beside the one "
            "that is trained, so one less; larger by `gen_batch_size / train_batch_size`. 0, verl's default, "
            "has no bound there: `maxRefill: 1000`. When it is used up the step trains what it has; there it "
            "is an error",
        ),
        none("algorithm.filter_groups.max_inflight_gen_batches", text="see `staleness_threshold`"),
        built(f"{_ACTOR}.use_kl_loss", text="set or leave out `training.algorithm.kl`"),
        built(f"{_ACTOR}.kl_loss_coef", text="`training.algorithm.kl.coefficient`"),
        built(
            f"{_ACTOR}.kl_loss_type",
            text="`training.algorithm.kl.estimator`: kl is `k1`, mse `k2`, low_var_kl `k3`",
        ),
        built(
            f"{_ACTOR}.clip_ratio",
            f"{_ACTOR}.clip_ratio_low",
            f"{_ACTOR}.clip_ratio_high",
            text="`training.algorithm.policyLoss.clip.low`, `high`. In verl `clip_ratio` counts only where "
            "the other two are null: by default they are 0.2",
        ),
        built(f"{_ACTOR}.clip_ratio_c", text="`training.algorithm.policyLoss.clip.dual`"),
        built(
            f"{_ACTOR}.policy_loss.loss_mode",
            text="`training.algorithm.policyLoss`: vanilla is `clip`, gspo `gspo` and sapo `sapo`, both with "
            "`aggregation: sequence-mean`, which verl always takes for them, cispo `cispo`, dppo_tv `dppoTv` "
            "(`weightCap` is verl's `clip_ratio_c`). verl's cispo takes `clip_ratio_low` and "
            "`clip_ratio_high` as distances from 1: `cispo.weightFloor` is 1 − low, `weightCap` 1 + high. "
            "verl's gspo stops the gradient where a response's ratio is above e^10; `gspo.dual` ends it "
            "earlier for those with A < 0",
        ),
        said(
            "(in code: `register_policy_loss`, `register_adv_est`)",
            "`training.algorithm.policyLoss.custom`, `training.algorithm.advantage.custom`: functions by "
            "`module:function`",
        ),
        built(
            f"{_ACTOR}.tau_pos",
            f"{_ACTOR}.tau_neg",
            f"{_ACTOR}.policy_loss.tau_pos",
            f"{_ACTOR}.policy_loss.tau_neg",
            text="`training.algorithm.policyLoss.sapo.positiveTemperature`, `negativeTemperature`",
        ),
        built(
            "algorithm.rollout_correction.rollout_is",
            "algorithm.rollout_correction.rollout_is_threshold",
            "algorithm.rollout_correction.bypass_mode",
            text="`training.algorithm.rolloutCorrection.level`, `weightCap`; a threshold of two numbers is "
            "`weightFloor`, `weightCap` and `outside: mask`. With `clip` it is `policyLoss.decoupledClip`. "
            "`bypass_mode: true` is `clip`, whose ratio is against the engines' policy, and in verl "
            "`rollout_is` is of no effect with it; false, verl's default, takes the ratio against the "
            "trainer's, as `decoupledClip` does",
        ),
        none(
            "algorithm.rollout_correction.loss_type",
            text="with `bypass_mode: true` reinforce is `training.algorithm.policyLoss.truncatedReinforce`: "
            "write it by hand",
            off=("ppo_clip",),
        ),
        none(
            "algorithm.rollout_correction.*",
            text="beside truncated and masked weights there is no other correction",
            off=("none", "false"),
        ),
        direct(f"{_ACTOR}.entropy_coeff", "training.algorithm.entropyCoefficient", "number"),
        built(
            f"{_ACTOR}.loss_agg_mode",
            text="`training.algorithm.aggregation`: token-mean is `token-mean`, seq-mean-token-mean "
            "`sequence-mean`, seq-mean-token-sum-norm `fixed-length`, whose length is "
            "`training.rollout.maxResponseTokens` (verl's `loss_scale_factor` is by default). Others: none",
        ),
        built(
            f"{_ACTOR}.ppo_mini_batch_size",
            text="`training.schedule.promptsPerBatch`; a step has `data.train_batch_size / "
            "ppo_mini_batch_size` batches, in the fully-async recipe `require_batches`",
        ),
        none(
            f"{_ACTOR}.ppo_epochs",
            text="each sample is trained once; a further epoch would train with older ratios",
            off=("1",),
        ),
        none(f"{_ACTOR}.shuffle", f"{_ACTOR}.data_loader_seed", text="see `training.schedule.batchOrder`"),
        built(
            f"{_ACTOR}.use_dynamic_bsz",
            text=f"micro-batches are always filled by tokens ({_TOKENS})",
        ),
        built(f"{_ACTOR}.ppo_max_token_len_per_gpu", text=_TOKENS),
        built(
            f"{_ACTOR}.ppo_micro_batch_size_per_gpu",
            f"{_ACTOR}.ppo_micro_batch_size",
            text=f"without `use_dynamic_bsz`: {_TOKENS}, as many tokens as that many of the longest samples. "
            "It has no effect with it",
        ),
        built(
            f"{_ACTOR}.ulysses_sequence_parallel_size",
            f"{_ACTOR}.fsdp_config.ulysses_sequence_parallel_size",
            text="N: `training.parallel.contextParallel: {fixed: {degree: N}, attention: ulysses}`; or "
            "`{hybrid: {}}`, which shares long samples alone",
        ),
        direct(f"{_ACTOR}.optim.lr", "training.optimizer.learningRate", "number"),
        built(f"{_ACTOR}.optim.lr_warmup_steps", text="`training.optimizer.warmupUpdates`; -1 is 0"),
        built(
            f"{_ACTOR}.optim.lr_warmup_steps_ratio",
            text="`training.optimizer.warmupUpdates`: that part of the job's updates",
        ),
        built(
            f"{_ACTOR}.optim.lr_decay_style",
            f"{_ACTOR}.optim.lr_scheduler_type",
            f"{_ACTOR}.optim.warmup_style",
            text="`training.optimizer.schedule`",
        ),
        built(
            f"{_ACTOR}.optim.lr_decay_steps",
            text="none: with a schedule that falls, the rate falls over the job's updates",
        ),
        none(
            f"{_ACTOR}.optim.min_lr_ratio",
            f"{_ACTOR}.optim.min_lr",
            text="the rate falls to 0",
            off=("0", "0.0", "none"),
        ),
        direct(f"{_ACTOR}.optim.weight_decay", "training.optimizer.weightDecay", "number"),
        built(f"{_ACTOR}.optim.betas", text="`training.optimizer.beta1`, `beta2`"),
        direct(f"{_ACTOR}.optim.clip_grad", "training.optimizer.maxGradNorm", "number"),
        direct(f"{_ACTOR}.grad_clip", "training.optimizer.maxGradNorm", "number"),
        none(
            f"{_ACTOR}.optim.optimizer",
            f"{_ACTOR}.optim.optimizer_impl",
            text="the optimizer is AdamW, as `training.optimizer` has it",
            off=("adamw", "adam", "torch.optim", "none"),
        ),
        none(
            f"{_ACTOR}.optim.num_cycles",
            text="`schedule: cosine` falls once, through half a cycle",
            off=("0.5", "none"),
        ),
        none(f"{_ACTOR}.optim.lr_warmup_init", text="the rate rises from 0", off=("0", "0.0", "none")),
        harmless(
            *(f"{_ACTOR}.optim.override_optimizer_config.{name}" for name in _OFFLOADED),
            text="`training.parallel.cpuOffload`, for weights, gradients and optimizer states together",
        ),
        none(
            f"{_ACTOR}.optim.override_optimizer_config.*",
            text="`training.parallel.cpuOffload`, for weights, gradients and optimizer states together; "
            "`training.optimizer.stateFormat` for moments in bfloat16",
        ),
        none(f"{_ACTOR}.optim.*", text="no other setting of the optimizer is known here"),
        harmless("critic.*", text="there is no critic: advantages are those of a group"),
        none("algorithm.*", text="no other estimators, penalties or filters", off=("none", "false")),
        built(
            "distillation.enabled",
            "distillation.teacher_models.*",
            "distillation.teacher_model.*",
            text="`training.algorithm.distillation.teacher.path` is the `model_path` of a single teacher, "
            "which is scored in the trainer. For one on devices of its own, as verl's are, start a vLLM "
            "server and name it in `teacher.server` instead ([Algorithms](algorithms.md#a-teacher))",
        ),
        built(
            "distillation.distillation_loss.use_task_rewards",
            text="false: `training.algorithm.advantage: {none: {}}`",
        ),
        built(
            "distillation.distillation_loss.distillation_loss_coef",
            text="`training.algorithm.distillation.coefficient`",
        ),
        none(
            "distillation.distillation_loss.loss_mode",
            text="the teacher's part is an advantage, the reverse KL at the drawn token (`k1` with "
            "`use_policy_gradient`)",
            off=("k1", "kl"),
        ),
        none(
            "distillation.distillation_loss.use_policy_gradient",
            text="the teacher's part is always an advantage, and goes through the policy loss",
            off=("true",),
        ),
        none("distillation.*", text="no other setting of a teacher is known here"),
    ),
)
