"""`rljob drive`: runs the RLJob of the pod that it is started in, from the API server to an exit code.

Guarantees: the exit code says what became of the job (`exit_codes.py`), and the reason of a failure, or that
nothing was left to be trained, stands in one line where Kubernetes shows it; that the job is done stands in
its status before the driver ends, unless the server cannot be reached; a run that has a checkpoint is gone on
with; a SIGTERM at any moment ends it as a stop.
"""

import asyncio
import logging
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import yaml

from rljob_api import RLJob
from rljob_api.errors import Problem
from rljob_api.stored import StoredError, TooDeep, name_fields, read_stored
from rljob_client.credentials import Credentials, CredentialsError, find_credentials, in_cluster
from rljob_client.errors import ApiError
from rljob_runtime.cluster import completed
from rljob_runtime.cluster.api import ApiClient
from rljob_runtime.cluster.own_job import Identity, JobGone, read_job
from rljob_runtime.cluster.pod_site import cluster_site
from rljob_runtime.cluster.settings import TERMINATION_LOG, Settings, SettingsError, read_settings
from rljob_runtime.cluster.words import in_a_cluster
from rljob_runtime.driver.run import Outcome, carry_out
from rljob_runtime.exit_codes import ExitCode
from rljob_runtime.manifest.checks import check_job
from rljob_runtime.rewards.process import WorkerStartError
from rljob_runtime.run_folder import (
    Begin,
    FolderBusy,
    FolderFailed,
    FolderRefused,
    Held,
    RunOptions,
    held,
    holds_run,
)
from rljob_runtime.site.desired import DesiredState, desired_state_of
from rljob_runtime.site.own_start import OwnStart, created
from rljob_runtime.site.site import Site

log = logging.getLogger(__name__)

_READ_SECONDS = 300.0
"""How long the driver tries to read its RLJob."""
_BUSY_SECONDS = 600.0
"""An earlier attempt's driver writes a checkpoint before it lets go of the run's folder."""
_RETRY_SECONDS = 2.0
"""Between two attempts at the run's folder."""
_ANOTHER_RELEASE = (
    "(The cluster's definition of RLJobs accepted it: it and this image are of different releases. Name an "
    "image of the definition's release in spec.image.)"
)
_TRAINED_BEFORE = (
    # After the operator's "Trained 9 of 9 steps."
    "All of them had been trained before, by an earlier attempt or an earlier RLJob of this name: none was "
    "trained now. An RLJob of another name begins anew; more training.schedule.totalSteps or epochs train on."
)
_MESSAGE_CHARACTERS = 1000
"""Most of a failure's reason that is left for the operator, which puts it into a condition's message."""


class Refused(ValueError):
    """The job cannot run as it is; the message says why."""


def drive(environment: Mapping[str, str] = os.environ) -> int:
    """Run the job that the environment names; returns an exit code."""
    # Before anything else: a SIGTERM at any moment ends the driver with the code of a stop.
    signal.signal(signal.SIGTERM, _stop)
    termination_log = Path(environment.get("RLJOB_TERMINATION_LOG") or TERMINATION_LOG)
    try:
        outcome = _drive(read_settings(environment), environment)
    except (Refused, FolderRefused, SettingsError, CredentialsError) as error:
        # What refuses `rljob run` may have passed when the next attempt begins: a folder that is held, a full
        # disk.
        passing = isinstance(error, FolderBusy | FolderFailed)
        code = ExitCode.FAILED if passing else ExitCode.REFUSED
        outcome = Outcome(code, str(error))
    except (ApiError, JobGone, WorkerStartError) as error:
        outcome = Outcome(ExitCode.FAILED, str(error))
    if outcome.why is not None:
        why = in_a_cluster(outcome.why)
        print(f"rljob: {why}", file=sys.stderr)
        _leave(termination_log, why)
    elif outcome.trained_before:
        _leave(termination_log, _TRAINED_BEFORE)
    return outcome.code


