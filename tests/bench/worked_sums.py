"""A task whose responses are worked out step by step: some tens to hundreds of tokens, of very different
lengths to the same prompt. For benchmarks that need texts of a trained model.

A prompt is a row of digits, each after its letter: `A7B2C5D9`. A response adds them up without carrying, one
step for each, and may check a step as often as it likes:

    Aa0+7=7Bb7+2=9wB9-2=7wB7+2=9Ca5+9=4Da4+9=3#3

The small letter after the large one stands for how the step is put into words, and `w` for "wait". How often
it checks is drawn anew for each response, so that some are brief and some go on and on, as those of models
that reason are. `base_model` learns such texts from examples, one step in eight of which has a wrong result;
the rest is left to a job with the reward below: the share of steps that are there and right.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from rljob_runtime.rewards import RewardInput

LETTERS = "ABCDEFGHIJ"
WORDS = "abcd"
ALPHABET = f"{WORDS}w0123456789+-=#{LETTERS}"
FEWEST, MOST = 4, 8
"""Digits of a prompt."""
LONGEST = 320
"""Most tokens of a response."""
MODEL, PROMPTS = "base", "prompts.jsonl"
BATCH = 32
"""Examples of a step of `base_model`."""
_WRONG = 0.12
_CHECKS = (0.1, 0.6, 0.85), (0.5, 0.35, 0.15)
"""Chances of one more check after a step or a check, and how frequent responses with each are."""
_WORD_SHARES = (0.5, 0.25, 0.15, 0.1)
_PAD, _BOS, EOS, _SEP, _FIRST = 0, 1, 2, 3, 4
"""Tokens of `CharacterTokenizer`."""
_STEP = re.compile(f"([{LETTERS}])[{WORDS}]([0-9])[+]([0-9])=([0-9])")


def prompt(random: np.random.Generator) -> str:
    digits = random.integers(0, 10, random.integers(FEWEST, MOST + 1))
    return "".join(f"{letter}{digit}" for letter, digit in zip(LETTERS, digits, strict=False))


def example(asked: str, random: np.random.Generator) -> str:
    """A response to learn from; not always right."""
    total, text = 0, ""
    again = random.choice(_CHECKS[0], p=_CHECKS[1])
    for letter, digit in zip(asked[::2], map(int, asked[1::2]), strict=True):
        result = int(random.integers(10)) if random.random() < _WRONG else (total + digit) % 10
        terms = (total, digit) if random.random() < 0.7 else (digit, total)
        text += f"{letter}{random.choice(list(WORDS), p=_WORD_SHARES)}{terms[0]}+{terms[1]}={result}"
        while random.random() < again:
            checks = (f"{result}-{digit}={total}", f"{total}+{digit}={result}", f"{digit}+{total}={result}")
            text += f"w{letter}{checks[random.integers(len(checks))]}"
        total = result
    return f"{text}#{total}"


def reward(sample: RewardInput) -> float:
    """`score` of a response, 0 for one that is cut off."""
    return score(sample.prompt, sample.response) if sample.finished else 0.0


def score(asked: str, response: str) -> float:
    """The share of steps that are in their places and go on rightly from the one before, the last line among
    them; steps too many count as wrong. Checks are not looked at."""
    steps, total, found = _STEP.findall(response), "0", 0
    for (letter, *terms, result), wanted, digit in zip(steps, asked[::2], asked[1::2], strict=False):
        right = letter == wanted and sorted(terms) == sorted((total, digit))
        found += right and int(result) == (int(total) + int(digit)) % 10
        total = result
    places = len(asked) // 2
    ends = len(steps) == places and response.endswith(f"#{total}")
    return (found + ends) / (max(places, len(steps)) + 1)


def tokens(text: str) -> list[int]:
    return [_FIRST + ALPHABET.index(letter) for letter in text]


def prompt_tokens(asked: str) -> np.ndarray:
    """As the job's tokenizer gives them to engines; shape (length,), int32."""
    return np.array([_BOS, *tokens(asked), _SEP], np.int32)


def text(response: np.ndarray) -> str:
    """Of tokens, shape (length,), without the one that ends them."""
    return "".join(ALPHABET[token - _FIRST] for token in response.tolist() if token >= _FIRST)


def base_model(folder: Path, steps: int) -> None:
    """Train a model of two layers on examples alone, and write it."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    # So small a model gains nothing from several threads.
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=_FIRST + len(ALPHABET), hidden_size=64, intermediate_size=192, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, max_position_embeddings=1024,
        tie_word_embeddings=False, eos_token_id=EOS, pad_token_id=_PAD, bos_token_id=_BOS,
    )  # fmt: skip
    model, random = Qwen3ForCausalLM(config), np.random.default_rng(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, total_iters=30)
    down = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=steps - 30)
    rate = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, down], [30])
    for step in range(steps):
        ids, labels = (torch.from_numpy(each) for each in _examples(random))
        optimizer.zero_grad()
        loss = model(input_ids=ids, attention_mask=(ids != _PAD).long(), labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rate.step()
        if step % 50 == 49:
            print(f"base, {step + 1} of {steps} steps: {loss.item():.3f} nats a token", flush=True)
    model.save_pretrained(folder)


def _examples(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of examples and what is learned of them, -100 elsewhere; each of shape (BATCH, longest)."""
    rows = []
    for _ in range(BATCH):
        asked = prompt(random)
        rows.append((prompt_tokens(asked), [*tokens(example(asked, random)), EOS][:LONGEST]))
    longest = max(len(before) + len(said) for before, said in rows)
    ids, labels = np.full((BATCH, longest), _PAD), np.full((BATCH, longest), -100)
    for row, (before, said) in enumerate(rows):
        ids[row, : len(before)] = before
        ids[row, len(before) : len(before) + len(said)] = said
        labels[row, len(before) : len(before) + len(said)] = said
    return ids, labels


def write_prompts(folder: Path, count: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    rows = [json.dumps({"prompt": prompt(random)}) for _ in range(count)]
    (folder / PROMPTS).write_text("\n".join(rows) + "\n")


def job(folder: Path, steps: int, every: int) -> dict[str, Any]:
    """The job that goes on from the base model in `folder`, with a checkpoint after `every` steps."""
    return {
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "worked-sums"},
        "spec": {
            "accelerator": "cpu",
            "pools": {"trainer": {"replicas": 1}, "fastRollout": {"replicas": 1}},
            "training": {
                "model": {"path": str(folder / MODEL)},
                "tokenizer": {"characters": {"alphabet": ALPHABET}},
                "data": {"jsonl": {"path": str(folder / PROMPTS)}, "maxPromptTokens": 2 * MOST + 2},
                "reward": {"function": f"{__name__}:reward"},
                "rollout": {
                    "engine": {"vllm": {"kvCacheGiB": 0.25}},
                    "samplesPerPrompt": 8,
                    "maxResponseTokens": LONGEST,
                },
                "algorithm": {"policyLoss": {"clip": {"low": 0.2, "high": 0.28}}},
                "optimizer": {"learningRate": 1e-3, "beta2": 0.95},
                "schedule": {"totalSteps": steps, "promptsPerBatch": 16},
                "async": {"maxStaleness": 1},
                "checkpoint": {"everySteps": every, "keep": steps},
            },
        },
    }
