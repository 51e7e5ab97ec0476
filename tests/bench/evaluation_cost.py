"""What evaluations cost training, in virtual time: the real loops, fake engines.

The same job with evaluations and, as the baseline, without any, in the same run. The job is that of
`async_vs_sync`: 32 prompts of 8 responses per step, heavy-tailed lengths, 4 engines. Steps are counted from
one evaluation to another one, so that the time is that of whole periods. How much slower they are is set
against the evaluations' own tokens, as a share of those that are trained: what the engines would take longer
if a token of an evaluation cost as much as one of training.

    python -m tests.bench.evaluation_cost
"""

import asyncio
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rljob_runtime.engines.fake import FakeTiming
from rljob_runtime.engines.protocol import Sampling
from rljob_runtime.evaluation.engines import PoolShare
from rljob_runtime.evaluation.schedule import EvaluationSchedule
from rljob_runtime.groups.responses import Response
from rljob_runtime.rewards import Score
from rljob_runtime.rollout.evaluation_engines import EvaluationEngines
from rljob_runtime.rollout.evaluator import Evaluator, EvaluatorSettings, HeldOutSet
from rljob_runtime.samples import Prompt
from tests.bench.async_vs_sync import GROUPS, TIMING, length_of
from tests.bench.figures import Figure, parser, record
from tests.support.simulated.simulated_job import Scenario, SimulatedJob

COMPUTE_BOUND = FakeTiming(
    step_seconds=0.002, sequence_seconds=0.0005, prefill_seconds=0.00001, load_seconds=0.1
)
"""An engine whose steps take nearly as much longer as more requests run: a token costs its own time."""
GOAL = "at most the evaluations' own tokens + 2 %"


@dataclass(frozen=True)
class Case:
    """A job, and what is evaluated in it."""

    bound: int = 1
    every: int = 10
    """Versions from one evaluation to the next."""
    prompts: int = 256
    """Evaluated each time, with a response to each."""
    timing: FakeTiming = TIMING
    max_running: int = 128
    """Requests that an engine runs at a time."""
    train_seconds: float = 5.0
    first: int = 10
    """Steps that are not counted, up to an evaluation."""
    counted: int = 60
    """Steps that are: whole periods."""
    groups: int = GROUPS
    aside: int = 0
    """Engines that are set aside for an evaluation; 0: it runs on all."""

    @property
    def last(self) -> int:
        return self.first + self.counted


@dataclass(frozen=True)
class Cost:
    """What a job's evaluations cost it."""

    slower: float
    """By which share of their time without evaluations the counted steps took longer."""
    own: float
    """Tokens of the evaluations among them, as a share of the tokens that they trained."""
    step_seconds: float
    """Of a step without evaluations."""
    evaluation_seconds: float
    """Of an evaluation beside training, on average."""
    last_seconds: float
    """Of the evaluation after the last step, when nothing is trained any more."""


class HeldOut:
    """A simulated job's evaluations, and what each of them took."""

    def __init__(self, job: SimulatedJob, case: Case) -> None:
        self.tokens: dict[int, int] = {}
        """By the step that the evaluated weights have behind them."""
        self.seconds: dict[int, float] = {}
        self._schedule = EvaluationSchedule(case.every, steps_per_version=1)
        self._evaluator = Evaluator(
            [HeldOutSet("held_out", case.prompts, _prompt)],
            EvaluatorSettings(1, job.scenario.max_response_tokens, 1, Sampling()),
            job.pool,
            job.rollouter.responder,
            _score,
            job.rollouter.poke,
        )
        self._engines = EvaluationEngines(
            job.pool, job.plan, PoolShare("fast", case.aside) if case.aside else None,
            job.tasks.create_task, _refuse, _nobody,
        )  # fmt: skip

    def due(self, step: int, last: bool) -> bool:
        return self._schedule.due(step, last)

    async def evaluate(self, step: int, version: int, last: bool, free: Callable[[], None]) -> None:
        clock = asyncio.get_running_loop().time
        began = clock()
        async with self._engines.of(version, alone=last) as aside:
            if aside:
                free()
            (found,) = await self._evaluator.run(version, aside=aside > 0)
        graded = [each for responses in found.graded.values() for each in responses]
        assert all(each.pinned for each in graded), "an evaluation of several versions"
        self.tokens[step] = sum(each.tokens for each in graded)
        self.seconds[step] = clock() - began


def _refuse(said: str) -> None:
    raise AssertionError(f"not the evaluation that is measured: {said}")


async def _nobody() -> None:
    raise AssertionError("nothing is broadcast here")


