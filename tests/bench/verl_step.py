"""A step of verl's trainer, measured as `tests/bench/trainer_step.py` measures ours: same random model, same
tokens and lengths from the same seeds, one optimizer update of the whole batch, the same count of arithmetic.

What runs is verl's own code, in this process and without Ray: `TrainingWorker.train_mini_batch`, which is all
that `update_actor` of its PPO and of its fully asynchronous trainer does, over its FSDP engine, with its PPO
loss. Padding is removed, micro-batches have as many tokens as ours, the model computes in bfloat16 and keeps
its weights in float32, and there is neither an entropy nor a KL term. Not timed, in verl's favour: the
advantages and the layout of the batch.

    python tests/bench/trainer_step.py --shape 1.7b --variants all --out OUT      first, for the comparison
    python tests/bench/verl_step.py --shape 1.7b --out OUT

Each variant is written as soon as it is measured, beside ours of the same shape if OUT has that:

- `held`: FSDP2; weights stay gathered, gradients are reduced once for an update, AdamW is one kernel;
- `liger`: that, and Liger's kernels in the layers;
- `triton`: as `held`, and verl's Triton kernel for log-probabilities without logits;
- `defaults`: FSDP1 with the values of verl's own configuration;
- `fsdp2`: the same with FSDP2.

All but `triton` use flash-attn's Triton cross-entropy where flash-attn is installed, as verl does. Where it
was installed without kernels, `peers/kernels` stands in for them. Without kernels that work, attention is
torch's, with a mask, and the figure's name says so; so it does where the micro-batch had to be smaller for
the memory. Needs verl and what it imports; on a CPU, a platform plugin of verl for CPUs too
(VERL_USE_EXTERNAL_MODULES, VERL_PLATFORM, VERL_ENGINE_DEVICE).
"""

import argparse
import importlib
import importlib.metadata
import importlib.util
import json
import os
import socket
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[2] / "crds"))
sys.path.insert(0, str(Path(__file__).parents[2] / "runtime"))
from rljob_runtime.samples import Group
from tests.bench.trainer_step_shapes import SHAPES, Shape, free, make_groups, write_model
from tests.bench.trainer_step_timing import options_of, record_step, say, shapes_of, time_steps
from tests.bench.verl_step_rows import padded

FLASH = "flash_attention_2"
TORCH = "sdpa"
KERNELS = Path(__file__).parent / "peers" / "kernels"


@dataclass(frozen=True)
class Variant:
    """What of verl's configuration differs."""

    strategy: str
    held: bool
    """Weights are not freed after a forward pass, gradients are reduced once, AdamW is fused."""
    triton: bool = False
    """Log-probabilities by verl's fused kernel in Triton."""
    liger: bool = False
    """Norms, gated activations and rotations by Liger's kernels."""


VARIANTS = {
    "held": Variant("fsdp2", held=True),
    "liger": Variant("fsdp2", held=True, liger=True),
    "triton": Variant("fsdp2", held=True, triton=True),
    "defaults": Variant("fsdp", held=False),
    "fsdp2": Variant("fsdp2", held=False),
}


@dataclass(frozen=True)
class Attempt:
    """How a variant is run, for want of kernels or memory not always as wished."""

    attention: str
    micro_batch: int
    """Tokens."""

    def after(self, error: Exception, longest: int, proven: bool) -> "Attempt | None":
        """What is tried after `error`, if anything: half the micro-batch where memory ran out and the longest
        sample, of so many tokens, still fits; torch's attention after another error, unless flash-attn is
        proven by a step that it ran."""
        if isinstance(error, torch.OutOfMemoryError):
            half = self.micro_batch // 2
            return Attempt(self.attention, half) if half >= longest else None
        return Attempt(TORCH, self.micro_batch) if self.attention == FLASH and not proven else None

    def remark(self, wished: "Attempt") -> str:
        """What a figure's name has to say of it."""
        attention = "" if self.attention == FLASH else f", attention {self.attention}"
        smaller = self.micro_batch != wished.micro_batch
        return attention + (f", micro-batch {self.micro_batch}" if smaller else "")


def batch(groups: Sequence[Group]) -> Any:
    """What verl's trainers give `update_actor`: a TensorDict without padding."""
    from verl import DataProto
    from verl.utils import tensordict_utils
    from verl.workers.utils.padding import left_right_2_no_padding

    tensors = padded(groups)
    samples = len(tensors["prompts"])
    proto = DataProto.from_dict(tensors, meta_info={"multi_turn": False, "temperature": 1.0})
    data = left_right_2_no_padding(proto.to_tensordict())
    tensordict_utils.assign_non_tensor(
        data, calculate_entropy=False, distillation_use_topk=False, distillation_only=False,
        global_batch_size=samples, mini_batch_size=samples, epochs=1, seed=42,
        dataloader_kwargs={"shuffle": False}, compute_loss=True,
    )  # fmt: skip
    return data


