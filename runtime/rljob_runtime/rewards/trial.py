"""A reward function tried on a few samples before a job starts.

Guarantees: the function runs in a process of its own, which is gone afterwards, within a time limit; nothing
is said of a function that scores one sample of several and returns the same parts for each.
"""

import asyncio
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rljob_runtime.own_functions import FunctionLoadError
from rljob_runtime.rewards import WORKER_DIED, RewardInput, Score, failure_reason
from rljob_runtime.rewards.calls import FunctionCall
from rljob_runtime.rewards.frames import Setup
from rljob_runtime.rewards.load import ONE_AT_A_TIME, Refusal
from rljob_runtime.rewards.outcome import RewardFormError
from rljob_runtime.rewards.pace import usual_seconds
from rljob_runtime.rewards.part_names import NOT_RETURNED
from rljob_runtime.rewards.pool import START_SECONDS, RewardPool, RewardPoolError
from rljob_runtime.rewards.process import WorkerProcess

_ERROR = "error: "
_STUCK = 3.0
"""So many times as long as others a response takes that is given up."""
_OF_THE_CODE = ("NameError: ", "ImportError: ", "ModuleNotFoundError: ", "AttributeError: 'RewardInput' ")
"""How Python's errors begin that come from the function's text, whatever the response is."""
_MISTAKES = (*_OF_THE_CODE, f"{RewardFormError.__name__}: ")
"""And with those of what a function returns whatever the response is."""
_TAKEN_FOR_ANOTHER = re.compile(r"TypeError: .*'RewardInput'")
"""As a function raises that was written for a list of responses, or for a text."""


@dataclass(frozen=True)
class Verdict:
    """What is wrong with a reward."""

    words: str
    """How the first sample failed: type, message and place of the error. Where samples were scored: what was
    returned."""
    certain: bool
    """It will fail for every response, or for most jobs. Otherwise the failure may be intended: a reward may
    raise for a response that is not in the form it wants, and those of a trial are made up."""
    scored: bool = False
    """Samples were scored; what is wrong is about their parts and metrics."""
    late: bool = False
    """Not known: the trial's time was over before. `words` are empty."""
    unquoted: str = ""
    """`words` without what may be text of the data, such as an exception's message; empty where they have
    none."""


_LATE = Verdict("", certain=False, late=True)


@dataclass
class Trial:
    """What a reward did when it was tried."""

    found: dict[int, Verdict] = field(default_factory=dict)
    """What is wrong, by the batch of samples."""
    scores: list[list[Score]] = field(default_factory=list)
    """Of each batch that was begun, in the order of its samples; of the last one as far as it came."""

    @property
    def seconds(self) -> list[float]:
        """How long each sample that was scored took, in their order."""
        return [score.seconds for scores in self.scores for score in scores if score.failure is None]


def verdict(scores: Sequence[Score]) -> Verdict | None:
    """What the scores of a trial show; None where some sample was scored and nothing is wrong with its parts,
    or nothing was tried."""
    failed = [score for score in scores if score.failure is not None]
    failures = [score.failure or "" for score in failed]
    if len(failures) < len(scores):
        return _about_parts([score for score in scores if score.failure is None])
    if not failures:
        return None
    told = [each for each in failed if failure_reason(each.failure or "") not in ("timeout", "cancelled")]
    ended = [each.failure or "" for each in told]
    # A slow first call, such as one that loads a judge model, says nothing of later ones. A worker that died
    # is not slow, but who comes after it waits for another one to start.
    if len(ended) < len(failures) and not any(map(_died, ended)):
        return _LATE
    words = [failure.removeprefix(_ERROR) for failure in ended]
    if all(map(_TAKEN_FOR_ANOTHER.match, words)):
        return Verdict(f"{words[0]}: {ONE_AT_A_TIME}", certain=True)
    unquoted = (told[0].told_failure or "").removeprefix(_ERROR)
    certain = all(each.startswith(_MISTAKES) for each in words)
    # Python's own words about the function's text quote nothing that it was given.
    quotes = unquoted != words[0] and not words[0].startswith(_OF_THE_CODE)
    return Verdict(words[0], certain, unquoted=unquoted if quotes else "")


