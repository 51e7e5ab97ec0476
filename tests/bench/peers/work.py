"""The work that every contender does: one model, the same prompts, and a length for each response.

Guarantees that the same `Work` gives the same prompts and lengths on every machine. Random weights serve:
every response is as long as told, so that what is generated does not matter for the time it takes.
"""

import json
import multiprocessing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rljob_runtime.data.length_trace import FORMAT

SAMPLES = 8
"""Responses to a prompt."""
MODEL, PROMPTS, LENGTHS, PARQUET = "model", "prompts.jsonl", "lengths.jsonl", "prompts.parquet"
"""Names in the folder of the work: of a Hugging Face model with its tokenizer, of our prompts and lengths, of
verl's prompts."""
_SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
_SEED = 11
_WRITING_SECONDS = 600.0
"""Longest that model and prompts take to be written."""


@dataclass(frozen=True)
class Work:
    """How much of it there is."""

    shape: Mapping[str, int]
    """Sizes of a Qwen3 model, as its configuration names them."""
    vocabulary: int
    prompts: int
    """Of a step."""
    steps: int
    prompt_tokens: tuple[int, int]
    """The fewest, and one above the most."""
    median: float
    """Of the lengths of responses, in tokens."""
    longest: int
    """At most so many tokens are a response."""

    @property
    def rows(self) -> int:
        """Prompts that are prepared: a contender may have begun more than it trains."""
        return self.prompts * (self.steps + 8)

    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each response, (rows, SAMPLES): lognormal with sigma 0.9, so that at a median of 220 and
        1,024 at most about 4 of 100 responses reach the limit."""
        drawn = np.random.default_rng(_SEED).lognormal(np.log(self.median), 0.9, (self.rows, SAMPLES))
        return np.clip(drawn, min(16, self.median), self.longest).astype(np.int64)

    def texts(self) -> list[str]:
        """The prompts. No two are the same, so that no prefix cache helps."""
        rng = np.random.default_rng(_SEED + 1)
        words = self.vocabulary - len(_SPECIAL) - 1
        return [
            " ".join(
                f"t{word}"
                for word in (row % words, *rng.integers(0, words, rng.integers(*self.prompt_tokens)))
            )
            for row in range(self.rows)
        ]


SMALL = Work(
    {
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32,
    },
    vocabulary=512, prompts=4, steps=4, prompt_tokens=(8, 16), median=12, longest=32,
)  # fmt: skip
"""For CPUs, where it shows that all of it runs."""
LARGE = Work(
    {
        "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 128,
    },
    vocabulary=151936, prompts=64, steps=12, prompt_tokens=(64, 192), median=220, longest=1024,
)  # fmt: skip
"""Qwen3-0.6B's shape, 64 prompts x 8 responses a step."""


def prepare(work: Work, folder: Path) -> None:
    """Write everything into a folder that is there. In a process of its own, so that nothing of the model
    stays on a GPU that the contenders are to have."""
    writing = multiprocessing.get_context("spawn").Process(target=_write, args=(work, folder))
    writing.start()
    writing.join(_WRITING_SECONDS)
    if writing.exitcode != 0:
        writing.kill()
        raise SystemExit(f"the work was not written: exit code {writing.exitcode} (None: not in time)")


def _write(work: Work, folder: Path) -> None:
    write_model(work, folder / MODEL)
    texts, lengths = work.texts(), work.lengths()
    rows = [{"prompt": text, "answer": str(row)} for row, text in enumerate(texts)]
    (folder / PROMPTS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    header = {"format": FORMAT, "samples_per_prompt": SAMPLES, "max_response_tokens": work.longest}
    lines = [
        {"uid": uid, "index": index, "response_tokens": int(tokens)}
        for (uid, index), tokens in np.ndenumerate(lengths)
    ]
    (folder / LENGTHS).write_text("".join(json.dumps(line) + "\n" for line in (header, *lines)))
    write_parquet(texts, folder / PARQUET)


def write_model(work: Work, folder: Path) -> None:
    """A random model and a tokenizer whose words are its tokens."""
    import torch
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    words = work.vocabulary - len(_SPECIAL) - 1
    names = [*(f"t{word}" for word in range(words)), "\n", *_SPECIAL]
    tokenizer = Tokenizer(models.WordLevel({name: at for at, name in enumerate(names)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    # verl asks every tokenizer of Qwen's family for a token of its own for a new line.
    tokenizer.add_tokens([AddedToken("\n", normalized=False)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", unk_token="<unk>"
    )
    fast.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    pad, bos, eos, _ = (work.vocabulary - len(_SPECIAL) + at for at in range(len(_SPECIAL)))
    config = AutoConfig.for_model(
        "qwen3", vocab_size=work.vocabulary, max_position_embeddings=4096, tie_word_embeddings=True,
        pad_token_id=pad, bos_token_id=bos, eos_token_id=eos, **work.shape,
    )  # fmt: skip
    torch.manual_seed(_SEED)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.to("cpu", torch.bfloat16).save_pretrained(folder)
    fast.save_pretrained(folder)


def write_parquet(texts: list[str], path: Path) -> None:
    """The prompts in the columns that verl's data set has."""
    import pandas

    rows: list[dict[str, Any]] = [
        {
            "data_source": "bench",
            "prompt": [{"role": "user", "content": text}],
            "ability": "none",
            "reward_model": {"style": "rule", "ground_truth": str(row)},
            "extra_info": {"index": row},
        }
        for row, text in enumerate(texts)
    ]
    pandas.DataFrame(rows).to_parquet(path)
