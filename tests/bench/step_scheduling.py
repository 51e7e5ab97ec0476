"""What vLLM's engine core computes for a step besides running it: what is to be done, and what came of it.

It is done by one thread, which with hundreds of requests bounds an engine of a small model on a GPU. Here
vLLM's own asynchronous scheduler has so many requests that generate, one step under way, and tokens that are
made up; times are of its thread's CPU, the median of steps. Four of them, a step each in turns: vLLM's own,
which is the baseline; with outputs that are held back (`engines/vllm_scheduler`); with a KV cache manager
that is spared its layers too, and no scopes for a profiler (`engines/vllm_blocks`); and with plain tokens
that are taken in at once besides (`engines/vllm_plain_tokens`), as engines run.

    python -m tests.bench.step_scheduling
"""

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import vllm

from rljob_runtime.engines.vllm_blocks import Sparing
from rljob_runtime.engines.vllm_plain_steps import Continuing
from rljob_runtime.engines.vllm_scheduler import Holding
from tests.bench.figures import Figure, parser, record
from tests.support.runtime.tiny_models import tiny_model
from tests.support.runtime.vllm_schedulers import ByToken, Steps

KINDS: dict[str, tuple[type, ...]] = {
    "vLLM's own": (),
    "outputs held back": (ByToken,),
    "and blocks spared": (Sparing, ByToken),
    "and plain tokens": (Sparing, Holding),
    "as engines run": (Sparing, Continuing, Holding),
}
IN_FLIGHT = (512, 64)
ROUNDS, STEPS, SETTLING = 3, 160, 12
BLOCKS = 65_000
"""Of a KV cache; as many as an H200 has for Qwen3-0.6B."""
LONGEST = 480


def milliseconds(model: Path, requests: int) -> dict[str, list[float]]:
    """Of CPU for each step, by kind. They take a step each in turns: a machine gets slower and faster."""
    kinds = {name: _settled(model, parts, requests) for name, parts in KINDS.items()}
    found: dict[str, list[float]] = {name: [] for name in kinds}
    for number in range(STEPS):
        for name in list(kinds)[:: -1 if number % 2 else 1]:
            began = time.thread_time()
            kinds[name].step()
            found[name].append(1e3 * (time.thread_time() - began))
    return found


def _settled(model: Path, parts: tuple[type, ...], requests: int) -> Steps:
    """One whose requests all generate."""
    steps = Steps(model, parts, requests=requests, blocks=BLOCKS, tokens=16384, longest=LONGEST)
    random = np.random.default_rng(3)
    for number in range(requests):
        steps.add(f"r{number}", random.integers(0, 60, random.integers(64, 191)).tolist(), 256)
    for _ in range(SETTLING):
        steps.step()
    return steps


def measure(model: Path, requests: int) -> list[Figure]:
    found: dict[str, list[float]] = {name: [] for name in KINDS}
    for _ in range(ROUNDS):
        for name, times in milliseconds(model, requests).items():
            found[name] += times
    base = statistics.median(found["vLLM's own"])
    return [
        Figure(f"{requests} requests, {name}: a step's CPU", statistics.median(times), "ms", base)
        for name, times in found.items()
    ]


def main() -> None:
    options = parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = tiny_model(Path(folder) / "model", tied=True)
        figures = [figure for requests in IN_FLIGHT for figure in measure(model, requests)]
    print(f"vLLM {vllm.__version__}")
    record("step_scheduling", figures, options.out)


if __name__ == "__main__":
    main()
