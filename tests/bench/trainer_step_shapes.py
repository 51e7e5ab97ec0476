"""What `tests/bench/trainer_step.py` trains: models, lengths, and the arithmetic of a step."""

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rljob_runtime.samples import Group, Sample, Span


@dataclass(frozen=True)
class Shape:
    """A model and the step it is trained with."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    shared: int
    head: int
    vocabulary: int
    groups: int
    samples: int
    lengths: Callable[[np.random.Generator, int], Any]
    """Draws so many lengths of responses."""
    prompt: tuple[int, int]
    """Shortest, and one above the longest."""
    micro_batch: int
    logits_mib: int


def _heavy_tailed(rng: np.random.Generator, count: int) -> Any:
    """Median 218, mean about 300, at most 1,024."""
    return np.clip(np.exp(rng.normal(np.log(218), 0.83, count)), 8, 1024).astype(int)


SHAPES = {
    "tiny": Shape(64, 192, 2, 4, 2, 32, 2000, 4, 4, lambda rng, n: rng.integers(8, 60, n), (8, 24), 512, 1),
    "0.6b": Shape(1024, 3072, 28, 16, 8, 128, 151936, 64, 8, _heavy_tailed, (64, 192), 16384, 6144),
    "1.7b": Shape(
        2048, 6144, 28, 16, 8, 128, 151936, 4, 4, lambda rng, n: np.full(n, 3968), (128, 129), 16384, 6144
    ),
}


def arithmetic(shape: Shape, groups: Sequence[Group]) -> float:
    """Floating-point operations that a step needs."""
    width = shape.heads * shape.head
    layer = 2 * shape.hidden * width + 2 * shape.hidden * shape.shared * shape.head
    layer += 3 * shape.hidden * shape.intermediate
    responses = [len(sample.tokens) for group in groups for sample in group.samples]
    lengths = [len(group.prompt) + len(sample.tokens) for group in groups for sample in group.samples]
    attention = 6 * shape.layers * width * sum(length * length for length in lengths)
    weights = 6 * layer * shape.layers * sum(lengths)
    return weights + 6 * shape.hidden * shape.vocabulary * sum(responses) + attention


def make_groups(shape: Shape, step: int) -> list[Group]:
    """A step's groups, drawn with the weights of version `step`."""
    rng = np.random.default_rng([7, step])
    made = []
    for uid in range(shape.groups):
        samples = tuple(
            Sample(
                tokens=rng.integers(0, shape.vocabulary, length).astype(np.int32),
                log_probs=np.full(length, -np.log(shape.vocabulary), np.float32),
                spans=(Span(step, 0, int(length)),),
                finish="length",
                reward=float(rng.random()),
            )
            for length in shape.lengths(rng, shape.samples)
        )
        prompt = rng.integers(0, shape.vocabulary, int(rng.integers(*shape.prompt))).astype(np.int32)
        made.append(Group(uid, 0, uid, prompt, samples, step))
    return made


def write_model(shape: Shape, folder: Path) -> None:
    """A random model of the shape, in bfloat16, made on the device."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        "qwen3", vocab_size=shape.vocabulary, hidden_size=shape.hidden, intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.shared,
        head_dim=shape.head, max_position_embeddings=1048576, tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    del model
    free()


def free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
