"""From events and metrics to what a person asks: did it learn, where did the time go, what was slow.

Guarantees: pure over its inputs; reads the events once, step by step, in memory that does not grow with the
number of events; events of work that a restart threw away are left out and counted.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rljob_runtime.data.length_trace import LENGTHS_FILE
from rljob_runtime.trace.analyse.event_files import Tally, first_step, read_steps, read_workers
from rljob_runtime.trace.analyse.length_duration import LengthDuration
from rljob_runtime.trace.analyse.predictions import Predictions, read_predictions
from rljob_runtime.trace.analyse.request_phases import PhaseBook
from rljob_runtime.trace.analyse.requests import RequestBook
from rljob_runtime.trace.analyse.reward_by_length import RewardByLength
from rljob_runtime.trace.analyse.scheduling import SchedulingBook
from rljob_runtime.trace.analyse.sketch import Sketch
from rljob_runtime.trace.analyse.step_detail import DetailBook, StepDetail
from rljob_runtime.trace.analyse.usage import PoolUse, WorkerUse, event_shares, kind_of, pool_uses
from rljob_runtime.trace.analyse.what_if import TailSums
from rljob_runtime.trace.analyse.windows import (
    Anomaly,
    Window,
    choose_steps,
    find_anomalies,
    lost_seconds,
    superseded,
    windows_from_events,
    windows_from_metrics,
)
from rljob_runtime.trace.analyse.worker_starts import StartBook
from rljob_runtime.trace.analyse.worker_use import WorkerUseBook
from rljob_runtime.trace.record.event_log import EVENTS_FOLDER, STATES, Event, WorkerInfo
from rljob_runtime.trace.record.metrics_log import METRICS_FILE, Metrics, read_metrics
from rljob_runtime.trace.record.start_log import Start, read_starts

DETAILED_STEPS = 24
"""Steps that are kept in detail. The size of the page grows with them, and not with the length of the run."""


@dataclass
class EventUse:
    """One kind of event in one pool."""

    event: str
    pool: str
    seconds: Sketch = field(default_factory=Sketch)
    """Durations, in seconds."""
    by_step: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Count and total seconds of each step."""

    def add(self, step: int, durations: Sequence[float]) -> None:
        """Count one step's events."""
        self.seconds.extend(durations)
        self.by_step[step] = (len(durations), sum(durations))

    def total_at(self, step: int) -> float:
        """Total seconds of the step's events."""
        return self.by_step.get(step, (0, 0.0))[1]


