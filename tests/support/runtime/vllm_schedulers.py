"""vLLM's own scheduler without an engine around it: a KV cache of so many blocks, and steps whose tokens are
made up."""

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from rljob_runtime.engines.vllm_scheduler import made_of

BLOCK = 16
"""Tokens."""


class Steps:
    """A scheduler with `parts` before vLLM's asynchronous one, whose steps end one after the next began."""

    def __init__(
        self,
        model: Path,
        parts: tuple[type, ...],
        *,
        requests: int,
        blocks: int,
        tokens: int,
        longest: int,
        window: int | None = None,
    ) -> None:
        """`requests` run at most; `tokens`: the most of a step; `longest`: of a prompt and its response."""
        self._under_way: deque[Any] = deque()
        self._made = 0
        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(BLOCK, sha256)
        self.scheduler = made_of(parts, _arguments(model, requests, blocks, tokens, longest, window))

    def add(self, name: str, prompt: Sequence[int], tokens: int) -> None:
        asked = SamplingParams(max_tokens=tokens, min_tokens=tokens, temperature=1.0, logprobs=0)
        self.scheduler.add_request(
            Request(name, list(prompt), asked, pooling_params=None, block_hasher=self._hasher)
        )

    def step(self) -> Any:
        """What the next one is to do, as vLLM tells its ranks. The one before is processed."""
        asked = self.scheduler.schedule()
        self._under_way.append(asked)
        if len(self._under_way) > 1:
            self.process()
        return asked

    def process(self) -> None:
        """Process the outputs of the oldest step under way."""
        asked = self._under_way.popleft()
        if not asked.total_num_scheduled_tokens:
            return
        names = list(asked.num_scheduled_tokens)
        draws = [not self._begins(name) for name in names]
        rows = np.zeros((len(names), 1), np.int32)
        outputs = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: row for row, name in enumerate(names)},
            # Of a token's own number: the blocks of no two requests are alike by their responses.
            sampled_token_ids=[[self._token()] if draw else [] for draw in draws],
            logprobs=LogprobsLists(rows, rows.astype(np.float32), rows[:, 0], None),
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        self.scheduler.update_from_output(asked, outputs)

    def abort(self, name: str) -> None:
        from vllm.v1.request import RequestStatus

        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def drain(self) -> None:
        """Process what is under way."""
        while self._under_way:
            self.process()

    def _begins(self, name: str) -> bool:
        """Whether more of the request's prompt is to come."""
        request = self.scheduler.requests.get(name)
        return request is not None and request.is_prefill_chunk

    def _token(self) -> int:
        self._made += 1
        return self._made % 60


def _arguments(
    model: Path, requests: int, blocks: int, tokens: int, longest: int, window: int | None
) -> dict[str, Any]:
    of_model = ModelConfig(
        model=str(model), tokenizer=str(model), dtype="float32", max_model_len=longest,
        skip_tokenizer_init=True,
    )  # fmt: skip
    scheduling = SchedulerConfig(
        max_num_seqs=requests, max_num_batched_tokens=tokens, max_model_len=longest, is_encoder_decoder=False,
        enable_chunked_prefill=True, async_scheduling=True,
    )  # fmt: skip
    caching = CacheConfig(block_size=BLOCK, enable_prefix_caching=True)
    caching.num_gpu_blocks = blocks
    config = VllmConfig(
        model_config=of_model, scheduler_config=scheduling, cache_config=caching,
        device_config=DeviceConfig("cpu"),
    )  # fmt: skip
    shape: dict[str, Any] = {"block_size": BLOCK, "num_kv_heads": 2, "head_size": 32, "dtype": torch.float32}
    seen = FullAttentionSpec(**shape) if window is None else SlidingWindowSpec(**shape, sliding_window=window)
    kv = KVCacheConfig(blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], seen)])
    return {
        "vllm_config": config,
        "kv_cache_config": kv,
        "structured_output_manager": StructuredOutputManager(config),
        "block_size": BLOCK,
        "log_stats": True,
    }
