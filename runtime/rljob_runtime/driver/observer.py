"""What follows a run: metrics, `status.training`, the view; and what the run leaves when it is trained."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rljob_runtime.driver.ending import ReportWriter, export_model
from rljob_runtime.driver.evaluation_status import evaluation_status
from rljob_runtime.driver.job_inputs import JobInputs
from rljob_runtime.driver.load_watch import LoadWatch
from rljob_runtime.driver.logger_watch import LoggerWatch
from rljob_runtime.driver.parts import Parts
from rljob_runtime.driver.ready import tell_ready
from rljob_runtime.driver.sample_board import SampleBoard
from rljob_runtime.driver.tracker import Tracker
from rljob_runtime.groups.source_rewards import source_rewards
from rljob_runtime.samples import decode_group
from rljob_runtime.trace.loggers.open import open_loggers
from rljob_runtime.trace.record.evaluation_log import EvaluationLine, failing, in_words, scalars
from rljob_runtime.trace.record.event_room import EventRoom
from rljob_runtime.trace.record.metrics_log import MetricsLog
from rljob_runtime.trace.record.start_log import Cause
from rljob_runtime.trainer.step_metrics import StepMetrics
from rljob_runtime.view import View
from rljob_runtime.view.progress import Header


class RunObserver:
    """Implements the session's `Observer`."""

    def __init__(self, inputs: JobInputs, header: Header, view: View, report: ReportWriter) -> None:
        """`header`: what is shown of the job; `report` is begun when the job is trained."""
        self.tracker: Tracker | None = None
        """Made once the first step is known."""
        self.export: asyncio.Task[Path | None] | None = None
        """The writing of the trained model, once the job is trained."""
        self._inputs = inputs
        self._header = header
        self._view = view
        self._report = report
        self._parts: Parts | None = None
        self._metrics: MetricsLog | None = None
        self._loggers: LoggerWatch | None = None
        self._ending: asyncio.Task[None] | None = None
        """The end of the loggers, which comes before the report: that tells of them."""
        self._of_sources: dict[str, dict[str, float]] = {}
        """Rewards of the step that is trained, by source."""
        self._event_room: EventRoom | None = None
        """What bounds the events; None where none are recorded."""
        self._making_room: asyncio.Task[None] | None = None
        """The look at files that may have grown too large."""
        self._load_watch: LoadWatch | None = None
        self._watching: asyncio.Task[None] | None = None
        self._ready = False
        """Whether training has begun."""

    def begins(self, parts: Parts, first_step: int) -> None:
        """The job begins with this step, or goes on from it."""
        settings, folder, job = self._inputs.settings, self._inputs.options.folder, self._inputs.job
        wanted = job.spec.training.loggers
        loggers = open_loggers(wanted, job.metadata.name, folder)
        self._loggers = LoggerWatch(loggers, folder, wanted.timeout_seconds, time.time)
        metrics = MetricsLog(folder, loggers=loggers)
        self._parts = parts
        if self._inputs.events_folder is not None:
            most = job.spec.training.profiling.max_events_mi_b * 2**20
            self._event_room = EventRoom(self._inputs.events_folder, most)
        self.tracker = Tracker(
            self._header, parts.pool, metrics, time.time, first_step, settings.total_steps,
            settings.capacity_samples, with_kl=job.spec.training.algorithm.kl is not None,
            with_teacher=job.spec.training.algorithm.distillation is not None,
        )  # fmt: skip
        parts.says.on_kept = SampleBoard(metrics.show)
        parts.site.draft.progress(self.tracker.progress)
        self._metrics = metrics
        if parts.evaluations is not None:
            parts.evaluations.on_evaluated = self._evaluated
            if parts.evaluations.newest is not None:
                parts.site.draft.evaluated(evaluation_status(parts.evaluations.newest))
        # The tracker goes by the clock of engines and events, which may be set back; what is paced may not.
        self._load_watch = LoadWatch(self.tracker, parts.site.draft, self._view, time.monotonic)
        self._watching = parts.spawn(self._load_watch.run())

    def training(self, step: int) -> None:
        """Trainer and engines are ready: training begins, or goes on after an interruption, with `step`."""
        assert self.tracker is not None and self._parts is not None, "`begins` comes first"
        self.tracker.begin(step)
        if not self._ready:
            self._ready = True
            tell_ready(self._inputs, self._parts, step, time.time())

    def interrupted(self, cause: Cause, why: str = "") -> None:
        """Training stops, and goes on with the next `training`; `why`: what broke, in words."""
        assert self.tracker is not None and self._parts is not None, "`begins` comes first"
        self.tracker.interrupted(cause, why)
        self._parts.site.draft.trains_no_more()
        self._view.update(self.tracker.progress)

    def step_begins(self, uids: Sequence[int]) -> None:
        """The trainer begins with a step of these groups, which wait in the outbox."""
        assert self.tracker is not None and self._parts is not None, "`begins` comes first"
        prompts = self._inputs.prompts
        if prompts.names:
            # Now: when the step is trained, they are kept no more.
            groups = map(decode_group, self._parts.outbox.frames_of(uids))
            passed = self._inputs.job.spec.training.data.pass_reward
            self._of_sources = source_rewards(groups, prompts.source_of, passed)
        self.tracker.step_begins()

    def step_done(
        self, metrics: StepMetrics, uids: Sequence[int], waiting_samples: int, version: int, seconds: float
    ) -> None:
        """A step is trained."""
        assert self.tracker is not None and self._parts is not None, "`begins` comes first"
        assert self._load_watch is not None and self._loggers is not None
        counts, curriculum = self._parts.rollouter.counts, self._parts.curriculum
        more: dict[str, Any] = {**self._of_sources, **self._loggers.metrics()}
        if curriculum is not None:
            more["curriculum"] = curriculum.metrics()
        self.tracker.planned(metrics.step + 1 + self._parts.rollouter.steps_left)
        self.tracker.step_done(metrics, uids, waiting_samples, version, seconds, counts, more)
        self._parts.site.draft.progress(self.tracker.progress)
        self._load_watch.told()
        self._view.update(self.tracker.progress)
        for words in self._loggers.news():
            self._view.message(words)
        recorded = self._event_room is not None or self._parts.lengths.records
        # One look at a time: storage may be slow, and steps short.
        if recorded and (self._making_room is None or self._making_room.done()):
            self._making_room = self._parts.spawn(asyncio.to_thread(self._make_room, metrics.step))

    def _make_room(self, step: int) -> None:
        """Keep the files of the run within their bounds, now that `step` was trained. Blocking."""
        assert self._parts is not None, "`begins` comes first"
        if self._event_room is not None:
            self._event_room.look(step)
        self._parts.lengths.make_room()

    def _evaluated(self, line: EvaluationLine) -> None:
        """An evaluation is over."""
        assert self._parts is not None and self._metrics is not None, "`begins` comes first"
        self._metrics.curves(line.step, scalars(line))
        self._parts.site.draft.evaluated(evaluation_status(line))
        self._view.message(in_words(line))
        for words in failing(line):
            self._view.message(words)

    def trained(self) -> None:
        """Make what the run leaves behind, while its parts are taken down."""
        self._nothing_is_trained()
        if self._loggers is not None and self._loggers.loggers:
            self._ending = asyncio.create_task(self._end_loggers(self._loggers))
        else:
            self._report.start()
        inputs, adapter = self._inputs, self._inputs.job.spec.training.adapter
        self.export = asyncio.create_task(
            export_model(inputs.options.folder, inputs.checkpoints, adapter is not None)
        )

    async def _end_loggers(self, loggers: LoggerWatch) -> None:
        # A thread: they may take as long as `loggers.timeoutSeconds`.
        await asyncio.to_thread(loggers.close)
        self._report.start()

    async def ended(self) -> Path | None:
        """Wait for what `trained` has begun, but for the report. Returns the folder of the trained model;
        None where there is none."""
        model = await self.export if self.export is not None else None
        if self._ending is not None:
            await self._ending
        return model

    def unsent(self) -> str | None:
        """What loggers did not get, in sentences; None where they got all."""
        found = self._loggers.unsent if self._loggers is not None else []
        return " ".join(each.sentence for each in found) or None

    def close(self) -> None:
        """Close the metrics; the status says nothing of busy pools, however the job ended."""
        self._nothing_is_trained()
        if self.tracker is not None:
            self.tracker.close()
        if self._loggers is not None and self._ending is None:
            self._loggers.close()

    def _nothing_is_trained(self) -> None:
        if self._watching is not None and self._parts is not None:
            self._watching.cancel()
            self._parts.site.draft.trains_no_more()
