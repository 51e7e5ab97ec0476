"""Rows of the table: rollout."""

from rljob_runtime.authoring.verl.table import Section, built, direct, harmless, none, said

_ROLLOUT = "actor_rollout_ref.rollout"
_VLLM = "training.rollout.engine.vllm"

ROLLOUT = Section(
    "Rollout",
    (
        built(f"{_ROLLOUT}.name", text="vllm: `training.rollout.engine: {vllm: {}}`. Others: none"),
        direct(f"{_ROLLOUT}.n", "training.rollout.samplesPerPrompt", "integer"),
        direct(f"{_ROLLOUT}.temperature", "training.rollout.temperature", "number"),
        direct(f"{_ROLLOUT}.top_p", "training.rollout.topP", "number"),
        built(f"{_ROLLOUT}.top_k", text="`training.rollout.topK`; -1 is 0"),
        none(
            f"{_ROLLOUT}.do_sample",
            text="responses are always sampled",
            off=("true",),
        ),
        none(
            f"{_ROLLOUT}.calculate_log_probs",
            text="engines always return the log-probabilities they sampled from",
        ),
        built(
            f"{_ROLLOUT}.gpu_memory_utilization",
            text=f"`{_VLLM}.gpuMemoryUtilization`. Of a script of `main_ppo` it is not taken over: its "
            "engines share their devices with the trainer",
        ),
        built(
            f"{_ROLLOUT}.tensor_model_parallel_size",
            text="`pools.fastRollout.acceleratorsPerWorker`",
        ),
        none(
            f"{_ROLLOUT}.data_parallel_size",
            f"{_ROLLOUT}.expert_parallel_size",
            f"{_ROLLOUT}.pipeline_model_parallel_size",
            text="engines are independent of each other, one for each worker of a pool",
            off=("1",),
        ),
        direct(f"{_ROLLOUT}.max_num_batched_tokens", f"{_VLLM}.maxBatchedTokens", "integer"),
        none(f"{_ROLLOUT}.enable_chunked_prefill", text="vLLM's own default"),
        direct(f"{_ROLLOUT}.enable_prefix_caching", f"{_VLLM}.prefixCaching", "flag"),
        direct(f"{_ROLLOUT}.enforce_eager", f"{_VLLM}.enforceEager", "flag"),
        built(f"{_ROLLOUT}.cudagraph_capture_sizes", text=f"`{_VLLM}.captureSizes`"),
        none(
            f"{_ROLLOUT}.free_cache_engine",
            f"{_ROLLOUT}.enable_sleep_mode",
            text="engines share no device with the trainer",
        ),
        none(
            f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu",
            f"{_ROLLOUT}.log_prob_max_token_len_per_gpu",
            f"{_ROLLOUT}.log_prob_micro_batch_size",
            f"{_ROLLOUT}.log_prob_use_dynamic_bsz",
            text="see `training.parallel.maxTokensPerMicroBatch`",
        ),
        built(f"{_ROLLOUT}.val_kwargs.n", text="`training.evaluation.samplesPerPrompt`"),
        built(
            f"{_ROLLOUT}.val_kwargs.temperature",
            f"{_ROLLOUT}.val_kwargs.top_p",
            f"{_ROLLOUT}.val_kwargs.top_k",
            text="`training.evaluation.sampling`; verl's defaults are 0, 1 and off, whatever training has",
        ),
        none(f"{_ROLLOUT}.val_kwargs.do_sample", text="`temperature: 0` takes the most probable token"),
        none(f"{_ROLLOUT}.val_kwargs.*", text="`training.evaluation.sampling` has no other setting"),
        harmless(f"{_ROLLOUT}.agent.num_workers", text="a response is one answer to one prompt"),
        none(
            f"{_ROLLOUT}.multi_turn.*",
            f"{_ROLLOUT}.agent.*",
            text="a response is one answer to one prompt: there are no tools and no turns",
            off=("false", "none", "1", "single_turn_agent"),
        ),
        none(
            f"{_ROLLOUT}.quantization",
            text="engines compute in `training.model.dtype`",
            off=("none",),
        ),
        none(
            f"{_ROLLOUT}.ignore_eos",
            text="a response ends with its stop token; `training.rollout.forcedLengths` is for benchmarks",
            off=("false",),
        ),
        said(
            "(16 requests for each engine, fixed in the recipe's code)",
            "`training.rollout.maxRunningRequests`",
        ),
        direct(f"{_ROLLOUT}.max_num_seqs", "training.rollout.maxRunningRequests", "integer"),
        none(
            f"{_ROLLOUT}.enable_rollout_routing_replay",
            text="the trainer chooses experts for itself",
            off=("false",),
        ),
        none(
            f"{_ROLLOUT}.engine_kwargs.vllm.kv_cache_dtype",
            text="the KV cache has `training.model.dtype`",
            off=("auto", "none"),
        ),
        none(
            f"{_ROLLOUT}.repetition_penalty",
            text="tokens are drawn without a penalty",
            off=("1", "1.0", "none"),
        ),
        none(
            f"{_ROLLOUT}.logprobs_mode",
            text="log-probabilities are those that a token is drawn by, with temperature, topP and topK",
            off=("processed_logprobs", "none"),
        ),
        none(f"{_ROLLOUT}.skip_rollout", text="responses are always drawn anew", off=("false",)),
        harmless(
            f"{_ROLLOUT}.skip_dump_dir",
            f"{_ROLLOUT}.skip_use_default_dir",
            text="responses are always drawn anew; see `skip_rollout`",
        ),
        harmless(
            f"{_ROLLOUT}.update_weights_bucket_megabytes",
            f"{_ROLLOUT}.checkpoint_engine.*",
            f"{_ROLLOUT}.layered_summon",
            f"{_ROLLOUT}.load_format",
            f"{_ROLLOUT}.multi_stage_wake_up",
            f"{_ROLLOUT}.layer_name_map.*",
            text="engines load the model's folder, and get weights as `training.async.weightSync` says",
        ),
        harmless(
            f"{_ROLLOUT}.max_model_len",
            f"{_ROLLOUT}.prompt_length",
            f"{_ROLLOUT}.response_length",
            text="engines take the longest sample of `training.data.maxPromptTokens` and "
            "`rollout.maxResponseTokens`",
        ),
        harmless(
            f"{_ROLLOUT}.disable_log_stats",
            f"{_ROLLOUT}.skip_tokenizer_init",
            f"{_ROLLOUT}.prometheus.*",
            f"{_ROLLOUT}.trace.*",
            f"{_ROLLOUT}.engine_kwargs.vllm.disable_mm_preprocessor_cache",
            f"{_ROLLOUT}.engine_kwargs.vllm.compilation_config.*",
            f"{_ROLLOUT}.engine_kwargs.sglang.*",
            f"{_ROLLOUT}.engine_kwargs.trtllm.*",
            text="how an engine runs, not what it draws",
        ),
        none(f"{_ROLLOUT}.*", text="no other setting of verl's engines is known here"),
    ),
)
