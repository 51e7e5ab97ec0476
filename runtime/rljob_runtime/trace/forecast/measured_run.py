"""What a run tells the simulator: its costs, its lengths, and how fast it was.

Guarantees: reads a bounded part of the run, its newest; says nothing of a run that is too short, whose fitted
costs do not explain what was measured, or whose workers were others than the manifest's.
"""

from dataclasses import dataclass
from pathlib import Path

from rljob_api.job import Spec
from rljob_runtime.data.length_trace import LENGTHS_FILE, LengthTrace, LengthTraceError, read_length_trace
from rljob_runtime.simulate.assumptions import Assumptions
from rljob_runtime.trace.analyse.analysis import Analysis
from rljob_runtime.trace.forecast.bounded import bounded
from rljob_runtime.trace.forecast.engine_fit import fit_engines
from rljob_runtime.trace.forecast.run_fit import (
    engines_values,
    fit_trainer,
    lengths,
    read_run,
    trainer_values,
)
from rljob_runtime.trace.forecast.trace_remarks import enough
from rljob_runtime.trace.forecast.workloads import refusal

_FEWEST_STEPS = 8
"""Steps of a run that may say something."""
_FEWEST_ATTEMPTS = 200
"""Attempts that the costs of engines may be fitted to."""
_LEAST_FIT = 0.5
"""Share of the variance of durations that fitted costs must explain."""
_ATTEMPTS = 20_000
"""Newest attempts that costs are fitted to: more do not change them, and take long to read."""
_TRACE_BYTES = 20_000_000
"""Newest lengths that are read: those of some hundred thousand responses."""


@dataclass(frozen=True)
class MeasuredRun:
    """See the module."""

    assumptions: Assumptions
    trace: LengthTrace
    rate: float
    """Samples trained per second."""
    knows_fast: bool
    """Whether it is known what an engine of the fast pool costs: it has as many accelerators as a heavy one,
    or there was one."""
    knows_heavy: bool
    """The same of the heavy pool."""
    knows_trainer: bool
    """Whether the part of a training step that takes as long whatever is trained can be told from that for
    each token; if not, nothing is known of a trainer of another size."""


def measured_run(run: Path, spec: Spec, analysis: Analysis) -> MeasuredRun | None:
    """What the run in a folder tells; None where that does not suffice."""
    first = first_step(analysis)
    rate = measured_rate(analysis, first)
    if rate is None or not as_asked(spec, analysis):
        return None
    try:
        trace = read_length_trace(run / LENGTHS_FILE, _TRACE_BYTES)
    except LengthTraceError:
        return None
    if refusal(trace, spec) is not None or not enough(trace):
        return None
    found = read_run(run, trace, first)
    trainer = fit_trainer(run, found, spec)
    fast, heavy = spec.pools.fast_rollout, spec.pools.heavy_rollout
    alike = heavy.accelerators_per_worker == fast.accelerators_per_worker
    if alike:
        pools = {"fast": ["fast", "heavy"]}
    else:
        pools = {name: [name] for name, pool in (("fast", fast), ("heavy", heavy)) if pool.replicas}
    fits = {name: fit_engines(found.working(names)) for name, names in pools.items()}
    engines = {
        name: fit
        for name, fit in fits.items()
        if fit is not None and fit.r_squared >= _LEAST_FIT and fit.attempts >= _FEWEST_ATTEMPTS
    }
    if trainer is None or len(engines) < len(fits):
        return None
    values, _ = bounded(
        {
            "engines": engines_values(engines, {name: found.cache(pools[name]) for name in engines}),
            "trainer": trainer_values(trainer),
            # A run whose engines loaded nothing stood still for nothing.
            "weightSyncSeconds": 0.0,
            **found.weight_values(),
            "lengths": lengths(trace),
        }
    )
    assumptions = Assumptions.model_validate(values)
    knows_fast, knows_heavy = (alike or name in engines for name in ("fast", "heavy"))
    return MeasuredRun(assumptions, trace, rate, knows_fast, knows_heavy, trainer.r_squared >= _LEAST_FIT)


def first_step(analysis: Analysis) -> int:
    """The first of the newest steps that have `_ATTEMPTS` attempts together; never fewer steps than are
    needed."""
    counts: dict[int, int] = {}
    for (_, name), use in analysis.event_uses.items():
        if name == "generate":
            for step, (count, _) in use.by_step.items():
                counts[step] = counts.get(step, 0) + count
    steps = sorted(counts)
    seen = 0
    for place in range(len(steps) - 1, -1, -1):
        seen += counts[steps[place]]
        if seen >= _ATTEMPTS and len(steps) - place > _FEWEST_STEPS:
            return steps[place]
    return steps[0] if steps else 0


def measured_rate(analysis: Analysis, first: int) -> float | None:
    """Samples trained per second after step `first`; None of too few steps."""
    samples = {
        row["step"]: float(row["samples"])
        for row in analysis.metrics.rows
        if isinstance(row.get("samples"), (int, float))
    }
    # The first one also fills what lies between the engines and the trainer.
    windows = [window for window in analysis.windows if window.step > first and window.step in samples]
    seconds = sum(window.seconds for window in windows)
    if len(windows) < _FEWEST_STEPS or seconds <= 0:
        return None
    return sum(samples[window.step] for window in windows) / seconds


def as_asked(spec: Spec, analysis: Analysis) -> bool:
    """Whether the run had the pools of its manifest all the time, and workers that do not slow each other, as
    those on the processors of one machine do."""
    pools = spec.pools
    asked = {
        "trainer": pools.trainer.replicas * pools.trainer.accelerators_per_worker,
        "fast": pools.fast_rollout.replicas,
        "heavy": pools.heavy_rollout.replicas,
    }
    workers = {pool.pool: pool.workers for pool in analysis.pools if pool.role != "other"}
    if any(worker.left for found in workers.values() for worker in found):
        return False
    if spec.accelerator == "cpu":
        asked["trainer"] = len(workers.get("trainer", ()))
        hosts = [worker.host for found in workers.values() for worker in found]
        if len(set(hosts)) < len(hosts):
            return False
    return {name: count for name, count in asked.items() if count} == {
        name: len(found) for name, found in workers.items()
    }
