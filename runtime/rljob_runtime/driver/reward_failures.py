"""When a job ends because its rewards fail.

Guarantees: a reward function that has never given a reward ends the job at the first step that would train
nothing, as a mistake in the RLJob; one that has worked and then fails for `OUTAGE_SAMPLES` samples in a row,
over whole steps, or for every sample of the last step, ends it as a failure that another attempt may not
meet. A served teacher that gives no log-probabilities counts as a reward that was not given, and as one that
has worked: it did when the job began. Any other failing sample or group costs itself and nothing else. Pure.
"""

from collections.abc import Sequence
from pathlib import Path

from rljob_runtime.rewards import TEACHER, failure_reason
from rljob_runtime.samples import Group
from rljob_runtime.step_numbers import step_number

OUTAGE_SAMPLES = 64
"""So many samples in a row without a reward are an outage, and not bad luck in a small step."""


class RewardsNeverWorked(ValueError):
    """No response has ever got a reward; running the job again changes nothing."""


class RewardsFailed(RuntimeError):
    """Rewards have worked and do so no longer."""


class RewardFailures:
    """Remembers which of the groups that wait to be trained have no reward at all."""

    def __init__(self, functions: str, log: Path, teacher: str = "") -> None:
        """`functions`: the field and what it names, as `calls.in_words` says; `log`: where tracebacks are;
        `teacher`: the same of a served teacher, where there is one."""
        self._functions = functions
        self._log = log
        self._teacher = teacher
        self._without: dict[int, tuple[int, str]] = {}
        """By uid: how many samples failed, and how the one did that tells most."""
        self._worked = False
        self._in_a_row = 0
        """Samples of the newest steps of which none had a reward."""

    def worked_before(self) -> None:
        """The job has trained steps already."""
        self._worked = True

    def scored(self, uid: int, failures: Sequence[str | None]) -> None:
        """The group `uid` was scored; for each of its samples why it has no reward, None where it has one."""
        # A group that is generated again is judged by its newest scores.
        self._without.pop(uid, None)
        if None in failures:
            self._worked = True
        elif failures:
            self._without[uid] = len(failures), _telling([str(each) for each in failures])

    def to_train(self, step: int, uids: Sequence[int], last: bool) -> None:
        """These groups are to be trained as `step`, the `last` one of the job or not. Raises
        `RewardsNeverWorked` or `RewardsFailed` where the job is to end instead."""
        found = [self._without.pop(uid, None) for uid in uids]
        failed = [each for each in found if each is not None]
        if len(failed) < len(found) or not failed:
            self._in_a_row = 0
            return
        number = step_number(step)
        samples = sum(count for count, _ in failed)
        self._in_a_row += samples
        # A failure may have several lines; what ends a job is told in one.
        first = " ".join(_telling([why for _, why in failed]).split())
        taught = failure_reason(first) == TEACHER
        who = self._teacher if taught else self._functions
        more = "" if taught else f" (more in {self._log})"
        if not self._worked and not taught:
            raise RewardsNeverWorked(
                f"{who} failed for all {samples} samples of step "
                f"{number} and has never given a reward. The first failure: {first}{more}"
            )
        if self._in_a_row >= OUTAGE_SAMPLES:
            which = f"the last {self._in_a_row} samples in a row, up to step {number}"
        elif not self._worked:
            which = f"all {samples} samples of step {number}, before any was scored"
        elif last:
            # No step comes after it to tell bad luck from an outage, and its weights are the job's result.
            which = f"all {samples} samples of step {number}, the last of the job"
        else:
            return
        raise RewardsFailed(f"{who} failed for {which}. The first failure of this step: {first}{more}")


def _telling(failures: Sequence[str]) -> str:
    """The failure that says what to do: the first of the teacher's, as rewards alone might not have kept the
    step from being trained; else the first."""
    return next((each for each in failures if failure_reason(each) == TEACHER), failures[0])


def has_reward(group: Group) -> bool:
    """Whether any sample of the group has a reward; without one it would train nothing."""
    return any(sample.failure is None for sample in group.samples)
