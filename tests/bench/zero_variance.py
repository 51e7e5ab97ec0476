"""What refusing groups of equal rewards gives: the copy task with `rollout.filter.zeroVariance` and without
it, to an evaluation with a mean reward of 0.9. `reward_mean` would not do: with the filter it is that of
groups which are neither all right nor all wrong.

python -m tests.bench.zero_variance --seed 0
"""

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rljob_runtime.trace.record.evaluation_log import read_evaluations
from rljob_runtime.trace.record.metrics_log import read_metrics
from tests.bench.figures import Figure, record
from tests.bench.real_runs import EXAMPLE, PLAIN, run_job

WANTED = 0.9
STEPS = 360
PROMPTS = 16
EVERY = 10
"""Steps between two evaluations."""
SET = "copy"


@dataclass(frozen=True)
class Way:
    """What a job took to get there."""

    steps: int | None
    """None: more than STEPS."""
    last: float
    """Mean reward of the last evaluation."""
    generated: int
    """Groups that were accepted or refused by then, or in all."""
    equal: float
    """Share of these whose rewards were all equal."""


def job(seed: int, refuse: bool) -> dict[str, Any]:
    """The copy example with one engine and smaller steps, evaluated on prompts of their own."""
    document: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    document["spec"]["pools"] = {"fastRollout": {"replicas": 1}}
    training = document["spec"]["training"]
    prompts = training["data"] | {"generated": training["data"]["generated"] | {"rows": 64}}
    training["rollout"] = {
        "engine": {"torch": {}},
        "samplesPerPrompt": 8,
        "maxResponseTokens": 8,
        "filter": {"zeroVariance": {}} if refuse else {},
    }
    training["schedule"] = {"totalSteps": STEPS, "promptsPerBatch": PROMPTS}
    training["evaluation"] = {
        "sets": [{"name": SET, "data": prompts}],
        "everyVersions": EVERY,
        "samplesPerPrompt": 2,
    }
    training |= PLAIN
    training["seed"] = seed
    return document


def way(folder: Path) -> Way:
    """The run's way to the first evaluation that is good enough, or to its end."""
    means = {line.step: line.sets[SET].mean or 0.0 for line in read_evaluations(folder)}
    steps = next((step for step, mean in means.items() if mean >= WANTED), None)
    groups = read_metrics(folder / "metrics.jsonl").rows[(steps or STEPS) - 1]["groups"]
    generated = groups["accepted"] + groups["refused"]
    equal = (groups["refused"] + groups["equal_rewards"]) / generated
    return Way(steps, means[STEPS], generated, equal)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, required=True)
    seed = parser.parse_args().seed
    ways = []
    with tempfile.TemporaryDirectory() as scratch:
        for refuse in (False, True):
            folder = Path(scratch) / str(refuse)
            folder.mkdir()
            ways.append(way(run_job(folder, job(seed, refuse), 1500, "--no-live")))
    without, refused = ways
    name = f"copy, seed {seed}, groups of equal rewards refused"
    record("zero_variance", list(figures(name, refused, without)), keep=True)


def figures(name: str, refused: Way, without: Way) -> Iterator[Figure]:
    """Steps where both got there; how far both got in all steps."""
    if refused.steps and without.steps:
        yield Figure(f"{name}: steps to {WANTED}", refused.steps, "steps", baseline=without.steps)
    else:
        for what, found in ((name, refused), (f"{name}, the baseline", without)):
            text = f"{found.steps} steps" if found.steps else f"not in {STEPS} steps"
            print(f"{what}: {WANTED} after {text}")
    upto = f"until {WANTED}, or in {STEPS} steps"
    yield Figure(f"{name}: groups {upto}", refused.generated, "groups", baseline=without.generated)
    yield Figure(
        f"{name}: share of them that teaches nothing", refused.equal, "share", baseline=without.equal
    )
    yield Figure(f"{name}: mean reward after {STEPS} steps", refused.last, "reward", baseline=without.last)


if __name__ == "__main__":
    main()
