"""A job's evaluations: which are due, how one is carried out, and what is recorded of it.

Guarantees:
- an evaluation is recorded once, when it is over: one that is cancelled, or that a restart interrupts, leaves
  nothing, and is due again where the job comes to its step again;
- where training goes back to an earlier step, evaluations of later ones count no more and are due again.
"""

import logging
from collections.abc import Callable, Iterator, Sequence

from rljob_runtime.data.tokenizer import TextTokenizer
from rljob_runtime.driver.sample_keeper import transcribed
from rljob_runtime.evaluation.schedule import EvaluationSchedule
from rljob_runtime.evaluation.scores import score_set
from rljob_runtime.rollout.evaluation_engines import EvaluationEngines
from rljob_runtime.rollout.evaluator import EvaluatedSet, Evaluator, KeptResponse
from rljob_runtime.trace.record.evaluation_log import EvaluationLine, EvaluationLog
from rljob_runtime.trace.record.sample_log import SampleLine

log = logging.getLogger(__name__)


class Evaluations:
    """See the module's guarantees. `begin` comes before everything else."""

    def __init__(
        self,
        schedule: EvaluationSchedule,
        evaluator: Evaluator,
        pass_reward: float,
        record: EvaluationLog,
        tokenizer: TextTokenizer,
        clock: Callable[[], float],
        pin: Callable[[int | None], None],
        engines: EvaluationEngines,
    ) -> None:
        """`clock`: seconds since the epoch. `pin` is given the step whose weights the engines are to keep,
        and None when they need not any more. `engines`: those that `evaluator` has respond."""
        self.on_evaluated: Callable[[EvaluationLine], None] = lambda line: None
        """Is told of each evaluation that is over."""
        self._schedule = schedule
        self._evaluator = evaluator
        self._pass_reward = pass_reward
        self._record = record
        self._tokenizer = tokenizer
        self._clock = clock
        self._pin = pin
        self._engines = engines

    @property
    def newest(self) -> EvaluationLine | None:
        """The newest evaluation that counts."""
        return self._record.newest

    def begin(self, step: int) -> None:
        """Training begins, or goes on, after `step` steps. Raises `OSError`."""
        self._record.begin(step)

    def due(self, step: int, last: bool) -> bool:
        """Whether the weights after `step` steps are to be evaluated; `last`: no step follows."""
        newest = self._record.newest
        return self._schedule.due(step, last) and (newest is None or newest.step < step)

    async def evaluate(self, step: int, version: int, last: bool, free: Callable[[], None]) -> None:
        """Evaluate the weights after `step` steps, which the engines hold as `version`, and record what comes
        of it. `last`: nothing is trained beside it. `free` is called once other weights may be delivered, for
        those that are evaluated are on engines set aside. Raises `OSError`, `RewardPoolError`."""
        began = self._clock()
        self._pin(step)
        try:
            async with self._engines.of(version, alone=last) as aside:
                if aside:
                    self._pin(None)
                    free()
                found = await self._evaluator.run(version, aside=aside > 0)
        finally:
            self._pin(None)
        now = self._clock()
        line = EvaluationLine(
            step=step,
            version=version,
            time=now,
            seconds=now - began,
            engines=aside,
            sets={
                each.name: score_set(
                    [each.graded[number] for number in sorted(each.graded)], self._pass_reward
                )
                for each in found
            },
        )
        self._record.write(line, list(self._samples(line, found)))
        for name, score in line.sets.items():
            if score.unpinned:
                log.warning(
                    "evaluation of version %d: %d of %d responses of %s have tokens of another version",
                    version, score.unpinned, score.responses, name,
                )  # fmt: skip
        self.on_evaluated(line)

    def _samples(self, line: EvaluationLine, found: Sequence[EvaluatedSet]) -> Iterator[SampleLine]:
        for each in found:
            for kept in each.kept:
                yield self._sample(line, each.name, kept)

    def _sample(self, line: EvaluationLine, name: str, kept: KeptResponse) -> SampleLine:
        prompt, response, score = kept.prompt, kept.response, kept.score
        prompt_text, prompt_left_out = transcribed(self._tokenizer, prompt.tokens)
        text, left_out = transcribed(self._tokenizer, response.tokens)
        return SampleLine(
            step=line.step,
            evaluation=name,
            time=line.time,
            # The evaluator counts down from -1: the prompt's number among those of all sets, from 0.
            uid=-1 - prompt.uid,
            epoch=0,
            row=prompt.row,
            index=kept.index,
            prompt=prompt_text,
            response=text,
            left_out=prompt_left_out + left_out,
            prompt_tokens=len(prompt.tokens),
            tokens=len(response.tokens),
            finish=response.finish,
            reward=score.value if score.failure is None else None,
            failure=score.failure,
            reward_parts=score.parts,
            reward_metrics=score.metrics,
            advantage=0.0,
            engine=response.engine,
            seconds=response.seconds,
            first_version=response.spans[0].version if response.spans else None,
            last_version=response.spans[-1].version if response.spans else None,
            trained_with=line.version,
        )
