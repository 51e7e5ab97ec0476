"""Runs a job on one machine, from manifest to exit code.

Guarantees: the exit code says what became of the job (`exit_codes.py`); every error that ends it is one line
for a person, with the traceback in the run's driver.log; the first Ctrl-C (or SIGTERM) stops after the step
that is being trained, with a checkpoint, the second at once; a report is written however the job ends.
"""

import asyncio
import logging
import os
import signal
import sys
import time

from rljob_api import RLJob
from rljob_runtime import local_ray
from rljob_runtime.data.errors import DataError
from rljob_runtime.data.prompts import PromptSource
from rljob_runtime.data.tokenizer import build_tokenizer
from rljob_runtime.describe import header_of
from rljob_runtime.engine_pool import EnginePool
from rljob_runtime.exit_codes import ExitCode
from rljob_runtime.job_plan import plan_job
from rljob_runtime.metrics import MetricsLog
from rljob_runtime.run_folder import RunOptions
from rljob_runtime.session import Session
from rljob_runtime.trace.report import write_report
from rljob_runtime.tracker import Tracker
from rljob_runtime.view import View, make_view
from rljob_runtime.view.progress import Progress, Summary

log = logging.getLogger(__name__)

_HINT = "Go on with: rljob run … --resume"


def run(job: RLJob, options: RunOptions) -> int:
    """Run the job; returns an exit code."""
    _log_to(options)
    view = make_view(sys.stdout, options.live)
    began = time.time()
    running = _Running(job, options, view)
    try:
        code = asyncio.run(running.main())
        outcome = "done" if code == ExitCode.DONE else "stopped"
        why = None
    except Exception as error:
        cause = _root(error)
        log.error("the job failed", exc_info=error)
        code = ExitCode.REFUSED if isinstance(cause, DataError) else ExitCode.FAILED
        outcome, why = "failed", f"{_one_line(cause)} (more in {options.folder / 'driver.log'})"
    view.finish(_summary(running, options, outcome, time.time() - began))
    if why is not None:
        print(f"rljob: {why}", file=sys.stderr)
    return code


class _Running:
    """One call of `run`."""

    def __init__(self, job: RLJob, options: RunOptions, view: View) -> None:
        self.session: Session | None = None
        self.tracker: Tracker | None = None
        self._job = job
        self._options = options
        self._view = view
        self._began = time.time()

    async def main(self) -> int:
        job, options = self._job, self._options
        training = job.spec.training
        folder = options.manifest_folder / training.model.path if training.model.path else None
        tokenizer = build_tokenizer(training.tokenizer, options.manifest_folder, folder)
        prompts = PromptSource(training.data, tokenizer, training.seed, options.manifest_folder)
        plan = plan_job(job, prompts.rows)
        header = header_of(job, options.manifest_folder)
        self._view.start(Progress(header, total_steps=plan.total_steps, activity="starting"))

        def track(pool: EnginePool, first_step: int) -> Tracker:
            metrics = MetricsLog(options.folder, first_step if options.resume else None)
            self.tracker = Tracker(
                header, pool, metrics, time.time, first_step, plan.total_steps, plan.capacity_samples,
                with_kl=training.algorithm.kl is not None,
            )  # fmt: skip
            return self.tracker

        with local_ray.started(job):
            self.session = Session(job, options, plan, tokenizer, prompts, self._view.message)
            self._on_signals(self.session)
            try:
                await self.session.run(track, self._show)
            finally:
                if self.tracker is not None:
                    self.tracker.close()
        return ExitCode.DONE if self.session.steps_done == plan.total_steps else ExitCode.STOPPED

    def _show(self) -> None:
        if self.tracker is not None:
            self._view.update(self.tracker.progress)

    def _on_signals(self, session: Session) -> None:
        """The first signal stops the session, the second ends the process."""
        asked = False

        def stop() -> None:
            nonlocal asked
            if asked:
                hint = f"The last checkpoint is whole. {_HINT}"
                seconds = time.time() - self._began
                self._view.finish(Summary(session.steps_done, seconds, outcome="stopped at once", hint=hint))
                # Ray's processes and the engines watch this one and end with it.
                os._exit(ExitCode.STOPPED)
            asked = True
            self._view.message("stopping after this step, with a checkpoint (again: at once)")
            session.stop()

        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop)


def _summary(running: _Running, options: RunOptions, outcome: str, seconds: float) -> Summary:
    report = None
    if running.tracker is not None:
        report = str(write_report(options.folder))
    session = running.session
    checkpoint = session.newest_checkpoint() if session is not None else None
    return Summary(
        step=session.steps_done if session is not None else 0,
        seconds=seconds,
        reward=running.tracker.recent_reward() if running.tracker is not None else None,
        outcome=outcome,
        report=report,
        checkpoint=str(checkpoint) if checkpoint is not None else None,
        hint=_HINT if outcome != "done" and checkpoint is not None else None,
    )


def _log_to(options: RunOptions) -> None:
    """Everything that is logged goes to the run's driver.log."""
    handler = logging.FileHandler(options.folder / "driver.log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def _root(error: BaseException) -> BaseException:
    """The first single error in a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _one_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    text = lines[-1] if lines else ""
    return (
        text if isinstance(error, (DataError, RuntimeError)) and text else f"{type(error).__name__}: {text}"
    )
