"""What runs TRL's GRPO trainer, with the length of each response told beforehand and a line for each step.
Its arguments are TRL's own (`GRPOConfig`)."""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import pyarrow
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer, TrlParser

from tests.bench.peers import reward
from tests.bench.peers.forced import lengths, told
from tests.bench.peers.rates import trl_line
from tests.bench.peers.work import MODEL, PROMPTS


class ForcedLengths(GRPOTrainer):  # type: ignore[misc]
    """The prompt's row tells how many tokens each of its responses has.

    Each process has whole groups, one after the other: a response's number in its group is its place there.
    """

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._told: list[int] = []
        engine = self.vllm_generation.llm
        engine.generate = with_lengths(engine.generate, lambda: self._told)

    def _generate_and_score_completions(self, inputs: Sequence[Mapping[str, Any]]) -> Any:
        self._told = told([given["row"] for given in inputs], lengths())
        return super()._generate_and_score_completions(inputs)


def with_lengths(generate: Callable[..., Any], told: Callable[[], Sequence[int]]) -> Callable[..., Any]:
    """vLLM's `LLM.generate`, with as many tokens for each prompt as are told for it."""

    @wraps(generate)
    def forced(prompts: Sequence[Any], sampling_params: Any, **given: Any) -> Any:
        each = []
        for _, tokens in zip(prompts, told(), strict=True):
            own = sampling_params.clone()
            own.max_tokens = tokens
            each.append(own)
        return generate(prompts, sampling_params=each, **given)

    return forced


class Steps(TrainerCallback):  # type: ignore[misc]
    """Says of each step that it has ended, when its loss is known. `tokens`: the response tokens that it
    trained, of TRL's settings and of what it logs of the step."""

    def __init__(self, tokens: Callable[[Any, Mapping[str, float]], float]) -> None:
        self._tokens = tokens

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, float], **_: Any) -> None:
        # The last one is of the whole run.
        if "loss" in logs and state.is_world_process_zero:
            # In one piece: other processes write to the same pipe.
            sys.stdout.write(f"{trl_line(state.global_step, self._tokens(args, logs))}\n")
            sys.stdout.flush()


def prompts(folder: Path) -> Dataset:
    """The work's, in their order, as messages of a chat, each with its row."""
    given = [json.loads(line) for line in (folder / PROMPTS).read_text().splitlines()]
    rows = [
        {"prompt": [{"role": "user", "content": each["prompt"]}], "row": row}
        for row, each in enumerate(given)
    ]
    # A fingerprint of its own would be made by pickling, which fails with pyarrow 26.
    return Dataset(pyarrow.Table.from_pylist(rows), fingerprint="prompts")


def main() -> None:
    [settings] = TrlParser((GRPOConfig,)).parse_args_and_config()
    folder = Path(os.environ["PEERS_WORK"])
    steps = Steps(lambda args, logs: logs["completions/mean_length"] * args.generation_batch_size)
    trainer = ForcedLengths(
        model=str(folder / MODEL), reward_funcs=reward.trl, args=settings, train_dataset=prompts(folder),
        callbacks=[steps],
    )  # fmt: skip
    trainer.train()


if __name__ == "__main__":
    main()
