"""Does an adapter learn? A model that has half learned the copy task with all its weights goes on with an
adapter alone (LoRA), through vLLM, as examples/lora does it. It is sampled at a low temperature: such a
model's head, which an adapter leaves as it is, has small logits, so that at 1.0 the right token is drawn in
less than half of the cases, whatever the layers before have learned.

    python -m tests.bench.learning_adapter --make /tmp/half        # the model: the copy example, 120 steps
    python -m tests.bench.learning_adapter --model /tmp/half/run/model
"""

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

import yaml

from rljob_runtime.trace.record.metrics_log import read_metrics
from tests.bench.figures import Figure, record
from tests.bench.real_runs import EXAMPLE, PLAIN, run_job

HALF_STEPS = 120
STEPS = 300
WINDOW = 10
WANTED = 0.9
RANK = 16
TEMPERATURE = 0.3


def half(folder: Path) -> None:
    """Train all weights until the task is half learned."""
    document = _document({"totalSteps": HALF_STEPS, "promptsPerBatch": 32})
    document["spec"]["training"]["rollout"]["engine"] = {"torch": {}}
    folder.mkdir(parents=True)
    run_job(folder, document, 840, "--no-live")


def adapted(model: Path, seed: int) -> list[dict[str, Any]]:
    """Train an adapter of the model; the metrics of its steps."""
    document = _document({"totalSteps": STEPS, "promptsPerBatch": 32})
    training = document["spec"]["training"]
    training["model"] = {"path": str(model.resolve())}
    training["adapter"] = {"rank": RANK, "alpha": 2 * RANK}
    training["rollout"] |= {"engine": {"vllm": {"kvCacheGiB": 0.1}}, "temperature": TEMPERATURE}
    training["seed"] = seed
    with tempfile.TemporaryDirectory() as scratch:
        return read_metrics(run_job(Path(scratch), document, 860, "--no-live") / "metrics.jsonl").rows


def _document(schedule: dict[str, int]) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    document["spec"]["pools"] = {"fastRollout": {"replicas": 1}}
    document["spec"]["training"] |= PLAIN | {"schedule": schedule}
    return document


def steps_to(rewards: list[float], wanted: float) -> int | None:
    """Steps after which the mean reward of the last `WINDOW` is at least this."""
    for step in range(WINDOW, len(rewards) + 1):
        if statistics.mean(rewards[step - WINDOW : step]) >= wanted:
            return step
    return None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--make", type=Path, metavar="FOLDER", help="make the model in this new folder")
    what.add_argument("--model", type=Path, metavar="FOLDER", help="train an adapter of this model")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.make is not None:
        half(options.make)
        return
    rewards = [float(row["reward_mean"]) for row in adapted(options.model, options.seed)]
    first, last = statistics.mean(rewards[:WINDOW]), statistics.mean(rewards[-WINDOW:])
    name = f"copy, adapter of rank {RANK}, seed {options.seed}"
    figures = [Figure(f"{name}: mean reward of the last {WINDOW} of {STEPS} steps", last, "reward", first)]
    if (steps := steps_to(rewards, WANTED)) is not None:
        figures.append(Figure(f"{name}: steps to a mean reward of {WANTED}", steps, "steps"))
    record("learning_adapter", figures, keep=True)


if __name__ == "__main__":
    main()
