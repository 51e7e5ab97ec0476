"""Does the example of the README learn each time, and how soon? Its learning with a seed, beside that with a
constant learning rate and a smaller entropy bonus (`real_runs.PLAIN`).

In one process: trainer, staleness control, model and sampler are the runtime's, and time is counted in ticks,
as in `tests.bench.learning_masked`; a seed gives one result, and a run takes a minute. With `--job` it is the
job itself alone, by `rljob run` with vLLM's engines, where what is trained when depends on time too.

    python -m tests.bench.learning_example --seed 0
    python -m tests.bench.learning_example --seed 0 --job
"""

import argparse
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from rljob_api import RLJob
from rljob_runtime.manifest.source import parse
from rljob_runtime.trace.record.metrics_log import read_metrics
from tests.bench.figures import Figure, record
from tests.bench.learning_adapter import WANTED, WINDOW, steps_to
from tests.bench.learning_masked import Run
from tests.bench.real_runs import EXAMPLE, PLAIN, run_job


@dataclass(frozen=True)
class Way:
    """How a job went. Means are of WINDOW steps."""

    end: float
    """Mean reward of the last steps."""
    steps: int | None
    """Until the mean reward was WANTED; None: it never was."""
    lowest: float | None
    """Lowest mean reward after that."""
    entropy: float
    """Mean of the last steps, in nats."""


MEASURED: tuple[tuple[str, str, str | None, Callable[[Way], float | None]], ...] = (
    (f"mean reward of the last {WINDOW}", "reward", f"≥ {WANTED}", lambda found: found.end),
    (f"steps to {WANTED}", "steps", None, lambda found: found.steps),
    (f"lowest mean of {WINDOW} after that", "reward", None, lambda found: found.lowest),
    (f"entropy of the last {WINDOW}", "nats", None, lambda found: found.entropy),
)
"""What each figure is called, its unit, its goal, and where it is found."""


class ExampleRun(Run):
    """One job."""

    slow_prompt = None


def document(seed: int, other: Mapping[str, Any]) -> dict[str, Any]:
    """The example with this seed, and `other` in the place of what it trains with."""
    found: dict[str, Any] = parse(EXAMPLE.read_text()).value
    found["spec"]["training"] |= {**other, "seed": seed}
    return found


def in_process(job: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """The metrics of all steps."""
    job["spec"]["training"]["rollout"]["engine"] = {"torch": {}}
    return [msgspec.to_builtins(each) for each in ExampleRun(RLJob.model_validate(job), folder).train()]


def through_engines(job: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """The same of the job itself."""
    return read_metrics(run_job(folder, job, 1500, "--no-live") / "metrics.jsonl").rows


def way(rows: Sequence[Mapping[str, Any]]) -> Way:
    """From the metrics of all steps."""
    rewards = [row["reward_mean"] for row in rows]
    steps = steps_to(rewards, WANTED)
    later = range(steps or len(rows) + 1, len(rows) + 1)
    lowest = min((statistics.mean(rewards[step - WINDOW : step]) for step in later), default=None)
    entropy = statistics.mean(row["entropy"] for row in rows[-WINDOW:])
    return Way(statistics.mean(rewards[-WINDOW:]), steps, lowest, entropy)


def figures(name: str, own: Way, plain: Way | None) -> Iterator[Figure]:
    """Beside the baseline's, where there is one. None of how it reached WANTED where it did not, as its end
    says."""
    for what, unit, goal, of in MEASURED:
        found = of(own)
        if found is not None:
            yield Figure(f"{name}: {what}", found, unit, None if plain is None else of(plain), goal)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--job", action="store_true", help="the job itself, through vLLM")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        if options.job:
            name, plain = f"the job, seed {options.seed}", None
            own = way(through_engines(document(options.seed, {}), Path(first)))
        else:
            name = f"in one process, seed {options.seed}"
            plain = way(in_process(document(options.seed, PLAIN), Path(first)))
            own = way(in_process(document(options.seed, {}), Path(second)))
    record("learning_example", list(figures(name, own, plain)), keep=True)


if __name__ == "__main__":
    main()
