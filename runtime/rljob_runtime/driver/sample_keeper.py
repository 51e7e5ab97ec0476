"""Keeps what the model says: some responses of each step, as text, for people (`trace.record.sample_log`).

Guarantees:
- only responses of steps that were trained are kept, and each once: what was being prepared of a step that
  was not trained to its end is dropped;
- the work of a step is done while the trainer is at it, in pieces of one group or one response (advantages
  that compare groups with each other are one piece), between which the driver's loop goes on; so it adds
  nothing to a step;
- what is kept of a step is in the file when `flush` returns;
- with `samplesPerStep` 0 nothing is read, made or written.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from rljob_runtime.data.tokenizer import TextTokenizer
from rljob_runtime.groups.masking import oldest_trained
from rljob_runtime.groups.staleness import Bound
from rljob_runtime.job_errors import OwnFunctionFailed, RewardsUnfit
from rljob_runtime.objective.advantages import Estimator, GroupRewards
from rljob_runtime.rollout.outbox import Outbox
from rljob_runtime.samples import Group, Tokens, decode_group
from rljob_runtime.step_numbers import step_number
from rljob_runtime.trace.record.sample_choice import Candidate, choose
from rljob_runtime.trace.record.sample_log import SampleLine, SampleLog
from rljob_runtime.trainer.batch import rewards_of
from rljob_runtime.trainer.outline import outline_of

log = logging.getLogger(__name__)

MOST_TOKENS = 8192
"""Of a longer prompt or response, the first and the last half of so many tokens are kept."""


class SampleKeeper:
    """See the module's guarantees. `begin` comes before the first step."""

    def __init__(
        self,
        count: int,
        log: SampleLog,
        outbox: Outbox,
        tokenizer: TextTokenizer,
        bound: Bound,
        estimate: Estimator,
        seed: int,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        clock: Callable[[], float],
    ) -> None:
        """`count`: responses of each step (`samplesPerStep`); `estimate`: the trainer's, for advantages;
        `seed`: of the job; `clock`: seconds since the epoch. The groups that a step trains are taken from
        `outbox`."""
        self._count = count
        self._log = log
        self._outbox = outbox
        self._tokenizer = tokenizer
        self._bound = bound
        self._estimate = estimate
        self._seed = seed
        self._spawn = spawn
        self._clock = clock
        self._work: _Work | None = None
        self.on_kept: Callable[[Sequence[SampleLine]], None] = lambda rows: None
        """Is given what was kept of a step."""

    def begin(self, step: int) -> None:
        """Training begins, or goes on, with `step`."""
        self.flush()
        self._work = None
        if self._count:
            self._log.begin(step)

    def step_begins(self, step: int, uids: Sequence[int]) -> None:
        """The trainer is about to train the groups `uids`, which wait in the outbox."""
        # Of the step before; where the loop had so much to do that its work is not done.
        self.flush()
        if self._count:
            # References alone: everything else is done beside the training.
            self._work = work = _Work(self._lines(step, self._outbox.frames_of(sorted(uids))))
            self._spawn(self._carry_out(work))

    def step_done(self) -> None:
        """The step that began last is trained."""
        if self._work is not None:
            self._work.trained_at = self._clock()
            self._write(self._work)

    def flush(self) -> None:
        """Finish the work of a step that is trained, at once. That of one that is not goes on."""
        work = self._work
        if work is not None and work.trained_at is not None:
            while work.advance():
                pass
            self._write(work)

    async def _carry_out(self, work: "_Work") -> None:
        # Nothing is waited for: each round does a piece of the work.
        while work is self._work and work.advance():  # noqa: ASYNC110
            await asyncio.sleep(0)
        if work is self._work:
            self._write(work)

    def _write(self, work: "_Work") -> None:
        """Write what is kept of the step, once it is trained and all of it is prepared."""
        if work.trained_at is not None and work.prepared:
            self._work = None
            rows = [_dated(line, work.trained_at) for line in work.lines]
            self._log.write(rows)
            self.on_kept(rows)

    def _lines(self, step: int, frames: Sequence[bytes]) -> Iterator[SampleLine | None]:
        """What is kept of a step, and None after each other piece of work."""
        version = self._bound.version_at(step)
        groups: dict[int, Group] = {}
        candidates: list[Candidate] = []
        rewards: dict[int, GroupRewards] = {}
        for frame in frames:
            group = decode_group(frame)
            groups[group.uid] = group
            candidates += _candidates(group)
            rewards[group.uid] = rewards_of(outline_of(group), oldest_trained(self._bound, version))
            yield None
        # Text, as integers are hashed to themselves and steps would get similar draws.
        rng = random.Random(f"{self._seed}/{step}")
        chosen = choose(candidates, self._count, rng, self._log.followed)
        yield None
        # Those of other groups are needed only where groups are compared with each other.
        needed = rewards if self._estimate.across_groups else {each.uid: rewards[each.uid] for each in chosen}
        try:
            advantages = dict(zip(needed, self._estimate(list(needed.values())), strict=True))
        except (RewardsUnfit, OwnFunctionFailed) as error:
            # The trainer gets the same rewards, and ends the job with these words.
            log.warning("nothing is kept of step %d: %s", step_number(step), error)
            return
        yield None
        known: dict[int, _GroupText] = {}
        for each in chosen:
            group = groups[each.uid]
            if each.uid not in known:
                known[each.uid] = self._of_group(group, advantages[each.uid].tolist())
                yield None
            yield self._line(step, version, group, each.place, known[each.uid])

    def _of_group(self, group: Group, advantages: list[float]) -> "_GroupText":
        prompt, left_out = transcribed(self._tokenizer, group.prompt)
        return _GroupText(prompt, left_out, advantages)

    def _line(self, step: int, version: int, group: Group, index: int, known: "_GroupText") -> SampleLine:
        sample = group.samples[index]
        response, left_out = transcribed(self._tokenizer, sample.tokens)
        spans = sample.spans
        return SampleLine(
            step=step,
            time=0.0,
            uid=group.uid,
            epoch=group.epoch,
            row=group.row,
            index=index,
            prompt=known.prompt,
            response=response,
            left_out=known.left_out + left_out,
            prompt_tokens=len(group.prompt),
            tokens=len(sample.tokens),
            finish=sample.finish,
            reward=sample.reward if sample.failure is None else None,
            failure=sample.failure,
            reward_parts=sample.reward_parts,
            reward_metrics=sample.reward_metrics,
            advantage=known.advantages[index],
            engine=sample.engine,
            seconds=sample.seconds,
            first_version=spans[0].version if spans else None,
            last_version=spans[-1].version if spans else None,
            trained_with=version,
        )


