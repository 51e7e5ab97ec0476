"""Do other model families learn? Short runs of the copy example with two of them. The example itself:
`tests.bench.learning_example`.

python -m tests.bench.learning
"""

import statistics
import tempfile
from pathlib import Path

from tests.bench.figures import Figure, parser, record
from tests.bench.real_runs import PLAIN, run_example

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
        for family in ("llama", "qwen2"):
            # Qwen2's heads are as wide as its residual stream divided by their number.
            shape = {"architecture": family, "hiddenSize": 128, "attentionHeads": 4, "headDim": 32}
            schedule = {"totalSteps": SHORT_STEPS, "promptsPerBatch": 32}
            training = PLAIN | {"model": {"random": shape}, "schedule": schedule}
            rows = run_example(Path(scratch) / family, training)
            first, last = ends(rows)
            name = f"copy, {family.capitalize()}-shaped, {SHORT_STEPS} steps: mean reward of the last 10"
            figures.append(Figure(name, last, "reward", goal="rises"))
            name = f"copy, {family.capitalize()}-shaped, {SHORT_STEPS} steps: mean reward of the first 10"
            figures.append(Figure(name, first, "reward"))
    record("learning", figures, out)


if __name__ == "__main__":
    main()
