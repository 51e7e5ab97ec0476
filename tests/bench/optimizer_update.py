"""What an AdamW update of states in main memory takes on CPUs, by how its arithmetic is done.

A model of Qwen3's widths in float32, sharded as with `parallel.cpuOffload` (here on one rank without an
accelerator); what its weights and gradients are does not matter here. The ways take turns with one and the
same state, whose form they share: torch's loop, which is its default on CPUs, with a pass over memory for
each operation; the same over lists of tensors; and the fused kernel, which the trainer takes. Clipping is the
same for all, and stands beside.

    python -m tests.bench.optimizer_update --layers 10
"""

import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

from rljob_api.algorithm import Optimizer
from rljob_runtime.trainer.optim import ScheduledAdamW
from rljob_runtime.trainer.policy import Policy
from rljob_runtime.trainer.sampling_distribution import Distribution
from rljob_runtime.trainer.sharding import Sharding, shard
from tests.bench.figures import Figure, parser, record

LOOP = "loop"
WAYS: dict[str, dict[str, bool]] = {
    LOOP: {"foreach": False, "fused": False},
    "lists of tensors": {"foreach": True, "fused": False},
    "fused": {"foreach": False, "fused": True},
}


def sharded_policy(layers: int, vocabulary: int) -> Policy:
    """On the process group's ranks, in main memory."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        "qwen3", vocab_size=vocabulary, hidden_size=1024, intermediate_size=3072, num_hidden_layers=layers,
        num_attention_heads=16, num_key_value_heads=8, head_dim=128, tie_word_embeddings=True,
    )  # fmt: skip
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.to_empty(device="cpu")
    model.tie_weights()
    for parameter in model.parameters():
        parameter.data.fill_(0.02)
    policy = Policy(model, Distribution())
    return shard(policy, torch.device("cpu"), torch.bfloat16, Sharding(in_main_memory=True))


def measure(layers: int, vocabulary: int, rounds: int) -> tuple[int, dict[str, list[float]]]:
    """How many parameters there are, and seconds of each update, by way."""
    policy = sharded_policy(layers, vocabulary)
    parameters = list(policy.parameters())
    optimizer = ScheduledAdamW(parameters, Optimizer(learning_rate=1e-6), None)
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 1e-3)
    seconds: dict[str, list[float]] = {way: [] for way in (*WAYS, "clipping")}
    # The first update makes the moments.
    for turn in range(rounds + 1):
        for way, how in WAYS.items():
            for group in optimizer.adamw.param_groups:
                group.update(how)
            began = time.perf_counter()
            optimizer.adamw.step()
            if turn:
                seconds[way].append(time.perf_counter() - began)
                print(turn, way, round(seconds[way][-1], 3), flush=True)
        began = time.perf_counter()
        optimizer.clip()
        if turn:
            seconds["clipping"].append(time.perf_counter() - began)
    return sum(each.numel() for each in parameters), seconds


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--layers", type=int, default=10, help="of 15.7 million parameters each")
    made.add_argument("--vocabulary", type=int, default=151_936, help="tokens; of 1,024 parameters each")
    made.add_argument("--rounds", type=int, default=5, help="updates of each way that are counted")
    options = made.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group(
            "gloo", store=dist.FileStore(str(Path(folder) / "ranks"), 1), rank=0, world_size=1
        )
        count, seconds = measure(options.layers, options.vocabulary, options.rounds)
        dist.destroy_process_group()
    medians = {way: statistics.median(found) for way, found in seconds.items()}
    what = f"{count / 1e9:.2g} B parameters, {torch.get_num_threads()} threads"
    figures = [Figure(f"{what}: {way}", medians[way], "s", medians[LOOP]) for way in WAYS]
    figures.append(Figure(f"{what}: clipping, beside each of them", medians["clipping"], "s"))
    record("optimizer_update", figures, options.out)


if __name__ == "__main__":
    main()
