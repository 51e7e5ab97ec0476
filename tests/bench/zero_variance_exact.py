"""What refusing groups of equal rewards gives where rewards are 0 or 1: a copy task with a reward for the
whole answer alone, with `rollout.filter.zeroVariance` and without it.

Trainer, staleness control, refusals, model and sampler are the runtime's; time is counted in ticks, as in
`tests.bench.learning_masked`. Counted are the rewards of all groups that were generated, those that were
refused among them: the mean of the newest ones is what the policy can do. It begins with a model that has
half learned the task by another reward: by this one a random model never would.

    python -m tests.bench.learning_adapter --make /tmp/half
    python -m tests.bench.zero_variance_exact --model /tmp/half/run/model --seed 0
    python -m tests.bench.zero_variance_exact --model /tmp/half/run/model --seed 0 --entropy 0
"""

import argparse
import statistics
import tempfile
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rljob_api import RLJob
from rljob_runtime.groups.filter import all_equal
from rljob_runtime.rewards import RewardInput
from rljob_runtime.samples import Group
from tests.bench.figures import Figure, record
from tests.bench.learning_masked import Run
from tests.bench.real_runs import EXAMPLE, PLAIN

WANTED = 0.9
STEPS = 300
PROMPTS = 8
NEWEST = 32
"""Groups whose mean reward is what the policy can do."""


def exact(sample: RewardInput) -> float:
    """1 for the whole prompt and nothing else, 0 for all else."""
    return float(sample.response == sample.prompt)


@dataclass(frozen=True)
class Way:
    """What a job took until the mean reward was reached, or to its end."""

    steps: int
    reached: bool
    reward: float
    """Of the newest groups, in the end."""
    groups: int
    """That were generated."""
    equal: float
    """Share of these whose rewards were all equal."""


class Learned(Exception):
    """The mean reward was reached."""


class ExactRun(Run):
    """One job, until it has learned."""

    slow_prompt = None

    def __init__(self, job: RLJob, folder: Path) -> None:
        super().__init__(job, folder)
        self.groups = self.equal = 0
        self.newest: deque[float] = deque(maxlen=NEWEST)

    def completed(self, uid: int, group: Group) -> None:
        scores = [(sample.reward, sample.failure) for sample in group.samples]
        equal = all_equal(scores)
        self.groups += 1
        self.equal += equal
        self.newest.append(statistics.mean(reward for reward, _ in scores))
        if len(self.newest) == NEWEST and statistics.mean(self.newest) >= WANTED:
            raise Learned
        if not (equal and self.controller.refuse(uid)):
            super().completed(uid, group)

    def way(self) -> Way:
        """Train until it has learned, or to the job's end."""
        reached = False
        try:
            self.train()
        except Learned:
            reached = True
            self.trainer.close()
        reward = statistics.mean(self.newest)
        return Way(self.version, reached, reward, self.groups, self.equal / self.groups)


def job(model: Path, seed: int, refuse: bool, entropy: float) -> RLJob:
    """The copy example with smaller steps and the reward of this file, from this model on."""
    document: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    training = document["spec"]["training"]
    training["model"] = {"path": str(model.resolve())}
    training["reward"] = {"function": "tests.bench.zero_variance_exact:exact"}
    training["rollout"] = {
        "engine": {"torch": {}}, "samplesPerPrompt": 8, "maxResponseTokens": 8,
        "filter": {"zeroVariance": {}} if refuse else {},
    }  # fmt: skip
    training["schedule"] = {"totalSteps": STEPS, "promptsPerBatch": PROMPTS}
    training["async"] = {"maxStaleness": 1}
    training |= PLAIN
    training["algorithm"] = PLAIN["algorithm"] | {"entropyCoefficient": entropy}
    training["seed"] = seed
    return RLJob.model_validate(document)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--model", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--entropy", type=float, default=0.02, help="algorithm.entropyCoefficient")
    options = parser.parse_args()
    seed = options.seed
    ways = []
    for refuse in (False, True):
        with tempfile.TemporaryDirectory() as scratch:
            ways.append(ExactRun(job(options.model, seed, refuse, options.entropy), Path(scratch)).way())
    without, refused = ways
    bonus = "" if options.entropy else ", no entropy bonus"
    name = f"copy for 0 or 1, seed {seed}{bonus}, groups of equal rewards refused"
    ends = " and ".join(
        f"{what} {'reached' if way.reached else f'not reached within {STEPS}'}"
        for what, way in (("with", refused), ("without", without))
    )
    figures = [
        Figure(f"{name}: steps to {WANTED} ({ends})", refused.steps, "steps", baseline=without.steps),
        Figure(f"{name}: mean reward then", refused.reward, "reward", baseline=without.reward),
        Figure(f"{name}: groups until then", refused.groups, "groups", baseline=without.groups),
        Figure(f"{name}: share of them that teaches nothing", refused.equal, "share", baseline=without.equal),
    ]
    record("zero_variance_exact", figures, keep=True)


if __name__ == "__main__":
    main()