@dataclass
class Analysis:
    """What is known of a run."""

    metrics: Metrics
    starts: list[Start]
    """When training began, and each time that it began again."""
    windows: list[Window]
    pools: list[PoolUse]
    event_uses: dict[tuple[str, str], EventUse]
    """By (pool, event)."""
    requests: RequestBook
    scheduling: SchedulingBook
    predictions: Predictions
    use: WorkerUseBook
    """What workers used."""
    phases: PhaseBook
    """What the time of requests, rewards and groups was made of."""
    tail: TailSums
    """What the last responses of each step cost, and what would have saved it."""
    lengths: LengthDuration
    """How long responses took, by how long they became."""
    rewards: RewardByLength
    """What they were worth, by how long they became, and where they were cut off."""
    anomalies: list[Anomaly]
    details: list[StepDetail]
    lost_seconds: float
    """Time that interruptions cost: work that was thrown away, and starting again."""
    superseded: int
    """Events of steps that were trained again, which count in no figure but the use of workers' time."""
    unreadable: int
    """Lines of event files that could not be read."""
    recorded_from: int = 0
    """First step of which there are events; those of earlier ones were removed, to make room."""
    left_out: str = ""
    """What a person is told of lines that could not be read."""
    worker_starts: StartBook = field(default_factory=StartBook)
    """Where the time of workers' starts went, which is in no other figure."""

    @property
    def seconds(self) -> float:
        """Time of all steps."""
        return sum(window.seconds for window in self.windows)

    @property
    def recorded(self) -> list[Window]:
        """The windows of the steps of which there are events. Of a long run some steps have events and no
        window, as their rows are gone: what is divided by the time of windows is summed over their steps."""
        return [window for window in self.windows if window.step >= self.recorded_from]

    def event_share(self, event: str) -> float:
        """Seconds of an event over all pools, for each second of the steps of which there are events. What
        comes after the last step is none."""
        uses = [use for (_, name), use in self.event_uses.items() if name == event]
        total = sum(use.total_at(window.step) for use in uses for window in self.recorded)
        return total / max(sum(window.seconds for window in self.recorded), 1e-9)

    def at_a_time(self, pool: PoolUse, event: str) -> float:
        """How many of an event one of the pool's workers was in at a time, on average."""
        use = self.event_uses[pool.pool, event]
        return sum(use.total_at(window.step) for window in self.recorded) / max(pool.seconds, 1e-9)

    @property
    def interruptions(self) -> list[Start]:
        """Each time that training began again."""
        return [start for start in self.starts if start.cause != "new"]

    def event_shares(self, pool: PoolUse) -> dict[str, float]:
        """Share of the pool's time that each of its events took, over the whole run; together at most 1."""
        return event_shares(pool.overall, self._totals(pool.pool))

    def event_shares_by_step(self, pool: PoolUse) -> list[dict[str, float]]:
        """The same for each window."""
        whole = self._totals(pool.pool)
        found = []
        for window, split in zip(self.windows, pool.by_step, strict=True):
            # An event may carry another step's number than the one in whose time it fell, as when weights are
            # published between two steps: a kind without an event of this step is divided as in the run.
            own = {name: self.event_uses[pool.pool, name].total_at(window.step) for name in whole}
            shares, usual = event_shares(split, own), event_shares(split, whole)
            kinds = {kind_of(name) for name, seconds in own.items() if seconds}
            found.append(
                {name: share if kind_of(name) in kinds else usual[name] for name, share in shares.items()}
            )
        return found

    def _totals(self, pool: str) -> dict[str, float]:
        """Seconds of each of a pool's events."""
        return {name: use.seconds.total for (of, name), use in self.event_uses.items() if of == pool}

    def with_role(self, role: str) -> list[PoolUse]:
        """The pools of one role: "trainer", "engine" or "other"."""
        return [pool for pool in self.pools if pool.role == role]


def analyse_run(run_folder: Path, step: int | None = None) -> Analysis:
    """Analyse what a run has written. Steps are chosen to be kept in detail; `step`, if given, is one of
    them."""
    metrics, starts = read_metrics(run_folder / METRICS_FILE), read_starts(run_folder)
    events, tally = run_folder / EVENTS_FOLDER, Tally()
    windows = windows_from_metrics(metrics, starts)
    if not windows:
        windows = _windows_from_files(events)
    recorded_from = first_step(events)
    steps = read_steps(events, tally)
    analysis = analyse(metrics, starts, windows, read_workers(events), steps, step, recorded_from)
    analysis.unreadable, analysis.left_out = tally.unreadable, tally.left_out
    analysis.predictions = read_predictions(run_folder / LENGTHS_FILE)
    return analysis


def analyse(
    metrics: Metrics,
    starts: Sequence[Start],
    windows: Sequence[Window],
    known: Sequence[WorkerInfo],
    steps: Iterable[tuple[int, Sequence[Event]]],
    detailed: int | None = None,
    recorded_from: int = 0,
) -> Analysis:
    """Analyse events, given step by step in order; `detailed` is a step that is kept in detail as well. Of
    steps before `recorded_from` there are no events any more."""
    anomalies = find_anomalies(windows)
    recorded = [window for window in windows if window.step >= recorded_from]
    odd = [anomaly for anomaly in anomalies if anomaly.step >= recorded_from]
    chosen = choose_steps(recorded, odd, DETAILED_STEPS)
    details = DetailBook(windows, chosen if detailed is None else [*chosen, detailed])
    books = _Books(starts, known, details)
    for step, events in steps:
        books.add_step(step, events)
    return Analysis(
        metrics=metrics,
        starts=list(starts),
        windows=list(windows),
        # A worker may be known by its file alone: one that was lost before its first event.
        pools=pool_uses([worker for worker in books.workers.values() if worker.recorded], windows),
        event_uses=books.uses,
        requests=books.requests,
        scheduling=books.scheduling,
        # `analyse_run` reads them: they are in a file of their own.
        predictions=Predictions(),
        use=books.use,
        phases=books.phases,
        tail=books.tail,
        lengths=books.lengths,
        rewards=books.rewards,
        anomalies=anomalies,
        details=details.details(),
        lost_seconds=lost_seconds(windows),
        superseded=books.thrown_away,
        unreadable=0,
        recorded_from=recorded_from,
        worker_starts=books.worker_starts,
    )


