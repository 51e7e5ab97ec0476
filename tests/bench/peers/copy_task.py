"""A task that is learned within minutes: repeat four letters. One model folder, and one order of prompts, for
every contender.

Every token of the model has a name, so that a response is the same text to every reward function, and the
chat template puts the same special tokens around a prompt for all.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rljob_runtime.data.shuffle import mix
from tests.bench.peers.work import MODEL, PARQUET, PROMPTS

ASKED = "abcdefgh"
"""The letters of prompts."""
LETTERS = f"{ASKED}ijk"
"""The letters that there are: with the other tokens they make a vocabulary of 16."""
LENGTH = 4
"""Letters of a prompt."""
# verl asks every tokenizer of Qwen's family for the two last ones.
_TOKENS = ("<pad>", "<bos>", "<sep>", *LETTERS, "<|im_end|>", "\n")
_PAD, _BOS, _SEP, *_, _END, _ = _TOKENS
_TEMPLATE = f"{_BOS}{{% for message in messages %}}{{{{ message['content'] }}}}{{% endfor %}}{_SEP}"


@dataclass(frozen=True)
class Task:
    """What every contender is given."""

    shape: Mapping[str, float]
    """Of a Qwen3 model, as its configuration names it."""
    prompts: int
    """Of a step."""
    samples: int
    """Responses to a prompt."""
    steps: int
    longest: int
    """At most so many tokens are a response, its end among them."""
    learning_rate: float
    beta2: float
    clip: tuple[float, float]
    """How far a ratio may be below and above 1."""
    seed: int
    """Of weights and prompts."""

    def texts(self) -> list[str]:
        """The prompts of all steps, in their order."""
        key = mix(self.seed, 0)
        return [
            "".join(ASKED[mix(key, LENGTH * row + place) % len(ASKED)] for place in range(LENGTH))
            for row in range(self.prompts * (self.steps + 4))
        ]


COPY = Task(
    {
        "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 64, "initializer_range": 0.05, "tie_word_embeddings": False,
    },
    prompts=64, samples=8, steps=80, longest=8, learning_rate=2e-3, beta2=0.95, clip=(0.2, 0.28), seed=0,
)  # fmt: skip
"""Learned to a reward of 0.9 in fewer than 70 steps. Heads are as wide as every engine's attention takes them
on a GPU; weights are larger at the start than is usual, for a model so narrow."""


def prepare(task: Task, folder: Path) -> None:
    """Write everything into a folder that is there."""
    write_model(task, folder / MODEL)
    rows = [{"prompt": [{"role": "user", "content": text}], "answer": text} for text in task.texts()]
    (folder / PROMPTS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_parquet(rows, folder / PARQUET)


def write_model(task: Task, folder: Path) -> None:
    """A random model and a tokenizer of one token for each letter."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    pad, bos, end = map(_TOKENS.index, (_PAD, _BOS, _END))
    config = AutoConfig.for_model(
        "qwen3", vocab_size=len(_TOKENS), pad_token_id=pad, bos_token_id=bos, eos_token_id=end,
        max_position_embeddings=4096, **task.shape,
    )  # fmt: skip
    # Made on the CPU, so that no device has a part in it.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(task.seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder)
    tokenizer().save_pretrained(str(folder))


def tokenizer() -> Any:
    """One token for each letter. The text of a response has none of the special ones."""
    from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers
    from tokenizers.decoders import Fuse
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.WordLevel({name: at for at, name in enumerate(_TOKENS)}, unk_token=_PAD))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    # Without a decoder tokens are joined with spaces between them.
    backend.decoder = Fuse()
    backend.add_tokens([AddedToken("\n", normalized=False)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token=_PAD, bos_token=_BOS, eos_token=_END, sep_token=_SEP,
        clean_up_tokenization_spaces=False,
    )  # fmt: skip
    fast.chat_template = _TEMPLATE
    return fast


def write_parquet(rows: list[dict[str, Any]], path: Path) -> None:
    """The prompts in the columns that verl's data set has."""
    import pandas

    pandas.DataFrame(
        [
            {
                "data_source": "bench",
                "prompt": row["prompt"],
                "ability": "none",
                "reward_model": {"style": "rule", "ground_truth": row["answer"]},
                "extra_info": {"index": index},
            }
            for index, row in enumerate(rows)
        ]
    ).to_parquet(path)
