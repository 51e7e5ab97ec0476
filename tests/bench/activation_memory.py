"""What a layer keeps of each token between forward and backward pass, by `model.activationCheckpointing`.

Layers of the width of Qwen3-1.7B, and a mixture of 16 experts of which each token has 8, in bfloat16, with
random weights. The same samples go through models of two and of three layers; the difference is a layer's.
Without an accelerator, what is alive is counted tensor by tensor; with one its allocator tells, and the time
of a forward and backward pass of a layer is measured as well.

    python -m tests.bench.activation_memory
    python -m tests.bench.activation_memory --compiled      on a GPU: with compiled layers beside it
"""

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from rljob_runtime.trainer.model import load_policy
from rljob_runtime.trainer.packing import Packed, pack
from rljob_runtime.trainer.rectangles import Rectangles
from rljob_runtime.trainer.sampling_distribution import Distribution
from rljob_runtime.trainer.varlen import Varlen
from tests.bench.figures import Figure, parser, record
from tests.support.runtime.live_memory import Made

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
SAMPLES, LENGTH = (16, 1024) if CUDA else (2, 128)
VOCABULARY = 1024
REPEATS = 5
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 2048,
}
EXPERTS = {
    "num_experts": 16,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": ("qwen3", SHAPE),
    "experts": ("qwen3_moe", SHAPE | EXPERTS),
}
WAYS: dict[str, dict[str, Any]] = {
    "none": {"recomputed": "none"},
    "selective": {"recomputed": "selective"},
    "full": {"recomputed": "full"},
    "full, in main memory": {"recomputed": "full", "offload_activations": True},
}
COMPILED = {", compiled": False, ", compiled, attention apart": True}
"""How the names of ways end whose layers are compiled, and whether attention stays outside of that, as where
ranks share samples."""


def samples() -> Packed:
    """Responses of one length to prompts of one token."""
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, VOCABULARY, (SAMPLES, LENGTH)).astype(np.int32)
    # Laid out as a job does it on such a device.
    lay_out = Varlen.of if CUDA else Rectangles.of
    return pack([each[:1] for each in drawn], [each[1:] for each in drawn], DEVICE, lay_out)


def measure(folder: Path, way: dict[str, Any], apart: bool | None) -> tuple[float, float]:
    """Bytes alive between forward and backward pass, and seconds of both; `apart`: whether attention stays
    outside of what is compiled, None: nothing is compiled."""
    policy = load_policy(folder, Distribution(), torch.bfloat16, **way).to(DEVICE)
    if apart is not None:
        # Of one function torch keeps a few forms, after which it compiles none.
        torch._dynamo.reset()
        policy.tune(2**27, compiled=True, shared=apart)
    packed = samples()
    if not CUDA:
        with Made() as made:
            log_probs, _ = policy(packed)
        return made.alive(), 0.0
    seconds, alive = [], 0
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        before, began = torch.cuda.memory_allocated(), time.perf_counter()
        log_probs, _ = policy(packed)
        alive = torch.cuda.memory_allocated() - before
        log_probs.sum().backward()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
        policy.zero_grad(set_to_none=True)
    return alive, min(seconds)


def figures(compiled: bool) -> list[Figure]:
    """`compiled`: of compiled layers too."""
    found = []
    chosen: dict[str, tuple[dict[str, Any], bool | None]] = {
        way: (options, None) for way, options in WAYS.items()
    }
    for ending, outside in COMPILED.items() if compiled else ():
        chosen |= {way + ending: (options, outside) for way, options in WAYS.items()}
    for name, (family, shape) in MODELS.items():
        with tempfile.TemporaryDirectory() as root:
            for layers in (2, 3):
                config = transformers.AutoConfig.for_model(family, **shape, num_hidden_layers=layers)
                model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
                model.save_pretrained(Path(root) / str(layers))
            base = (0.0, 0.0)
            for way, (options, apart) in chosen.items():
                # A mixture of experts is compiled where it is asked for alone.
                fused = apart is not None
                if (options.get("offload_activations") and not CUDA) or (fused and name == "experts"):
                    continue
                two, three = (measure(Path(root) / layers, options, apart) for layers in ("2", "3"))
                bytes_each = (three[0] - two[0]) / (SAMPLES * LENGTH)
                seconds = three[1] - two[1]
                base = base if way != "none" else (bytes_each, seconds)
                found.append(Figure(f"{name}, {way}: kept", bytes_each, "bytes / token", base[0]))
                if CUDA:
                    found.append(
                        Figure(f"{name}, {way}: pass of a layer", 1e3 * seconds, "ms", 1e3 * base[1])
                    )
    return found


if __name__ == "__main__":
    line = parser(__doc__)
    line.add_argument("--compiled", action="store_true", help="layers that are compiled, too")
    given = line.parse_args()
    if given.compiled and not CUDA:
        # What compiled code makes is not counted tensor by tensor.
        line.error("--compiled: on a GPU alone, whose allocator tells")
    record("activation_memory_cuda" if CUDA else "activation_memory", figures(given.compiled), given.out)
