"""`rljob trace fit`: a run's measured costs and lengths as assumptions for `rljob simulate`.

Guarantees: reads the run's folder and writes nothing; what the run does not tell is left at its default and
said so in a comment.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import yaml

from rljob_api.job import Spec
from rljob_runtime.data.length_trace import LENGTHS_FILE, LengthTrace, LengthTraceError, read_length_trace
from rljob_runtime.least_squares import fit_nonnegative
from rljob_runtime.manifest.load import ManifestError, read
from rljob_runtime.parallel.busy_ranks import busy_ranks
from rljob_runtime.routing.cost import StepCost
from rljob_runtime.run_folder import MANIFEST
from rljob_runtime.trace.analyse.event_files import Tally, read_steps, read_workers
from rljob_runtime.trace.analyse.windows import superseded
from rljob_runtime.trace.forecast.bounded import bounded
from rljob_runtime.trace.forecast.engine_fit import Attempt, EngineFit, fit_engines
from rljob_runtime.trace.forecast.length_fit import fit_deviations
from rljob_runtime.trace.forecast.text import counted
from rljob_runtime.trace.forecast.trace_remarks import enough, fit_note
from rljob_runtime.trace.forecast.weight_fit import WeightFit, fit_weights
from rljob_runtime.trace.record.event_log import EVENTS_FOLDER, Event
from rljob_runtime.trace.record.metrics_log import METRICS_FILE, read_metrics
from rljob_runtime.trace.record.start_log import read_starts

_TRAINS = frozenset(
    {"get", "share", "gather", "reference_forward", "forward", "backward", "optimizer", "reduce"}
)
"""Events of a trainer rank that belong to a step."""
_LOADS = frozenset({"weight_pause", "weight_load", "weight_resume"})
"""Events of an engine that stands still for new weights."""
_COUNTS = {"tokens": 0, "length": 0, "uid": -1}
"""What an attempt's event is recorded with, and what is taken where it lacks it."""
_UNFITTED = {"fast": "defaults, of an 8 B model on an H200", "heavy": "follows from a fast one"}
"""What the simulator takes for the engines of a pool that no fit tells of."""
_MOST_CACHE = 1_000_000_000_000
"""Tokens; what an engine said beyond that is nonsense."""
_FEWEST_STEPS = 3
"""Steps that a fit of the trainer needs, and those of which an engine's first one is left out of a fit."""


class NothingToFit(Exception):
    """The folder tells no costs; the message says why."""


