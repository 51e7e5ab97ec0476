"""Runs a job, from manifest to exit code.

Guarantees: the exit code says what became of the job (`exit_codes.py`); every error that ends it is one line
for a person, with the traceback in the run's driver.log; a job that is refused before a part of it was
started leaves what is in its folder as it was, but for that log; the first Ctrl-C (or SIGTERM, or
SIGHUP) stops after the step that is being trained, with a checkpoint, the second at once; a job that is done
or stopped leaves its model, and a report is written however it ends, unless a signal comes while it is waited
for.
"""

import asyncio
import errno
import logging
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NoReturn

from rljob_api import RLJob
from rljob_runtime.data.errors import DataError
from rljob_runtime.data.forced_lengths import forced_lengths
from rljob_runtime.data.prompts import PromptSource
from rljob_runtime.data.tokenizer import build_tokenizer
from rljob_runtime.devices import DeviceMissing
from rljob_runtime.driver.assemble import assembled
from rljob_runtime.driver.ending import ReportWriter
from rljob_runtime.driver.held_out import held_out_sets
from rljob_runtime.driver.job_inputs import JobInputs
from rljob_runtime.driver.job_settings import Origin, job_settings
from rljob_runtime.driver.model_folder import (
    check_checkpoints,
    checkpoint_root,
    initial_folder,
    place_checkpoints,
)
from rljob_runtime.driver.observer import RunObserver
from rljob_runtime.driver.open_teacher import TeacherUnfit, opened_teacher
from rljob_runtime.driver.resume import ResumeRefused, check_resume
from rljob_runtime.driver.resumed_model import check_model
from rljob_runtime.driver.reward_failures import RewardsNeverWorked
from rljob_runtime.driver.run_log import RunLog
from rljob_runtime.driver.session import Session
from rljob_runtime.driver.stop import Standing, StopRequest, what_a_stop_does
from rljob_runtime.driver.storage import StorageNotShared
from rljob_runtime.exit_codes import ExitCode
from rljob_runtime.job_errors import OwnFunctionFailed, RewardsUnfit, UnsupportedModel
from rljob_runtime.manifest.describe import header_of
from rljob_runtime.own_functions import FunctionLoadError
from rljob_runtime.run_folder import FolderBusy, FolderFailed, FolderRefused, RunOptions, mark_finished
from rljob_runtime.site.descendants import kill_descendants
from rljob_runtime.site.machine import Machine
from rljob_runtime.site.own_start import OwnStart
from rljob_runtime.site.ray_folder import RayFolderUnfit
from rljob_runtime.site.site import Site, one_machine
from rljob_runtime.site.stop_signals import stop_signals
from rljob_runtime.trainer.checkpoint import CheckpointUnreadable, newest, step_of
from rljob_runtime.view import View, make_view
from rljob_runtime.view.lasting import LastingView
from rljob_runtime.view.progress import Progress, Summary
from rljob_runtime.weights.route import transport_of
from rljob_runtime.weights.sampled_digest import sampled_digest
from rljob_runtime.weights.transport import TransportError

log = logging.getLogger(__name__)

_REFUSED = (
    DataError, DeviceMissing, FolderRefused, FunctionLoadError, OwnFunctionFailed, RayFolderUnfit,
    ResumeRefused, RewardsNeverWorked, RewardsUnfit, StorageNotShared, TeacherUnfit, TransportError,
    UnsupportedModel,
)  # fmt: skip
"""Errors that the same job would only meet again, but for those in `_PASSING`."""
_PASSING = (FolderBusy, FolderFailed)
_ONE_SIGNAL = 0.2
"""Seconds in which signals are one: `timeout` sends its own to the process, and again to its group."""
_REPORT_SECONDS = 60.0
"""How long a run that has ended waits for its report."""


OpenSite = Callable[[RLJob], AbstractAsyncContextManager[Site]]
"""Opens the site that a job runs at: one machine, or a cluster."""


@dataclass(frozen=True)
class Outcome:
    """How a job ended."""

    code: int
    """Exit code."""
    why: str | None = None
    """What ended the job, in one line; None where it is done, or was stopped as asked."""
    trained_before: bool = False
    """Whether the job is done, and all its steps had been trained before it was begun here."""


def run(
    job: RLJob, options: RunOptions, machine: Machine, start: OwnStart, before_signals: Callable[[], None]
) -> int:
    """Run the job on this machine, which was started for it; returns an exit code. `start` has the parts of
    the start until now; `before_signals` is called once, before the job answers signals itself. Raises
    `FolderRefused`."""
    outcome = carry_out(job, options, partial(one_machine, machine=machine), start, before_signals)
    if outcome.why is not None:
        print(f"rljob: {outcome.why}", file=sys.stderr)
    return outcome.code


