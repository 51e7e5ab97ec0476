"""Does it learn? The copy example to its end with several seeds, and shorter runs of two more model families.

python -m tests.bench.learning
"""

import statistics
import tempfile
from pathlib import Path

from tests.bench.figures import Figure, parser, record
from tests.bench.real_runs import run_example

SEEDS = 3
SHORT_STEPS = 160
WINDOW = 10


def ends(rows: list[dict[str, float]]) -> tuple[float, float]:
    """Mean reward of the first and of the last steps."""
    rewards = [row["reward_mean"] for row in rows]
    return statistics.mean(rewards[:WINDOW]), statistics.mean(rewards[-WINDOW:])


def main() -> None:
    out = parser(__doc__).parse_args().out
    figures = []
    with tempfile.TemporaryDirectory() as scratch:
        runs = [run_example(Path(scratch) / f"qwen3-{seed}", {"seed": seed}) for seed in range(SEEDS)]
        name = f"copy, Qwen3-shaped, {len(runs[0])} steps, worst of {SEEDS} seeds"
        first, last = min((ends(rows) for rows in runs), key=lambda each: each[1])
        figures.append(Figure(f"{name}: mean reward of the last 10", last, "reward", goal="≥ 0.9"))
        figures.append(Figure(f"{name}: mean reward of the first 10", first, "reward"))
        for family in ("llama", "qwen2"):
            # Qwen2's heads are as wide as its residual stream divided by their number.
            shape = {"architecture": family, "hiddenSize": 128, "attentionHeads": 4, "headDim": 32}
            rows = run_example(
                Path(scratch) / family,
                {"model": {"random": shape}, "schedule": {"totalSteps": SHORT_STEPS, "promptsPerBatch": 32}},
            )
            first, last = ends(rows)
            name = f"copy, {family.capitalize()}-shaped, {SHORT_STEPS} steps: mean reward of the last 10"
            figures.append(Figure(name, last, "reward", goal="rises"))
            name = f"copy, {family.capitalize()}-shaped, {SHORT_STEPS} steps: mean reward of the first 10"
            figures.append(Figure(name, first, "reward"))
    record("learning", figures, out)


if __name__ == "__main__":
    main()