def transcribed(tokenizer: TextTokenizer, tokens: Tokens) -> tuple[str, int]:
    """The tokens as text, special tokens by their names, and how many of them were left out of its middle."""
    left_out = max(0, len(tokens) - MOST_TOKENS)
    half = MOST_TOKENS // 2
    parts = [tokens[:half], tokens[-half:]] if left_out else [tokens]
    text = f"\n[... {left_out} tokens left out ...]\n".join(map(tokenizer.transcribe, parts))
    # Half of a surrogate pair cannot be written as UTF-8.
    return text.encode("utf-8", "replace").decode("utf-8"), left_out


class _GroupText(NamedTuple):
    """What the responses of a group have in common."""

    prompt: str
    left_out: int
    """Tokens left out of the prompt's middle."""
    advantages: list[float]


class _Work:
    """What is done for one step."""

    def __init__(self, pieces: Iterator[SampleLine | None]) -> None:
        self.lines: list[SampleLine] = []
        self.prepared = False
        self.trained_at: float | None = None
        """Seconds since the epoch; None as long as the step is not trained."""
        self._pieces = pieces

    def advance(self) -> bool:
        """Do the next piece; whether there may be more."""
        try:
            line = next(self._pieces)
        except StopIteration:
            self.prepared = True
            return False
        if line is not None:
            self.lines.append(line)
        return True


def _candidates(group: Group) -> list[Candidate]:
    return [
        Candidate(
            group.uid, group.row, index, sample.reward if sample.failure is None else None, len(sample.tokens)
        )
        for index, sample in enumerate(group.samples)
    ]


def _dated(line: SampleLine, time: float) -> SampleLine:
    return msgspec.structs.replace(line, time=time)
