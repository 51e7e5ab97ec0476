"""What a job must have in common with the run that it goes on with, looked at before anything is started, and
what of that run it takes over.

Guarantees: a job goes on with any schedule and any bound with which each prompt can still be trained as often
as it should be, no sample older than the bound, and without waiting for ever; anything else is refused in one
line that says what to do.
"""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from rljob_api.schedule import Schedule
from rljob_runtime.data.errors import DataError
from rljob_runtime.data.fingerprint import DataFingerprint, difference
from rljob_runtime.driver.job_settings import JobSettings, Origin
from rljob_runtime.groups.masking import context_tokens, oldest_trained
from rljob_runtime.groups.staleness import Bound
from rljob_runtime.groups.state import JobState, RolloutSettings
from rljob_runtime.samples import Group, Sample, decode_group
from rljob_runtime.trainer.checkpoint import Head, damaged, newest, read_head

_OR_ANEW = "or more to go on with --resume, or begin anew with --restart"


class ResumeRefused(ValueError):
    """The job asks for another model, or for less, than the run has trained; the message says what to
    change."""


@dataclass(frozen=True)
class Saved:
    """A checkpoint without its tensors."""

    folder: Path
    head: Head
    state: JobState


def read_saved(checkpoints: Path) -> Saved | None:
    """The newest checkpoint in `checkpoints`; None where there is none. Raises `CheckpointError`."""
    folder = newest(checkpoints)
    if folder is None:
        return None
    head, extra = read_head(folder)
    try:
        return Saved(folder, head, msgspec.msgpack.decode(extra, type=JobState))
    except msgspec.DecodeError as error:
        raise damaged(folder, error) from error


def check_resume(checkpoints: Path, data: DataFingerprint, schedule: Schedule, rows: int) -> Origin:
    """Where the newest checkpoint in `checkpoints` lets a job with this schedule, and `rows` prompts in an
    epoch, begin; without a checkpoint, at nothing. Raises `DataError` where it was written with other data,
    `ResumeRefused` where it is beyond the job's end, and `CheckpointError` where it cannot be read."""
    saved = read_saved(checkpoints)
    if saved is None:
        return Origin()
    state = saved.state
    why = difference(state.data, data)
    if why is not None:
        raise DataError(why)
    why = beyond(state, schedule, rows)
    if why is not None:
        raise ResumeRefused(f"{saved.folder} {why}")
    return Origin(state.step, state.ledger.trained, state.ledger.refused, saved.head.updates)


def beyond(state: JobState, schedule: Schedule, rows: int) -> str | None:
    """Why a checkpoint has trained more than the schedule asks for, and what to do; None where it has not."""
    if schedule.total_steps is not None:
        if state.step <= schedule.total_steps:
            return None
        asked = f"training.schedule.totalSteps is {schedule.total_steps:,}"
        return f"has {state.step:,} steps, and {asked}: set it to {state.step} {_OR_ANEW}"
    epochs = schedule.epochs or 1
    # Rounded up: the epoch of the last prompt that is trained, from 1.
    begun = -(-state.ledger.end // rows)
    if begun <= epochs:
        return None
    asked = f"training.schedule.epochs is {epochs:,}"
    return f"has trained prompts of epoch {begun:,}, and {asked}: set it to {begun} {_OR_ANEW}"


def with_fitting_groups(state: JobState, settings: JobSettings) -> JobState:
    """`state` without the waiting groups that the job, as it is, could not train in time, or has no place
    for; their prompts are among those that remain to be dispatched. Unless the job was changed, all fit."""
    groups = [decode_group(frame) for frame in state.waiting]
    # Where a version was another number of steps, those in the groups cannot be compared with the job's.
    counted_alike = state.steps_per_version in (None, settings.bound.steps_per_version)
    # Those that are trained need what this job's teacher says of them, and no other's.
    taught_alike = settings.rollout.teacher in (None, state.teacher)
    fitting = _fitting(groups, state, settings) if counted_alike and taught_alike else set()
    waiting = [frame for frame, group in zip(state.waiting, groups, strict=True) if group.uid in fitting]
    return msgspec.structs.replace(state, waiting=waiting)


def _fitting(groups: list[Group], state: JobState, settings: JobSettings) -> set[int]:
    """Uids of the groups, whose versions mean what they mean to the job, that are kept: by nearest deadline,
    each that has a step before its deadline, as many as may be outstanding."""
    bound, controller = settings.bound, settings.controller(state.ledger)
    version, kept = bound.version_at(state.step), set()
    for group in sorted(groups, key=lambda group: (group.dispatch_version, group.uid)):
        if (
            _as_asked(group, version, settings)
            and _in_time(group, state.step, bound, controller.outstanding)
            and controller.room(version) > 0
        ):
            controller.dispatched(group.uid, group.dispatch_version)
            kept.add(group.uid)
    return kept


def _in_time(group: Group, step: int, bound: Bound, kept: int) -> bool:
    """Whether steps from `step` on can train it within the bound, beside `kept` others whose deadlines are no
    later; where stale tokens are masked, whether there is one that is not stale."""
    if not bound.masks:
        # Rule 2 of docs/algorithms.md: a step before its deadline is left for it.
        return bound.slots(step, group.dispatch_version + bound.versions) > kept
    oldest = oldest_trained(bound, bound.version_at(step))
    return any(context_tokens(sample.spans, oldest) < len(sample.tokens) for sample in group.samples)


def _as_asked(group: Group, version: int, settings: JobSettings) -> bool:
    """Whether the job could have made this group by `version`."""
    rollout = settings.rollout
    return (
        (settings.uids is None or group.uid < settings.uids)
        and group.dispatch_version <= version
        and len(group.samples) == rollout.samples_per_prompt
        and all(_allowed(rollout, group.uid, *response) for response in enumerate(group.samples))
    )


def _allowed(rollout: RolloutSettings, uid: int, index: int, sample: Sample) -> bool:
    """Whether response `index` of a group may be as long as `sample` is."""
    most = rollout.most_tokens(uid, index)
    return len(sample.tokens) <= most if rollout.forced is None else len(sample.tokens) == most