class _Books:
    """What is counted of the events, step by step."""

    def __init__(self, starts: Sequence[Start], known: Sequence[WorkerInfo], details: DetailBook) -> None:
        self._starts = starts
        self._went_back = [start.time for start in starts if start.goes_back]
        self._details = details
        self.requests = RequestBook(self._went_back)
        self.scheduling, self.use = SchedulingBook(), WorkerUseBook()
        self.worker_starts, self.phases, self.tail = StartBook(), PhaseBook(), TailSums()
        self.lengths, self.rewards = LengthDuration(), RewardByLength()
        self.workers = {(who.pool, who.worker): WorkerUse(who.worker, who.pool, who.host) for who in known}
        self.uses: dict[tuple[str, str], EventUse] = {}
        self.thrown_away = 0
        """Events of steps that were trained again after the run had gone back."""

    def add_step(self, step: int, unordered: Sequence[Event]) -> None:
        """Add the events of the next step."""
        self.worker_starts.add_step(unordered)
        # By their ends: attempts of a response are to come in their order, and covers are built fastest so.
        # Without starts: a worker is there from the moment that it is ready.
        everything = sorted(
            (event for event in unordered if event.event != "start"),
            key=lambda event: event.start + event.duration,
        )
        events = everything
        # A run that never goes back, the usual one, is spared a look at each of its events.
        if self._went_back:
            events = [event for event in everything if not superseded(self._starts, event.step, event.end)]
        self.thrown_away += len(everything) - len(events)
        self._add_workers(everything)
        self._add_durations(step, events)
        # The time lines show all that workers did; requests that were thrown away do not count.
        ended = self.requests.add_step(step, events)
        self._details.add_step(step, everything, ended)
        self.scheduling.add_step(step, events, ended)
        self.phases.add_step(step, events)
        self.tail.add_step(ended)
        self.lengths.add(ended)
        self.rewards.add_step(ended, events)

    def _add_workers(self, everything: Sequence[Event]) -> None:
        """What each worker did. With what was thrown away, of which it was busy too: for the steps that were
        trained meanwhile it was not idle."""
        by_worker: dict[tuple[str, str], list[Event]] = {}
        for event in everything:
            if event.event not in STATES:
                by_worker.setdefault((event.pool, event.worker), []).append(event)
        self.use.add_step(everything)
        for (pool, worker), own in by_worker.items():
            if (pool, worker) not in self.workers:
                self.workers[pool, worker] = WorkerUse(worker, pool)
            self.workers[pool, worker].add(own)

    def _add_durations(self, step: int, events: Sequence[Event]) -> None:
        durations: dict[tuple[str, str], list[float]] = {}
        for event in events:
            durations.setdefault((event.pool, event.event), []).append(event.duration)
        for (pool, name), seconds in durations.items():
            if (pool, name) not in self.uses:
                self.uses[pool, name] = EventUse(name, pool)
            self.uses[pool, name].add(step, seconds)


def _windows_from_files(events: Path) -> list[Window]:
    """Windows of a run that has events and no metrics; reads the events once more."""
    ends = {
        step: (min(event.start for event in found), max(event.end for event in found))
        for step, everything in read_steps(events, Tally())
        if (found := [event for event in everything if event.event != "start"])
    }
    return windows_from_events(ends)