def _drive(settings: Settings, environment: Mapping[str, str]) -> Outcome:
    # What is logged before the run has a folder; `carry_out` sets this anew.
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    # In a pod nothing else counts: a KUBECONFIG that an image brings along is another cluster's.
    named = settings.kubeconfig
    credentials = find_credentials(named) if named else in_cluster(environment)
    found = asyncio.run(_read(credentials, settings.identity))
    # In a pod, relative paths in the job are relative to the container's working folder.
    job, folder = parse(found), Path.cwd()
    # Both reach more people than the data may: errors the status, warnings the pod's log.
    errors, warnings = check_job(job, folder, settings.reward_host, quoting=False)
    if errors:
        raise Refused(_told(errors))
    for warning in warnings:
        log.warning("%s", warning)
    uid, desired = found["metadata"]["uid"], _desired(found)
    with _held(settings.run_folder, job) as held_folder:
        if completed.completed_before(found):
            asyncio.run(_say_completed(credentials, settings.identity, uid, completed.take_back_completed))
        options = RunOptions(
            held_folder.folder, folder, held_folder.resumes, live=False, begin=held_folder.begin,
            reward_host=settings.reward_host,
        )  # fmt: skip
        start = OwnStart()
        start.process("check", created())
        outcome = carry_out(job, options, lambda _: _open_site(settings, credentials, uid, desired), start)
        if outcome.code == ExitCode.DONE:
            asyncio.run(_say_completed(credentials, settings.identity, uid, completed.say_completed))
        return outcome


@asynccontextmanager
async def _open_site(
    settings: Settings, credentials: Credentials, uid: str, desired: DesiredState
) -> AsyncIterator[Site]:
    """The cluster, with warnings among what the driver prints."""
    printed = logging.StreamHandler(sys.stdout)
    printed.setLevel(logging.WARNING)
    printed.setFormatter(logging.Formatter("%(asctime)s  %(levelname)s %(message)s", "%H:%M:%S"))
    logging.getLogger().addHandler(printed)
    async with cluster_site(settings, credentials, uid, desired) as site:
        yield site


# Each with a client of its own: a connection belongs to the event loop that it was opened in.
async def _say_completed(
    credentials: Credentials,
    identity: Identity,
    uid: str,
    say: Callable[[ApiClient, Identity, str, random.Random], Awaitable[None]],
) -> None:
    async with ApiClient(credentials, completed.FIELD_MANAGER) as client:
        await say(client, identity, uid, random.Random())


async def _read(credentials: Credentials, identity: Identity) -> dict[str, Any]:
    async with ApiClient(credentials) as client:
        return await read_job(client, identity, _READ_SECONDS, random.Random())


def parse(found: Mapping[str, Any]) -> RLJob:
    """The RLJob as the API server returns it, without its status and without fields of a newer release, which
    are told in the log. Raises `Refused`."""
    try:
        # Nothing here needs the status.
        stored = read_stored(RLJob, {key: value for key, value in found.items() if key != "status"})
    except TooDeep as error:
        raise Refused(str(error)) from None
    except StoredError as error:
        # Exit code 2 fails the job for good. Training without what was asked for would be worse.
        raise Refused(f"{error} {_ANOTHER_RELEASE}") from None
    if stored.left_out:
        log.warning(
            "the cluster's definition of RLJobs is newer than this image, which leaves out what it does not "
            "know: %s",
            name_fields(stored.left_out),
        )
    return stored.value


def _desired(found: Mapping[str, Any]) -> DesiredState:
    try:
        return desired_state_of(found)
    except ValueError as error:
        raise Refused(str(error)) from None


@contextmanager
def _held(folder: Path, job: RLJob) -> Iterator[Held]:
    """Hold the run's folder, in which a run is gone on with. Raises `FolderRefused`."""
    deadline = time.monotonic() + _BUSY_SECONDS
    begin = Begin.RESUME if holds_run(folder) else Begin.NEW
    # The run's folder keeps a manifest, which `rljob export` reads: here it is the RLJob as it was read.
    document = job.model_dump(mode="json", by_alias=True, exclude_none=True)
    manifest = yaml.safe_dump(document, sort_keys=False, allow_unicode=True).encode()
    with ExitStack() as stack:
        while True:
            try:
                found = stack.enter_context(held(folder, manifest, begin))
                break
            except FolderBusy:
                if time.monotonic() > deadline:
                    raise
                # A lock that another host holds gives no event.
                time.sleep(_RETRY_SECONDS)
        yield found


def _told(found: list[Problem]) -> str:
    """The problems, joined in one line."""
    return "; ".join(map(str, found))


def _leave(termination_log: Path, why: str) -> None:
    """Leave the line where Kubernetes shows it."""
    try:
        termination_log.write_text(why[:_MESSAGE_CHARACTERS])
    except OSError as error:
        log.warning("%s: the reason is not left there: %s", termination_log, error.strerror)


def _stop(number: int, frame: object) -> None:
    """SIGTERM before the job runs, which then has a handler of its own."""
    sys.exit(ExitCode.STOPPED)