def when_over(trial: Trial, spent: float) -> Verdict | None:
    """What is wrong with the newest batch of a trial whose time is over, at a sample that had had `spent`
    seconds of it; None where nothing is known to be."""
    newest = trial.scores[-1] if trial.scores else []
    if any(_died(score.failure or "") for scores in trial.scores for score in scores):
        # It is others that were started in the place of such a worker which took the time.
        return verdict(newest)
    usual = usual_seconds(trial.seconds)
    # Slow, of which its pace tells, or stuck.
    if usual is None or spent > _STUCK * usual:
        return _LATE
    return verdict(newest) if any(score.failure is None for score in newest) else None


def _died(failure: str) -> bool:
    return failure_reason(failure) == WORKER_DIED


def _about_parts(scores: Sequence[Score]) -> Verdict | None:
    """What is wrong with the parts and metrics of what was scored."""
    names = [{*score.parts, *score.metrics} | _unusable(score) for score in scores]
    other = next((each for each in names if each != names[0]), None)
    if other is not None:
        # The mean of a part over some responses would look as if it were that of all.
        words = (
            f"returns other parts or metrics from call to call, as {_listed(names[0])} for one response and "
            f"{_listed(other)} for another: return the same names each time, None for a metric that does not "
            "apply"
        )
        return Verdict(words, certain=True, scored=True)
    wrong = [(name, why) for score in scores for name, why in score.complaints.items()]
    # The pool's own complaints are about names, which are alike.
    if wrong:
        return Verdict(f"has no usable {wrong[0][0]}: {wrong[0][1]}", certain=False, scored=True)
    return None


def _unusable(score: Score) -> set[str]:
    """Names of what was returned and is no usable number."""
    return {key.partition(".")[2] for key, why in score.complaints.items() if why != NOT_RETURNED}


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def hosted_refusal(calls: Sequence[FunctionCall], search_path: Sequence[Path], host: Path) -> Refusal | None:
    """Why one of the functions cannot be used, as a worker of the host at the socket `host` finds; None where
    all can. Nothing of them is imported in this process. Raises `WorkerStartError`."""
    setup = Setup(tuple(calls), tuple(str(path.resolve()) for path in search_path))

    async def start() -> Refusal | None:
        worker = WorkerProcess(START_SECONDS, lambda _: None)
        try:
            return (await worker.start(setup, None, host, START_SECONDS)).refusal
        finally:
            await worker.stop()

    return asyncio.run(start())


def try_reward(
    calls: Sequence[FunctionCall],
    search_path: Sequence[Path],
    batches: Sequence[Sequence[RewardInput]],
    seconds: float,
    host: Path | None,
) -> Trial:
    """Score the samples of each batch, one after the other, in at most `seconds` for all of them with the
    start of the process; nothing is told where no process can be started. Where time is over at a batch, what
    it has scored until then counts, and those after it are not tried. The functions are to be found in
    `search_path`; `host` as in `RewardPool`. Without any sample nothing is started."""
    if not any(batches):
        return Trial()
    return asyncio.run(_try(calls, search_path, batches, seconds, host))


async def _try(
    calls: Sequence[FunctionCall],
    search_path: Sequence[Path],
    batches: Sequence[Sequence[RewardInput]],
    seconds: float,
    host: Path | None,
) -> Trial:
    trial = Trial()
    batch, began = 0, 0.0
    pool = RewardPool(
        calls,
        timeout_seconds=seconds,
        search_path=search_path,
        # Whoever checks a manifest is told how it failed, and what it prints is for nobody.
        log=Path(os.devnull),
        log_failures=False,
        host=host,
    )
    try:
        async with asyncio.timeout(seconds):
            await pool.start()
            for batch, samples in enumerate(batches):
                trial.scores.append([])
                for sample in samples:
                    began = asyncio.get_running_loop().time()
                    trial.scores[batch] += await pool.score([sample])
                _find(trial, batch, verdict(trial.scores[batch]))
    except TimeoutError:
        _find(trial, batch, when_over(trial, asyncio.get_running_loop().time() - began))
    except (FunctionLoadError, RewardPoolError):
        # Told where functions are loaded; workers that do not start, when the job begins.
        return Trial()
    finally:
        await pool.close()
    return trial


def _find(trial: Trial, batch: int, wrong: Verdict | None) -> None:
    if wrong is not None:
        trial.found[batch] = wrong