@contextmanager
def worker(variant: Variant, attempt: Attempt, model: Path, options: argparse.Namespace) -> Iterator[Any]:
    """verl's only rank, set up."""
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import (
        FSDPActorConfig,
        FSDPEngineConfig,
        FSDPOptimizerConfig,
        HFModelConfig,
        TrainingWorkerConfig,
    )
    from verl.workers.engine_workers import TrainingWorker
    from verl.workers.utils.losses import ppo_loss

    described = HFModelConfig(
        path=str(model), load_tokenizer=False, use_remove_padding=True,
        enable_gradient_checkpointing=options.recompute, use_liger=variant.liger,
        use_fused_kernels=variant.triton,
        fused_kernel_options={"impl_backend": "triton" if variant.triton else "torch"},
        override_config={"attn_implementation": attempt.attention},
    )  # fmt: skip
    engine = FSDPEngineConfig(
        strategy=variant.strategy, use_dynamic_bsz=True, max_token_len_per_gpu=attempt.micro_batch,
        reshard_after_forward=not variant.held, use_no_sync_for_gradient_accumulation=variant.held,
    )  # fmt: skip
    optimizer = FSDPOptimizerConfig(
        lr=1e-6,
        total_training_steps=100,
        override_optimizer_config={"fused": True} if variant.held else None,
    )
    actor = FSDPActorConfig(
        strategy=variant.strategy, rollout_n=1, use_dynamic_bsz=True, optim=optimizer, fsdp_config=engine,
        ppo_max_token_len_per_gpu=attempt.micro_batch, entropy_coeff=0.0, use_remove_padding=True,
    )  # fmt: skip
    with unpatched():
        made = TrainingWorker(
            TrainingWorkerConfig(
                model_type="language_model", model_config=described, engine_config=engine,
                optimizer_config=optimizer, checkpoint_config=CheckpointConfig(),
            )
        )  # fmt: skip
        made.reset()
        made.set_loss_fn(partial(ppo_loss, config=actor))
        yield made


@contextmanager
def unpatched() -> Iterator[None]:
    """Put back, at the end, what verl's fused kernels and Liger's replace in the model's module for good."""
    from transformers.models.qwen3 import modeling_qwen3

    names = dict(vars(modeling_qwen3))
    classes: list[Any] = [
        each for each in names.values() if isinstance(each, type) and "forward" in vars(each)
    ]
    forwards = [(each, vars(each)["forward"]) for each in classes]
    try:
        yield
    finally:
        vars(modeling_qwen3).update(names)
        for each, forward in forwards:
            each.forward = forward


def measure(
    shape: Shape, variant: Variant, attempt: Attempt, model: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """The figures of a step, the fastest of some after those that warm up."""
    with worker(variant, attempt, model, options) as trainer:

        def train(step: int, data: Any) -> dict[str, Any]:
            metrics = trainer.train_mini_batch(data)["metrics"]
            return {"loss": _number(metrics["loss"]), "grad_norm": _number(metrics["grad_norm"])}

        return time_steps(shape, options, batch, train)


def _number(value: Any) -> float:
    """verl gives a list, of one number for each update."""
    return float(np.mean(value))


def attention() -> str:
    """`flash_attention_2` if flash-attn's kernels work here and are right, else torch's attention."""
    if not torch.cuda.is_available():
        return TORCH
    try:
        far = flash_difference()
    except Exception:  # noqa: BLE001
        # Whatever fails there, the step is measured with torch's attention, and named so.
        traceback.print_exc()
        return TORCH
    say(f"flash-attn: {far:.2g} of the largest number from plain attention")
    return FLASH if far < 0.02 else TORCH


def flash_difference() -> float:
    """How far outputs and gradients of flash-attn, for two samples of different lengths, are from torch's
    attention in float32, as a part of the largest number."""
    from flash_attn import flash_attn_varlen_func

    lengths, heads, shared, head = (100, 37), 4, 2, 128
    torch.manual_seed(0)
    shapes = [(sum(lengths), heads, head), (sum(lengths), shared, head), (sum(lengths), shared, head)]
    given = [torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for shape in shapes]
    plain = [tensor.detach().float().requires_grad_() for tensor in given]
    ends = torch.tensor([0, lengths[0], sum(lengths)], device="cuda", dtype=torch.int32)
    out = flash_attn_varlen_func(*given, ends, ends, max(lengths), max(lengths), causal=True)
    parts = []
    for query, key, value in zip(*(tensor.split(lengths) for tensor in plain), strict=True):  # type: ignore[no-untyped-call]
        query, key, value = (tensor.transpose(0, 1)[None] for tensor in (query, key, value))
        made = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=True
        )
        parts.append(made[0].transpose(0, 1))
    expected = torch.cat(parts)
    weight = torch.randn_like(expected)
    found = [out, *torch.autograd.grad(out, given, weight.to(out.dtype))]
    right = [expected, *torch.autograd.grad(expected, plain, weight)]
    return max(float((a.float() - b).abs().max() / b.abs().max()) for a, b in zip(found, right, strict=True))