def _prompt(number: int) -> Prompt:
    return Prompt(number, 0, number, np.full(4, 7, np.int32))


async def _score(prompt: Prompt, responses: Sequence[Response]) -> list[Score]:
    return [Score(1.0) for _ in responses]


def _run(case: Case, evaluated: bool) -> tuple[SimulatedJob, HeldOut | None]:
    made: list[HeldOut] = []

    def evaluating(job: SimulatedJob) -> HeldOut | None:
        if evaluated:
            made.append(HeldOut(job, case))
        return made[0] if made else None

    scenario = Scenario(
        # One more: the evaluation after the last one that counts is the job's last, and not of a period.
        steps=case.last + 1, groups_per_step=case.groups, samples_per_prompt=8, max_staleness=case.bound,
        engines=4, max_running=case.max_running, length_of=length_of, train_seconds=case.train_seconds,
        timing=case.timing, evaluating=evaluating,
    )  # fmt: skip
    return SimulatedJob(scenario).run(), made[0] if made else None


@functools.cache
def _without(case: Case) -> float:
    """Seconds of the counted steps where nothing is evaluated. What is evaluated does not matter: `case`
    without that."""
    job, _ = _run(case, evaluated=False)
    return job.steps[case.last - 1].ended - job.steps[case.first - 1].ended


def cost(case: Case) -> Cost:
    """Run the job of `case` with evaluations and without."""
    assert case.first % case.every == 0 and case.counted % case.every == 0, "no whole periods"
    alone = _without(
        Case(
            case.bound, timing=case.timing, max_running=case.max_running, train_seconds=case.train_seconds,
            first=case.first, counted=case.counted, groups=case.groups,
        )
    )  # fmt: skip
    job, held_out = _run(case, evaluated=True)
    assert held_out is not None
    trained = sorted(uid for step in job.steps for uid in step.uids)
    assert trained == list(range(len(job.steps) * case.groups)), "each prompt is trained once"
    counted = [step for step in held_out.tokens if case.first <= step < case.last]
    assert len(counted) == case.counted // case.every
    seconds = job.steps[case.last - 1].ended - job.steps[case.first - 1].ended
    return Cost(
        slower=seconds / alone - 1,
        own=sum(held_out.tokens[step] for step in counted)
        / sum(step.tokens for step in job.steps[case.first : case.last]),
        step_seconds=alone / case.counted,
        evaluation_seconds=sum(held_out.seconds[step] for step in counted) / len(counted),
        last_seconds=held_out.seconds[case.last + 1],
    )


CASES = {
    "bound 0": Case(0),
    "bound 1": Case(1),
    "bound 2": Case(2),
    "bound 1, a step trains as long as it generates": Case(1, train_seconds=20.0),
    "bound 1, engines full": Case(1, max_running=32),
    "bound 1, a token costs its own time": Case(1, timing=COMPUTE_BOUND),
    "bound 2, a token costs its own time": Case(2, timing=COMPUTE_BOUND),
    "bound 1, 32 prompts every 2 versions": Case(1, every=2, prompts=32),
    "bound 2, 32 prompts every 2 versions": Case(2, every=2, prompts=32),
    "bound 2, 160 prompts every 10 versions": Case(2, prompts=160),
    "bound 2, 32 prompts every 2 versions, a token costs its own time": Case(
        2, every=2, prompts=32, timing=COMPUTE_BOUND
    ),
    "bound 2, 256 prompts every version": Case(2, every=1),
}
SET_ASIDE = (
    "bound 1",
    "bound 1, engines full",
    "bound 1, a token costs its own time",
    "bound 2, a token costs its own time",
    "bound 2, 32 prompts every 2 versions",
    "bound 2, 256 prompts every version",
)
"""The cases that are run with one of the four engines set aside as well."""


def main() -> None:
    """Measure and record."""
    out = parser(__doc__).parse_args().out
    figures = []
    aside = {f"1 of 4 engines set aside, {name}": replace(CASES[name], aside=1) for name in SET_ASIDE}
    for name, case in {**CASES, **aside}.items():
        found = cost(case)
        figures.append(Figure(f"{name}: steps are slower by", found.slower * 100, "%", found.own * 100, GOAL))
        if name == "bound 1":
            figures += [
                Figure(
                    f"{name}: an evaluation beside training", found.evaluation_seconds, "virtual s",
                    found.step_seconds,
                ),
                Figure(f"{name}: the evaluation after the last step", found.last_seconds, "virtual s"),
            ]  # fmt: skip
    record("evaluation_cost", figures, out)


if __name__ == "__main__":
    main()
