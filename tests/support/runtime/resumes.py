"""Checkpoints to resume from, and the jobs that do: without trainer, engines and files."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from rljob_api import RLJob
from rljob_runtime.data.fingerprint import DataFingerprint
from rljob_runtime.driver.job_settings import JobSettings, Origin, job_settings
from rljob_runtime.groups.counts import GroupCounts
from rljob_runtime.groups.ledger import Ledger
from rljob_runtime.groups.state import JobState
from rljob_runtime.samples import Group, Sample, Span, encode
from tests.support.jobs import job

DATA = DataFingerprint("made up", 40, "", "", "in order")


def asked(
    schedule: Mapping[str, Any], samples: int = 2, max_refill: int | None = None, **asynchronous: Any
) -> RLJob:
    """A job with responses of at most 8 tokens. `max_refill`: of `rollout.filter.zeroVariance`; None: it has
    no such filter."""
    changes: dict[str, Any] = {
        "training.schedule": dict(schedule),
        "training.rollout.samplesPerPrompt": samples,
        "training.async": asynchronous,
    }
    if max_refill is not None:
        changes["training.rollout.filter"] = {"zeroVariance": {"maxRefill": max_refill}}
    return RLJob.model_validate(job(changes))


def plan_from(state: JobState, wanted: RLJob, rows: int) -> JobSettings:
    """The plan of a job that goes on from `state`."""
    return job_settings(
        wanted, rows, Origin(state.step, state.ledger.trained, state.ledger.refused, state.step)
    )


def frame(uid: int, version: int, samples: int = 2, tokens: int = 1) -> bytes:
    """A waiting group, dispatched at `version`."""
    arrays = np.zeros(tokens, np.int32), np.zeros(tokens, np.float32)
    sample = Sample(*arrays, (Span(version, 0, tokens),), "stop", 1.0)
    return encode(Group(uid, 0, uid, np.zeros(2, np.int32), (sample,) * samples, version))


def saved(step: int, ledger: Ledger, waiting: list[bytes], steps_per_version: int | None = 1) -> JobState:
    """What a checkpoint holds."""
    return JobState(step, ledger, waiting, GroupCounts(), DATA, steps_per_version)