def ours(rows: Sequence[Mapping[str, Any]], shape: str) -> dict[str, float]:
    """Our trainer's figures of the shape with all gains, by unit, from what `trainer_step.py` wrote."""
    name = f"trainer step, {shape}, all"
    return {row["unit"]: row["value"] for row in rows if row["name"].split(":")[0] == name}


def one_rank() -> None:
    """The environment of the only rank, as Ray or torchrun would set it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ |= {"WORLD_SIZE": "1", "RANK": "0", "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if not torch.cuda.is_available():
        # Kernels in Triton need a GPU.
        os.environ["VERL_DISABLE_FLASH_ATTN_CE"] = "1"


def offer_kernels() -> None:
    """Have flash-attn find the kernels that torch has, where it was installed without its own."""
    if importlib.util.find_spec("flash_attn_2_cuda") is None:
        sys.path.append(str(KERNELS))


def flash_entropy() -> bool:
    """Whether verl computes log-probabilities with flash-attn's cross-entropy."""
    from verl.utils.torch_functional import FLAH_ATTN_CROSS_ENTROPY_LOSS_AVAILABLE

    return FLAH_ATTN_CROSS_ENTROPY_LOSS_AVAILABLE and os.environ.get("VERL_DISABLE_FLASH_ATTN_CE") != "1"


def bench(name: str, model: Path, options: argparse.Namespace, until: float) -> None:
    """Measure the variants of one shape."""
    shape = SHAPES[name]
    write_model(shape, model)
    wished = Attempt(options.attention or attention(), options.micro_batch or shape.micro_batch)
    entropy = "flash-attn's" if flash_entropy() else "plain"
    release = f"verl {importlib.metadata.version('verl')}"
    steps = [make_groups(shape, step) for step in range(options.warm + options.steps)]
    longest = max(len(g.prompt) + len(s.tokens) for groups in steps for g in groups for s in g.samples)
    proven = False
    for label in options.variants or VARIANTS:
        if time.monotonic() > until:
            say("no time for", label)
            continue
        variant = VARIANTS[label]
        kernel = "verl's in Triton, without logits" if variant.triton else f"{entropy} cross-entropy"
        attempt: Attempt | None = wished
        while attempt is not None:
            say(
                f"{name}, {release} {label}: {variant}, {attempt}, no padding, log-probabilities: {kernel},",
                f"activations {'recomputed' if options.recompute else 'kept'}",
            )
            try:
                best = measure(shape, variant, attempt, model, options)
            except Exception as error:  # noqa: BLE001
                # Kernels or memory may be wanting; the other variants are worth their time in any case.
                traceback.print_exc()
                say(f"{name}, {label}: FAILED")
                attempt = attempt.after(error, longest, proven)
                continue
            finally:
                free()
            proven = proven or attempt.attention == FLASH
            what = f"trainer step, {name}, {release} {label}{attempt.remark(wished)}"
            what += "" if variant.triton or flash_entropy() else ", plain cross-entropy"
            write(what, name, best, options)
            break


def write(what: str, shape: str, best: Mapping[str, Any], options: argparse.Namespace) -> None:
    """Print and record a variant's figures; ours of the same machine are their baseline."""
    path = options.out / "trainer_step.json"
    against = ours(json.loads(path.read_text()), shape) if path.exists() else {}
    what += ", recomputed" if options.recompute else ""
    record_step(what, best, against, options)


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--variants", nargs="*", choices=VARIANTS, help="default: all, in this order")
    parser.add_argument("--attention", choices=(FLASH, TORCH), help="default: flash-attn's if it works")
    options = parser.parse_args()
    until = time.monotonic() + options.seconds
    one_rank()
    offer_kernels()
    # verl keeps errors of imports that failed, and they keep the calls that led there, with all they hold:
    # nothing here; inside `worker` it would be the weights of the first variant.
    importlib.import_module("verl.workers.engine_workers")
    try:
        for name, model in shapes_of(options):
            bench(name, model, options, until)
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
