"""Which models a trainer's ranks can train: what the estimate of their memory says, and a step of each.

Random weights of Qwen3's shapes, layers' inputs alone kept (`activationCheckpointing: full`), 16 samples of
512 tokens. The estimate (`rljob_runtime.manifest.trainer_memory`) counts weights, gradients, moments, and
what a step holds beside them, but no activations and no logits: the measured memory, of the fullest rank, is
above it. With weights and optimizer states in main memory (`parallel.cpuOffload`, on GPUs) the estimate is of
what is left on the device.

    python -m tests.bench.largest_model --ranks 2 --shapes 4b 8b       on GPUs
    python -m tests.bench.largest_model --ranks 2 --shapes tiny        on CPUs
"""

import argparse
import json
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rljob_api import RLJob
from rljob_runtime.manifest.trainer_memory import ModelSize, state_bytes
from tests.bench.figures import RESULTS, Figure, record
from tests.bench.hdp_step import SHAPES, Task, job, say, train, write_model
from tests.bench.rank_pool import RankPool

_LIMIT_SECONDS = 600.0
"""For a try."""
_TOO_LARGE = "OutOfMemoryError", "exit code -9"
"""What is told of a rank that found no memory on its device, or was killed for that of its machine."""
ON_DEVICE = "on the device"
WAYS: dict[str, dict[str, Any]] = {
    ON_DEVICE: {},
    "on the device, bfloat16 moments": {"optimizer": {"stateFormat": "bfloat16"}},
    "in main memory": {"parallel": {"cpuOffload": True}},
}


def parameters(shape: str) -> int:
    """Of a model of the shape, with tied embeddings."""
    sizes = SHAPES[shape]
    hidden, inner, head = sizes["hidden_size"], sizes["intermediate_size"], sizes["head_dim"]
    query, shared = sizes["num_attention_heads"] * head, sizes["num_key_value_heads"] * head
    layer = 2 * hidden * query + 2 * hidden * shared + 3 * hidden * inner + 2 * hidden + 2 * head
    return sizes["vocab_size"] * hidden + sizes["num_hidden_layers"] * layer + hidden


def described(options: argparse.Namespace, way: str) -> RLJob:
    """The job of a way, in which ranks share no samples."""
    plain = job(options, {"none": {}}, 512).model_dump(mode="json", by_alias=True, exclude_none=True)
    training = plain["spec"]["training"]
    for part, fields in WAYS[way].items():
        training[part] = training.get(part, {}) | fields
    return RLJob.model_validate(plain)


def attempt(pool: RankPool, options: argparse.Namespace, model: Path, way: str) -> list[Figure]:
    """One step, beside the estimate."""
    made = described(options, way)
    state = state_bytes(made, ModelSize(parameters(options.shape)))
    what = f"{options.shape}, {options.ranks} ranks, {way}"
    task = Task(
        options,
        made.model_dump_json(by_alias=True, exclude_none=True),
        model,
        False,
        [512] * 16,
        options.until,
        options.steps,
    )
    start = time.monotonic()
    found = pool.run(_LIMIT_SECONDS, train, task)
    say("  after", round(time.monotonic() - start, 1), "s")
    figures = [Figure(f"{what}: trains (1) or not (0)", int(not isinstance(found, str)), "")]
    if isinstance(found, str):
        say(found)
        if not any(sign in found for sign in _TOO_LARGE):
            return []
        return [*figures, Figure(f"{what}: state by the estimate", state.on_device / 2**30, "GiB")]
    memory = max(row["memory"] for rows in found for row in rows)
    which = "a step" if options.steps == 1 else f"step {options.steps}"
    return [
        *figures,
        Figure(f"{what}: memory of the fullest rank", memory, "GiB", state.on_device / 2**30),
        Figure(f"{what}: {which} of 8,192 tokens", found[0][-1]["seconds"], "s"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["8b"])
    parser.add_argument("--ways", nargs="+", choices=WAYS, help="default: all that there are")
    parser.add_argument("--steps", type=int, default=1, help="the first makes the optimizer's states, too")
    parser.add_argument("--seconds", type=float, default=3600.0, help="nothing is begun later than this")
    parser.add_argument("--file", default="largest_model", help="of the results")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    options = parser.parse_args()
    import torch

    # Ends the ranks, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    options.until = time.time() + options.seconds
    options.gpu = torch.cuda.is_available()
    options.samples, options.cap, options.compute = 16, 4096, json.dumps({"compile": False})
    options.model = json.dumps({"activationCheckpointing": "full"})
    pool = RankPool(options.ranks)
    try:
        for shape in options.shapes:
            options.shape = shape
            with tempfile.TemporaryDirectory() as folder:
                model = Path(folder) / "model"
                if time.time() < options.until:
                    write_model(options, model)
                for way in options.ways or (WAYS if options.gpu else [ON_DEVICE]):
                    if time.time() > options.until:
                        say("no time for", shape, way)
                        continue
                    say(shape, way)
                    record(options.file, attempt(pool, options, model, way), options.out, keep=True)
    finally:
        pool.close()


if __name__ == "__main__":
    main()
