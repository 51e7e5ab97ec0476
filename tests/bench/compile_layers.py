"""How long a trainer's first pass takes, in which layers are compiled, and the second one.

One rank that computes in bfloat16 with weights in float32, which FSDP holds, as a rank's on GPUs; each way in
a process of its own with empty caches. Layers are compiled for the head size that they have, as in a job; the
baseline is what torch does by itself with weights that FSDP holds: it compiles them for any.

    python -m tests.bench.compile_layers
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch
import torch.distributed as dist
from transformers import AutoConfig, AutoModelForCausalLM

from rljob_runtime.trainer.attention import ATTENTION, register_attention
from rljob_runtime.trainer.packing import pack
from rljob_runtime.trainer.policy import Policy
from rljob_runtime.trainer.sampling_distribution import Distribution
from rljob_runtime.trainer.sharding import shard
from tests.bench.figures import Figure, parser, record

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SHAPE = {
    "vocab_size": 2048, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "tie_word_embeddings": True,
}  # fmt: skip
SAMPLES, LENGTH = 8, 96
LIMIT_S = 900


def passes(fixed: bool) -> list[float]:
    """Seconds of two passes, forward and backward. `fixed`: as a job has it."""
    register_attention()
    backend = "nccl" if DEVICE.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    config = AutoConfig.for_model("qwen3", **SHAPE)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=ATTENTION)
    policy = Policy(model, Distribution())
    policy.tune(2**26, compiled=True)
    torch._dynamo.config.skip_fsdp_guards = not fixed
    policy = shard(policy, DEVICE, torch.bfloat16)
    drawn = np.random.default_rng(0).integers(0, SHAPE["vocab_size"], (SAMPLES, LENGTH)).astype(np.int32)
    packed = pack([each[:32] for each in drawn], [each[32:] for each in drawn], DEVICE)
    found = []
    for _ in range(2):
        began = time.perf_counter()
        policy(packed)[0].sum().backward()
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()
        found.append(time.perf_counter() - began)
    dist.destroy_process_group()
    return found


def in_a_process(way: str) -> list[float]:
    """The same in a process whose caches are empty."""
    with tempfile.TemporaryDirectory() as caches:
        empty = {"TORCHINDUCTOR_CACHE_DIR": f"{caches}/torch", "TRITON_CACHE_DIR": f"{caches}/triton"}
        command = [sys.executable, "-m", "tests.bench.compile_layers", "--one", way]
        done = subprocess.run(
            command, env={**os.environ, **empty}, stdout=subprocess.PIPE, check=True, timeout=LIMIT_S
        )
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    line: argparse.ArgumentParser = parser(__doc__)
    line.add_argument("--repeats", type=int, default=3, help="of each way, in turns")
    line.add_argument("--one", choices=("fixed", "open"), help=argparse.SUPPRESS)
    given = line.parse_args()
    if given.one:
        print(json.dumps(passes(given.one == "fixed")))
        return
    file = "compile_layers_cuda" if DEVICE.type == "cuda" else "compile_layers"
    record(file, measure(given.repeats), given.out)


def measure(repeats: int) -> list[Figure]:
    """The rows, medians."""
    runs: dict[str, list[list[float]]] = {"fixed": [], "open": []}
    for _ in range(repeats):
        for way, found in runs.items():
            found.append(in_a_process(way))
    fixed, base = (np.median(runs[way], axis=0).tolist() for way in ("fixed", "open"))
    return [
        Figure(f"two layers: the {name} pass", *given)
        for name, given in zip(("first", "second"), zip(fixed, ("s", "s"), base, strict=True), strict=True)
    ]


if __name__ == "__main__":
    main()