@dataclass
class Recorded:
    """What is kept of a run's events: what costs can be fitted to."""

    attempts: dict[tuple[str, str], list[Attempt]] = field(default_factory=lambda: defaultdict(list))
    """By pool and worker."""
    ended: dict[tuple[str, str], list[int]] = field(default_factory=lambda: defaultdict(list))
    """The steps in which they ended."""
    stands: dict[tuple[str, str], list[tuple[float, float]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """Begin and seconds of each part of a weight update, by pool and worker."""
    loads: int = 0
    """Versions that engines loaded, each engine counted."""
    published: list[tuple[float, float]] = field(default_factory=list)
    """Begin and seconds of each publishing of a version, as the driver saw it: of all ranks together."""
    pauses: list[float] = field(default_factory=list)
    """When engines paused for a version, or went on with one without a pause."""
    stored: bool = False
    """Whether the trainer wrote versions for engines, and trained meanwhile."""
    starts: list[float] = field(default_factory=list)
    """When training began, and began again."""
    training: dict[int, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    """Seconds of each rank in each step."""
    caches: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Tokens that the KV caches of engines hold, by pool."""
    longest: int = 0
    """Tokens of the longest prompt and response together."""

    def cache(self, pools: Collection[str]) -> int | None:
        """Tokens that the KV cache of an engine of these pools holds, the smallest of them; None where none
        has said so. One that cannot be, since a response would not have fitted, is passed over."""
        said = (tokens for pool in pools for tokens in self.caches[pool])
        return min((tokens for tokens in said if self.longest <= tokens <= _MOST_CACHE), default=None)

    def working(self, pools: Collection[str]) -> list[list[Attempt]]:
        """The attempts of each worker of these pools, on clocks that stop for weight updates."""
        return [
            working(self._without_firsts(attempts, self.ended[key]), self.stands[key])
            for key, attempts in self.attempts.items()
            if key[0] in pools
        ]

    def _without_firsts(self, attempts: Sequence[Attempt], ended: Sequence[int]) -> list[Attempt]:
        """Those of a worker's first step do not count, where it has enough others: engines warm up in it, and
        requests wait for that."""
        if len(set(ended)) <= _FEWEST_STEPS:
            return list(attempts)
        first = min(ended)
        return [replace(attempt, counts=step != first) for attempt, step in zip(attempts, ended, strict=True)]

    @property
    def sync_seconds(self) -> float:
        """What an engine stands still for a weight update; 0 without any."""
        total = sum(seconds for stands in self.stands.values() for _, seconds in stands)
        return total / max(1, self.loads)

    @property
    def weights(self) -> WeightFit | None:
        """What versions took up to there; None where no version was seen on its whole way."""
        return fit_weights(self.published, self.pauses, self.starts)

    def weight_values(self) -> dict[str, object]:
        """The fields of weights in `Assumptions`, as far as the run tells them."""
        values: dict[str, object] = {}
        if (fit := self.weights) is not None:
            values["weightPublishSeconds"] = _short(fit.publish)
            values["weightDeliverySeconds"] = _short(fit.delivery)
            values["trainerSendsWeights"] = not self.stored
        if self.loads:
            values["weightSyncSeconds"] = _short(self.sync_seconds)
        return values


@dataclass(frozen=True)
class TrainerFit:
    """What a training step costs."""

    fixed: float
    """Seconds, whatever it trains."""
    per_token: float
    """Seconds of one rank for each token; the ranks that have samples share the tokens."""
    ranks: int
    """Most that a step had."""
    busy: int
    """Most of them that had samples, as far as the manifest tells."""
    steps: int
    r_squared: float
    """Share of the variance of the steps' seconds that they explain."""


def fit_run(folder: Path, tally: Tally | None = None) -> str:
    """The assumptions as YAML; `tally` counts what could not be read. Raises `NothingToFit`."""
    trace, tally = _trace(folder), tally or Tally()
    found = read_run(folder, trace, tally=tally)
    if not found.attempts:
        raise NothingToFit(f"{folder / EVENTS_FOLDER} has no {tally.why_no('generate event')}")
    return _yaml(folder, found, trace, _spec(folder))


def _spec(folder: Path) -> Spec | None:
    try:
        return read(folder / MANIFEST).job.spec
    except ManifestError:
        # Such as of a run whose job had fields that are none any more.
        return None


def _trace(folder: Path) -> LengthTrace | None:
    try:
        return read_length_trace(folder / LENGTHS_FILE)
    except LengthTraceError:
        # Such as of a run whose disk was full.
        return None


def read_run(folder: Path, trace: LengthTrace | None, first: int = 0, tally: Tally | None = None) -> Recorded:
    """What the run in `folder` recorded from step `first` on; `trace` tells the lengths of its prompts.
    `tally` counts what could not be read."""
    prompts = _Prompts(trace)
    found, starts = Recorded(), read_starts(folder)
    found.starts += [start.time for start in starts]
    for worker in read_workers(folder / EVENTS_FOLDER):
        if worker.kv_tokens is not None:
            found.caches[worker.pool].append(worker.kv_tokens)
    found.longest = prompts.longest
    for step, events in read_steps(folder / EVENTS_FOLDER, Tally() if tally is None else tally, first):
        for event in events:
            key = event.pool, event.worker
            # By rounding, or a clock that was set back, an event may end a little before its begin.
            seconds = max(0.0, event.duration)
            if event.event == "generate":
                if (attempt := _attempt(event, prompts)) is not None:
                    found.attempts[key].append(attempt)
                    found.ended[key].append(step)
            elif event.event in _LOADS:
                found.stands[key].append((event.start, seconds))
                found.loads += event.event == "weight_load"
                if event.event == "weight_pause":
                    found.pauses.append(event.start)
            elif event.event == "weight_swap":
                # It does not stand still for it.
                found.loads += 1
                found.pauses.append(event.start)
            elif event.event == "weight_publish" and event.pool == "driver":
                found.published.append((event.start, seconds))
            elif event.event == "weight_write":
                found.stored = True
            elif (
                event.event in _TRAINS
                and event.pool == "trainer"
                # A step that was trained again costs what it took the last time, not both times together.
                and not superseded(starts, step, event.end)
            ):
                ranks = found.training[step]
                ranks[event.worker] = ranks.get(event.worker, 0.0) + seconds
    return found


class _Prompts:
    """How long prompts are, in tokens."""

    def __init__(self, trace: LengthTrace | None) -> None:
        self._tokens: dict[int, int] = {}
        self.longest = 0
        """Tokens of the longest one together with its longest response."""
        self._mean = 0
        """Of those that the trace has: it may lack some, which were under way, or taken out of it."""
        if trace is not None and len(trace.uids):
            self._tokens = dict(zip(trace.uids.tolist(), trace.prompt_tokens.tolist(), strict=True))
            self._mean = round(float(trace.prompt_tokens.mean()))
            self.longest = int((trace.prompt_tokens.astype(np.int64) + trace.tokens.max(axis=1)).max())

    def tokens(self, uid: int) -> int:
        """Of the prompt of a group."""
        return self._tokens.get(uid, self._mean)


def _attempt(event: Event, prompts: _Prompts) -> Attempt | None:
    """None where the event does not say how many tokens it stands for."""
    tokens, length, uid = (event.extra.get(name, other) for name, other in _COUNTS.items())
    if not (isinstance(tokens, int) and isinstance(length, int) and isinstance(uid, int)):
        return None
    return Attempt(event.start, event.end, tokens, prompts.tokens(uid) + max(0, length - tokens))


def working(attempts: Sequence[Attempt], stands: Iterable[tuple[float, float]]) -> list[Attempt]:
    """The same attempts on a clock that stops while the engine stands still, for `stands` of (begin,
    seconds)."""
    ordered = sorted(stands)
    if not ordered:
        return list(attempts)
    edges, lost = [ordered[0][0] - 1.0], [0.0]
    for begin, seconds in ordered:
        begin = max(begin, edges[-1])
        edges += [begin, begin + seconds]
        lost += [lost[-1], lost[-1] + seconds]
    times = np.array([(each.begin, each.end) for each in attempts])
    times = times - np.interp(times, edges, lost)
    return [
        replace(each, begin=float(begin), end=float(end))
        for each, (begin, end) in zip(attempts, times, strict=True)
    ]


def _yaml(folder: Path, found: Recorded, trace: LengthTrace | None, spec: Spec | None) -> str:
    notes = [f"# What {folder} measured, for rljob simulate --assumptions."]
    values: dict[str, object] = {}
    fits: dict[str, EngineFit] = {}
    for pool in ("fast", "heavy"):
        by_worker = found.working([pool])
        if by_worker and (fit := fit_engines(by_worker)) is not None:
            timeless = f"; left out: {fit.timeless:,} that took no time" if fit.timeless else ""
            notes.append(
                f"# engines.{pool}: {fit.attempts:,} attempts on {counted(len(by_worker), 'engine')}, "
                f"R² of their durations {fit.r_squared:.3f}{timeless}"
            )
            fits[pool] = fit
        elif by_worker:
            notes.append(f"# engines.{pool}: too few attempts to fit; {_UNFITTED[pool]}")
        elif pool == "fast" or (spec is not None and spec.pools.heavy_rollout.replicas):
            notes.append(f"# engines.{pool}: no attempt; {_UNFITTED[pool]}")
    if fits:
        caches = {pool: found.cache([pool]) for pool in fits}
        unknown = " and ".join(pool for pool in fits if caches[pool] is None)
        notes.append(
            "# engines: graphs are within the fit; kvTokens as engines said"
            + (f"; those of the {unknown} pool did not" if unknown else "")
        )
        values["engines"] = engines_values(fits, caches)
    trainer = fit_trainer(folder, found, spec)
    if trainer is not None:
        values["trainer"] = trainer_values(trainer)
        idle = trainer.ranks - trainer.busy
        notes.append(
            f"# trainer: {trainer.steps} steps of {counted(trainer.ranks, 'rank')}"
            + (f", {idle} of them without samples" if idle else "")
            + f", R² of their seconds {trainer.r_squared:.3f}"
        )
        if spec is None:
            notes.append(f"# trainer: {MANIFEST} cannot be read; every rank is taken to have had samples")
    else:
        notes.append("# trainer: too few steps to fit; defaults")
    values |= found.weight_values()
    notes += _weight_notes(found)
    if trace is not None and enough(trace):
        values["lengths"] = lengths(trace)
    notes.append(f"# {fit_note(str(folder / LENGTHS_FILE), trace)}")
    values, out_of_bounds = bounded(values)
    notes += out_of_bounds
    body = yaml.safe_dump(values, sort_keys=False, default_flow_style=None, width=100)
    return "\n".join(notes) + "\n" + body


def _weight_notes(found: Recorded) -> list[str]:
    """What the figures of weights rest on."""
    if not found.loads:
        return []
    sync = f"# weightSyncSeconds: mean of {counted(found.loads, 'update')} of an engine"
    names = "# weightPublishSeconds, weightDeliverySeconds"
    if (fit := found.weights) is None:
        return [f"{names}: no version was seen from the trainer to an engine; defaults", sync]
    return [f"{names}: medians of {counted(fit.versions, 'version')}", sync]


def engines_values(fits: Mapping[str, EngineFit], caches: Mapping[str, int | None]) -> dict[str, object]:
    """The field `engines` of `Assumptions`, from the fits of pools by their names. `caches`: the tokens that
    a KV cache of each holds, where that is known."""
    attempts = sum(fit.attempts for fit in fits.values())
    # The simulator has one for all engines.
    admission = sum(fit.admission * fit.attempts for fit in fits.values()) / attempts
    return {
        **{pool: _engine_values(fit.cost, caches[pool]) for pool, fit in fits.items()},
        "admissionSeconds": _short(admission),
    }


def _engine_values(cost: StepCost, kv_tokens: int | None) -> dict[str, object]:
    """The fields of an engine in `Assumptions`."""
    return {
        # The simulator needs a step to take time; a fit may give all of it to the other parts.
        "fixedSeconds": max(1e-6, _short(cost.fixed)),
        "secondsPerRequest": _short(cost.per_request),
        "secondsPerKvToken": _short(cost.per_kv_token),
        "secondsPerPrefillToken": _short(cost.per_prefill_token),
        "graphs": [],
        "kvTokens": kv_tokens,
    }


def fit_trainer(folder: Path, found: Recorded, spec: Spec | None) -> TrainerFit | None:
    """What a training step costs; None where there are too few. `spec`: the run's, which tells how many ranks
    an update had samples for; None: for all."""
    tokens = {
        row["step"]: float(row["tokens"])
        for row in read_metrics(folder / METRICS_FILE).rows
        if isinstance(row.get("tokens"), (int, float))
    }
    steps = sorted(step for step in found.training if tokens.get(step))
    if len(steps) < _FEWEST_STEPS:
        return None
    # Ranks compile and allocate in their first step, also in the first one after an interruption.
    firsts = {steps[0], *(start.step for start in read_starts(folder))}
    later = [step for step in steps if step not in firsts]
    steps = later if len(later) >= _FEWEST_STEPS else steps
    seconds = np.array([max(found.training[step].values()) for step in steps])
    # A trainer may be resized on the way: each step's tokens are shared by the ranks that it had.
    ranks = [len(found.training[step]) for step in steps]
    busy = ranks if spec is None else [min(count, busy_ranks(spec, count)) for count in ranks]
    features = np.array([[1.0, tokens[step] / count] for step, count in zip(steps, busy, strict=True)])
    fit = fit_nonnegative(features, seconds)
    fixed, each = (float(value) for value in fit.coefficients)
    return TrainerFit(fixed, each, max(ranks), max(busy), len(steps), fit.r_squared)


def trainer_values(fit: TrainerFit) -> dict[str, object]:
    """The fields of the trainer in `Assumptions`."""
    return {"secondsPerStep": _short(fit.fixed), "secondsPerToken": _short(fit.per_token)}


def lengths(trace: LengthTrace) -> dict[str, object]:
    """Mean and log-deviations of a trace."""
    spread = fit_deviations(trace.tokens, trace.header.max_response_tokens)
    return {
        "mean": _short(float(trace.tokens.mean())),
        "betweenPrompts": _short(spread.between),
        "withinPrompt": _short(spread.within),
        "promptTokens": max(1, round(float(trace.prompt_tokens.mean()))),
    }


def _short(value: float) -> float:
    """Four significant digits: a fit is no more precise."""
    return float(f"{value:.4g}")
