"""What runs TRL's asynchronous GRPO trainer, with a vLLM server of its own, the length of each response told
beforehand and a line for each step. Its arguments are TRL's own (`AsyncGRPOConfig`).

PEERS_ENGINE names the server's GPU as CUDA_VISIBLE_DEVICES does. The server is of this process's group, so
that who ends the group ends it.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer
from trl import TrlParser
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer, async_grpo_trainer, packing
from trl.experimental.async_grpo.async_rollout_worker import AsyncRolloutWorker, _AsyncRolloutLoop

from tests.bench.peers import reward
from tests.bench.peers.forced import lengths
from tests.bench.peers.ranks import free_port
from tests.bench.peers.trl_inside import Steps, prompts
from tests.bench.peers.work import MODEL

_told: ContextVar[int] = ContextVar("told")
"""Tokens of the response that a task generates."""
_RESPONSE = {
    "defaults": {"role": "assistant"},
    "start_anchor_pattern": r"\Z",
    "fields": {"content": {"content": "text"}},
}
"""How a response is read: all that comes after the prompt is its text. TRL knows how for some chat templates
alone."""
_ENDING = 15.0
"""Seconds for the server to end after SIGTERM."""


class ForcedLoop(_AsyncRolloutLoop):  # type: ignore[misc]
    """The prompt's row, which is its group's number, tells how many tokens each of its responses has. The
    responses of a group are begun one after the other."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._begun: Counter[int] = Counter()

    async def _generate_one(
        self, prompt: Any, tool_dict: Mapping[str, Any], tools: Any, group_id: int = 0
    ) -> Any:
        _told.set(int(lengths()[group_id % len(lengths()), self._begun[group_id]]))
        self._begun[group_id] += 1
        return await super()._generate_one(prompt, tool_dict=tool_dict, tools=tools, group_id=group_id)

    async def _post(self, path: str, payload: Mapping[str, Any], *given: Any, **named: Any) -> Any:
        forced = {**payload, "max_tokens": _told.get(), "ignore_eos": True}
        return await super()._post(path, forced, *given, **named)


class ForcedWorker(AsyncRolloutWorker):  # type: ignore[misc]
    """TRL's own, with `ForcedLoop` in its process."""

    _loop_cls = ForcedLoop


def main() -> None:
    [settings] = TrlParser((AsyncGRPOConfig,)).parse_args_and_config()
    model = Path(os.environ["PEERS_WORK"]) / MODEL
    port = free_port()
    settings.vllm_server_base_url = f"http://127.0.0.1:{port}"
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.response_template = _RESPONSE
    async_grpo_trainer.AsyncRolloutWorker = ForcedWorker
    packing._flash_attn = flash_attn
    with server(model, port):
        trainer = AsyncGRPOTrainer(
            model=str(model), reward_funcs=reward.trl, args=settings, train_dataset=prompts(model.parent),
            processing_class=tokenizer,
            callbacks=[Steps(lambda args, logs: logs["batch/trained_tokens_per_step"])],
        )  # fmt: skip
        trainer.train()


def flash_attn() -> Any:
    """FlashAttention-2 as it is installed, in the place of a FlashAttention-3 that TRL would download. Both
    take the same arguments."""
    import flash_attn

    return flash_attn


@contextmanager
def server(model: Path, port: int) -> Iterator[None]:
    """A vLLM server of the model that listens on a port of this machine, ended at the end."""
    given = {
        "model": model, "host": "127.0.0.1", "port": port, "max-model-len": 2048, "max-num-seqs": 512,
        # As ours.
        "max-num-batched-tokens": 16384,
        # The engine has its GPU to itself.
        "gpu-memory-utilization": 0.85,
        "weight-transfer-config": json.dumps({"backend": "nccl"}),
        "logprobs-mode": "processed_logprobs", "uvicorn-log-level": "warning",
    }  # fmt: skip
    words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    told = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": os.environ["PEERS_ENGINE"],
        # What takes weights and stops generation is served in this mode alone.
        "VLLM_SERVER_DEV_MODE": "1",
    }
    child = subprocess.Popen([sys.executable, "-m", "vllm.entrypoints.openai.api_server", *words], env=told)
    try:
        yield
    finally:
        child.terminate()
        try:
            child.wait(_ENDING)
        except subprocess.TimeoutExpired:
            child.kill()


if __name__ == "__main__":
    main()
