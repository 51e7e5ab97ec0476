"""vLLM's own scheduler without an engine around it: a KV cache of so many blocks, and steps whose tokens are
made up."""

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

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

from rljob_runtime.engines.vllm_scheduler import Holding, made_of

BLOCK = 16
"""Tokens."""


class ByToken(Holding):
    """Takes each token vLLM's way, before it is held back."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._plain = None


class Steps:
    """A scheduler with `parts` before vLLM's own. With vLLM's asynchronous one, as engines have it on GPUs,
    each step ends after the next has begun; else before."""

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
        asynchronous: bool = True,
        caching: bool = True,
        drafts: int = 0,
        second_runner: bool = False,
        records: bool = False,
    ) -> None:
        """`requests` run at most; `tokens`: the most of a step; `longest`: of a prompt and its response;
        `caching`: whether prompts are looked up; `drafts`: tokens that a step may try of each request that
        generates, and slots beyond them; not with the asynchronous one, whose parts may ask for some. Of what
        is tried any number is kept. The log-probability of token n is -n. `second_runner`: as for vLLM's
        second model runner, which CPUs do not have; `records`: whether `drawn` and `left` are kept."""
        self.sent: dict[int, Any] = {}
        """What the last step that was processed sends, by front end."""
        self._under_way: deque[tuple[Any, list[bool]]] = deque()
        """Each step with whether it draws, by its requests."""
        self._made = 0
        self._records = records
        self.drawn: dict[str, list[int]] = {}
        """By request, all tokens that it was given."""
        self.left: dict[str, tuple[list[int], list[float]]] = {}
        """By request, the tokens and log-probabilities that have left the scheduler."""
        self._asynchronous, self._drafts = asynchronous, drafts
        init_none_hash(sha256)
        self.hasher = get_request_block_hasher(BLOCK, sha256)
        arguments = _arguments(model, requests, blocks, tokens, longest, window, caching)
        # vLLM itself does without on CPUs.
        arguments["vllm_config"].scheduler_config.async_scheduling = asynchronous
        with patch.object(VllmConfig, "use_v2_model_runner", second_runner):
            self.scheduler = made_of(parts, arguments)
        self.scheduler.num_spec_tokens = self.scheduler.num_lookahead_tokens = drafts

    def add(self, name: str, prompt: Sequence[int], tokens: int, ends: Sequence[int] = ()) -> None:
        """A request for so many tokens, or fewer where one of `ends` is drawn."""
        least = 0 if ends else tokens
        asked = SamplingParams(
            max_tokens=tokens, min_tokens=least, temperature=1.0, logprobs=0, stop_token_ids=list(ends)
        )
        self.scheduler.add_request(
            Request(name, list(prompt), asked, pooling_params=None, block_hasher=self.hasher)
        )

    def step(self) -> Any:
        """What the next one is to do, as vLLM tells its ranks. The one before is processed."""
        asked, requests = self.scheduler.schedule(), self.scheduler.requests
        # Of a prompt more may be to come.
        draws = [not requests[name].is_prefill_chunk for name in asked.num_scheduled_tokens]
        self._under_way.append((asked, draws))
        if len(self._under_way) > self._asynchronous:
            self.process()
        return asked

    def process(self) -> None:
        """Process the outputs of the oldest step under way."""
        asked, draws = self._under_way.popleft()
        if not asked.total_num_scheduled_tokens:
            return
        names = list(asked.num_scheduled_tokens)
        tried = [len(asked.scheduled_spec_decode_tokens.get(name, ())) for name in names]
        # Of a token's own number: the blocks of no two requests are alike by their responses.
        drawn = [
            [self._token() for _ in range(1 + self._made % (1 + count))] if draw else []
            for draw, count in zip(draws, tried, strict=True)
        ]
        outputs = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: row for row, name in enumerate(names)},
            sampled_token_ids=drawn,
            logprobs=_log_probs(drawn, tried),
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        self.sent = self.scheduler.update_from_output(asked, outputs)
        if self._records:
            self._record(names, drawn)
        if self._drafts:
            for request in self.scheduler.running:
                if not request.is_prefill_chunk:
                    request.spec_token_ids = [1] * self._drafts

    def _record(self, names: Sequence[str], drawn: Sequence[Sequence[int]]) -> None:
        for name, tokens in zip(names, drawn, strict=True):
            self.drawn.setdefault(name, []).extend(tokens)
        for step in self.sent.values():
            for output in step.outputs:
                left, log_probs = self.left.setdefault(output.request_id, ([], []))
                left += output.new_token_ids
                log_probs += output.new_logprobs.logprobs.reshape(-1).tolist()

    def abort(self, name: str) -> None:
        from vllm.v1.request import RequestStatus

        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def drain(self) -> None:
        """Process what is under way."""
        while self._under_way:
            self.process()

    def _token(self) -> int:
        self._made += 1
        return self._made % 60


def _log_probs(drawn: list[list[int]], tried: list[int]) -> LogprobsLists:
    """As the model runner gives them: a row for each token of a request's that may be drawn in the step."""
    begins = np.cumsum([0, *(1 + count for count in tried)])
    rows = np.zeros((begins[-1], 1), np.float32)
    for begin, tokens in zip(begins.tolist(), drawn, strict=False):
        rows[begin : begin + len(tokens), 0] = [-token for token in tokens]
    return LogprobsLists(
        np.zeros(rows.shape, np.int32),
        rows,
        np.zeros(len(rows), np.int32),
        begins.tolist() if any(tried) else None,
    )


def _arguments(
    model: Path, requests: int, blocks: int, tokens: int, longest: int, window: int | None, prefixes: bool
) -> dict[str, Any]:
    of_model = ModelConfig(
        model=str(model), tokenizer=str(model), dtype="float32", max_model_len=longest,
        skip_tokenizer_init=True,
    )  # fmt: skip
    scheduling = SchedulerConfig(
        max_num_seqs=requests, max_num_batched_tokens=tokens, max_model_len=longest, is_encoder_decoder=False,
        enable_chunked_prefill=True,
    )  # fmt: skip
    caching = CacheConfig(block_size=BLOCK, enable_prefix_caching=prefixes)
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
