"""The most memory that a trainer's pass over one sample takes, forward and backward, and what of it each part
of a step's speed gains or costs.

Counted tensor by tensor, of tensors that have shapes and no numbers, so that a CPU counts what a GPU would
hold: layers that are not compiled, in bfloat16, with weights, gradients and moments in float32, sharded over
one rank. Left out are what kernels need for themselves and what an allocator loses between its blocks.

    python -m tests.bench.step_memory
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily

from rljob_runtime.trainer import sharding
from rljob_runtime.trainer.attention import ATTENTION, register_attention
from rljob_runtime.trainer.hdp_weights import HeldWeights
from rljob_runtime.trainer.packing import pack
from rljob_runtime.trainer.policy import Policy
from rljob_runtime.trainer.rectangles import Rectangles
from rljob_runtime.trainer.sampling_distribution import Distribution
from rljob_runtime.trainer.varlen import Varlen
from tests.bench.figures import Figure, parser, record
from tests.bench.logits_memory import Peak
from tests.bench.trainer_step import CHUNK_MIB, without
from tests.bench.trainer_step_shapes import SHAPES, Shape

CPU = torch.device("cpu")
PROMPT = 128
VARIANTS: dict[str, tuple[frozenset[str], int | None]] = {
    "base": (frozenset(), None),
    "only-attention": (frozenset({"attention"}), None),
    "only-hold": (frozenset({"hold"}), None),
    "only-logits": (frozenset({"logits"}), None),
    "only-logits, logitsMiB 1024": (frozenset({"logits"}), 1024),
    "all": (frozenset({"attention", "hold", "logits"}), None),
    "all, logitsMiB 1024": (frozenset({"attention", "hold", "logits"}), 1024),
}
"""The gains of `trainer_step.py` that are on, of those that matter for memory, and `logitsMiB` where it is
not the shape's."""


@contextmanager
def one_rank() -> Iterator[None]:
    """A group of one process that sends nothing, for FSDP."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=1, store=FakeStore())
    module: Any = sharding
    plain = module.init_device_mesh

    def mesh(*given: Any, **options: Any) -> Any:
        # A mesh reads its own numbers.
        with unset_fake_temporarily():
            return plain(*given, **options)

    module.init_device_mesh = mesh
    try:
        yield
    finally:
        module.init_device_mesh = plain
        dist.destroy_process_group()


def policy_of(shape: Shape, logits: int) -> Policy:
    """A policy of the shape on one rank."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        "qwen3", vocab_size=shape.vocabulary, hidden_size=shape.hidden, intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.shared,
        head_dim=shape.head, max_position_embeddings=1048576, tie_word_embeddings=True,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=ATTENTION)
    policy = Policy(model, Distribution())
    policy.tune(logits, compiled=False)
    model.eval()
    return sharding.shard(policy, CPU, torch.bfloat16)


def counted(shape: Shape, on: frozenset[str], logits_mib: int | None, tokens: int) -> tuple[float, float]:
    """GiB of weights and moments, and of all there is at most."""
    mib = (logits_mib or shape.logits_mib) if "logits" in on else CHUNK_MIB
    # Of what `without` takes away, the rest does not matter here.
    with without(on | {"marks", "ahead", "fused"}), FakeTensorMode(allow_non_fake_inputs=True):
        policy = policy_of(shape, mib * 2**20 // 2)
        # Weights and AdamW's two moments, in float32.
        state = 3 * 4 * sum(each.numel() for each in policy.parameters())
        peak = Peak()
        with peak:
            if "hold" in on:
                held = HeldWeights(policy)
                held.gather()
                held.expect_backward(last=True)
            lay_out = Varlen.of if "attention" in on else Rectangles.of
            sample = np.zeros(PROMPT, np.int32), np.zeros(tokens - PROMPT, np.int32)
            packed = pack([sample[0]], [sample[1]], CPU, lay_out)
            policy(packed, "none" if "entropy" in on else "value").log_probs.sum().backward()
    return state / 2**30, (state + peak.most) / 2**30


def main() -> None:
    line: argparse.ArgumentParser = parser(__doc__)
    line.add_argument("--shape", choices=SHAPES, default="1.7b")
    line.add_argument("--tokens", type=int, default=34_816, help="of the sample")
    options = line.parse_args()
    register_attention()
    measure(SHAPES[options.shape], options.shape, options.tokens, options.out)


def measure(shape: Shape, name: str, tokens: int, out: Path) -> None:
    """Record the rows of all variants."""
    figures: list[Figure] = []
    base: float | None = None
    with one_rank():
        for variant, (on, logits_mib) in VARIANTS.items():
            what = f"{name}, a sample of {tokens:,} tokens, {variant}"
            state, most = counted(shape, on, logits_mib, tokens)
            base = most if base is None else base
            if not figures:
                figures.append(Figure(f"{name}, weights and moments", state, "GiB"))
            figures.append(Figure(what, most, "GiB", base))
    record("step_memory", figures, out)


if __name__ == "__main__":
    main()