def carry_out(
    job: RLJob,
    options: RunOptions,
    open_site: OpenSite,
    start: OwnStart,
    before_signals: Callable[[], None] = lambda: None,
) -> Outcome:
    """Run the job at the site that `open_site` opens, and say how it goes. `start` and `before_signals` as
    in `run`. Raises `FolderRefused`."""
    # First, for it may refuse the job, which then leaves no log.
    check_checkpoints(job, options)
    run_log = RunLog(options.folder)
    view = LastingView(make_view(sys.stdout, options.live), sys.stdout)
    began = time.time()
    running = _Running(job, options, open_site, view, start, before_signals, run_log)
    try:
        code = asyncio.run(running.main())
        ended, why, again = "done" if code == ExitCode.DONE else "stopped", None, code != ExitCode.DONE
        if code == ExitCode.DONE:
            _mark_finished(options.folder)
    # Whatever ends a job is told in one line; all of it stands in the log.
    except Exception as error:
        cause = _root(error)
        log.error("the job failed", exc_info=error)
        refused = isinstance(cause, _REFUSED) and not isinstance(cause, _PASSING)
        code = ExitCode.REFUSED if refused else ExitCode.FAILED
        ended, why = "failed", _with_log(_one_line(cause), options.folder / "driver.log")
        # It would only meet the same checkpoint.
        again = not isinstance(cause, CheckpointUnreadable)
    running.finish(ended, time.time() - began, again)
    return Outcome(code, why, code == ExitCode.DONE and running.trained_before)


class _Running:
    """One call of `carry_out`."""

    def __init__(
        self,
        job: RLJob,
        options: RunOptions,
        open_site: OpenSite,
        view: View,
        start: OwnStart,
        before_signals: Callable[[], None],
        run_log: RunLog,
    ) -> None:
        self._session: Session | None = None
        self._observer: RunObserver | None = None
        self._report = ReportWriter(options.folder)
        self._model: Path | None = None
        self._job = job
        self._options = options
        self._open_site = open_site
        self._view = view
        self._began = time.time()
        self._start = start
        self._before_signals = before_signals
        self._log = run_log
        self._goes_on = options.resume
        """Whether what is in the run's folder is this job's, to be gone on with."""
        self._stop: StopRequest | None = None
        """None before there is anything to stop."""
        self._one_machine = True
        self._first_step = 0
        """Steps that the job goes on from, as far as it is known."""
        self._signalled: float | None = None
        """When the first signal came, by the monotonic clock."""
        self._checkpoints = checkpoint_root(job, options.folder, options.manifest_folder)

    async def main(self) -> int:
        job, options = self._job, self._options
        training = job.spec.training
        if options.resume and (saved := newest(self._checkpoints)) is not None:
            # Whatever refuses the job, the run has them.
            self._first_step = step_of(saved)
        # What can be refused without starting anything comes first: tokenizer, data, checkpoint, lengths.
        folder = options.manifest_folder / training.model.path if training.model.path else None
        tokenizer = build_tokenizer(training.tokenizer, options.manifest_folder, folder)
        prompts = PromptSource(training.data, tokenizer, training.seed, options.manifest_folder)
        held_out = held_out_sets(training, prompts, tokenizer, options.manifest_folder)
        origin, began_with = Origin(), None
        if options.resume:
            began_with = check_model(job, options.folder, options.manifest_folder)
            origin = check_resume(self._checkpoints, prompts.fingerprint, training.schedule, prompts.rows)
        self._first_step = origin.step
        sizes = job_settings(job, prompts.rows, origin)
        groups = sizes.total_groups if sizes.uids is None else sizes.uids
        forced = forced_lengths(training, options.manifest_folder, groups, prompts.fingerprint)
        settings = job_settings(job, prompts.rows, origin, forced)
        header = header_of(job, options.manifest_folder)
        self._before_signals()
        self._take_signals()
        self._view.start(Progress(header, total_steps=settings.total_steps, activity="starting"))
        async with AsyncExitStack() as stack:
            opening = opened_teacher(training, tokenizer, os.environ, self._view.message)
            teacher = await stack.enter_async_context(opening)
            inputs = JobInputs(job, options, settings, tokenizer, prompts, held_out, teacher, self._start)
            self._observer = observer = RunObserver(inputs, header, self._view, self._report)
            with self._start.part("ray"):
                site = await stack.enter_async_context(self._open_site(job))
            # Again: where the site has connected to a Ray, its library has taken SIGTERM for itself.
            self._take_signals()
            self._stop, self._one_machine = (stop := StopRequest(site.changes)), site.one_machine
            # Only the site tells whether it can work.
            transport_of(job, site.one_machine)
            self._begin()
            try:
                async with assembled(inputs, site, stop, self._view.message) as parts:
                    if began_with is None:
                        weights = initial_folder(job, options.folder, options.manifest_folder)
                        began_with = await asyncio.to_thread(sampled_digest, weights)
                    self._session = Session(
                        job, settings, prompts.fingerprint, self._checkpoints, parts, observer, began_with
                    )
                    await self._session.run(options.resume)
            finally:
                observer.close()
        self._model = await observer.ended()
        return ExitCode.DONE if self._session.done else ExitCode.STOPPED

    def _begin(self) -> None:
        """Nothing is left to be refused before parts start: from here on the run's folder is this job's."""
        self._options.begin()
        self._goes_on = True
        self._log.follow()
        place_checkpoints(self._job, self._options)

    @property
    def trained_before(self) -> bool:
        """Whether the job is done without a step that was trained here."""
        session = self._session
        return session is not None and session.done and session.steps_done == self._first_step

    def finish(self, outcome: str, seconds: float, again: bool) -> None:
        """Say how the job ended; `again`: also how to go on, where there is a checkpoint."""
        for number in stop_signals():  # the loop, which has ended, has taken its handlers along
            signal.signal(number, lambda *_: self._report.give_up())
        tracker = self._observer.tracker if self._observer is not None else None
        report = None
        if tracker is not None:
            report = self._report.finish(_REPORT_SECONDS)
            if report is None:
                command = f"{self._options.program} report {shlex.quote(str(self._options.folder))}"
                self._view.message(f"no report yet; this writes it: {command}")
        if outcome == "done" and self.trained_before:
            self._view.message("all steps had been trained before: none was trained now")
        recent = tracker.recent_reward() if tracker is not None else None
        checkpoint = newest(self._checkpoints) if self._session is not None else None
        self._view.finish(
            Summary(
                step=self._steps_done,
                seconds=seconds,
                reward=recent,
                outcome=outcome,
                lost=self._lost(),
                report=str(report) if report is not None else None,
                checkpoint=str(checkpoint) if checkpoint is not None else None,
                model=str(self._model) if self._model is not None else None,
                hint=self._how_to_go_on() if again and checkpoint is not None else None,
            )
        )

    def _lost(self) -> str | None:
        """What was lost, in sentences; None where nothing was."""
        observer = self._observer
        if observer is None or observer.tracker is None:
            return None
        return " ".join(filter(None, (observer.tracker.lost(), observer.unsent()))) or None

    @property
    def _steps_done(self) -> int:
        return max(self._first_step, self._session.steps_done if self._session is not None else 0)

    def _how_to_go_on(self) -> str | None:
        command = self._options.resume_command
        # Before a new run begins there is nothing, or the run that it was to take the place of.
        return f"Go on with: {command}" if self._goes_on and command is not None else None

    def _take_signals(self) -> None:
        for number in stop_signals():
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        """The first signal asks for a stop, the second ends the process, as the first does where there is
        nothing to stop yet. SIGHUP is no second one: nobody is there to ask again."""
        now = time.monotonic()
        if self._signalled is not None and (number == signal.SIGHUP or now - self._signalled < _ONE_SIGNAL):
            return
        standing = self._standing()
        # In a cluster the processes are those of other pods, which are told that they end.
        nothing_yet = not standing.begun and self._one_machine
        if self._stop is None or self._signalled is not None or nothing_yet:
            before = "stopped before another step" if self._first_step else "stopped before the first step"
            self._end_at_once(before if nothing_yet else "stopped at once")
        self._signalled = now
        self._view.message(f"{what_a_stop_does(standing)} (again: at once)")
        self._stop.ask()

    def _standing(self) -> Standing:
        if self._session is None:
            return Standing(begun=False, steps=self._first_step, saved=self._first_step)
        trained = self._observer is not None and self._observer.export is not None
        return replace(self._session.standing, trained=trained)

    def _end_at_once(self, outcome: str) -> NoReturn:
        if self._goes_on and newest(self._checkpoints) is not None:
            self._view.message("the last checkpoint is whole")
        seconds, hint = time.time() - self._began, self._how_to_go_on()
        self._view.finish(Summary(self._steps_done, seconds, outcome=outcome, hint=hint))
        # Engines, which have a session of their own, watch this process and end with it.
        kill_descendants()
        os._exit(ExitCode.STOPPED)


def _mark_finished(folder: Path) -> None:
    try:
        mark_finished(folder)
    except OSError as error:  # the job is done all the same; only --auto-resume will not know
        log.warning("that the job is done cannot be recorded: %s", error)


def _root(error: BaseException) -> BaseException:
    """The error itself, or of a group the first that is none."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _one_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{error.filename}: {error.strerror}: make room, and go on with --resume"
    lines = str(error).strip().splitlines()
    text = lines[-1] if lines else ""
    # Errors of this project are sentences for people; of others the type is needed too.
    told = isinstance(error, (*_REFUSED, RuntimeError)) and text
    return text if told else f"{type(error).__name__}: {text}"


def _with_log(told: str, log_file: Path) -> str:
    """What ended a job, with where more of it stands: in the file that the error names, where it does."""
    return told if " (more in " in told else f"{told} (more in {log_file})"
