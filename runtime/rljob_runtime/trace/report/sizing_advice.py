"""Advice on pool sizes, from what the simulator proposes; pure."""

import shlex
from pathlib import Path

from rljob_api.job import Spec
from rljob_api.pools import RolloutPool
from rljob_runtime.data.length_trace import LENGTHS_FILE
from rljob_runtime.run_folder import MANIFEST
from rljob_runtime.trace.forecast.sizing import Proposal, Unfinished
from rljob_runtime.trace.report.advice import Advice


def size_advice(found: Proposal | Unfinished | None, spec: Spec, run: Path) -> Advice | None:
    """What is advised; None where nothing is proposed."""
    if isinstance(found, Proposal):
        return _sizes(found, spec)
    return None if found is None else _search(found, run)


def _sizes(found: Proposal, spec: Spec) -> Advice:
    pools, now, then = spec.pools, found.now, found.then
    counts = (
        ("trainer", None, now.trainer, then.trainer),
        ("fastRollout", pools.fast_rollout, now.fast, then.fast),
        ("heavyRollout", pools.heavy_rollout, now.heavy, then.heavy),
    )
    changes = [
        f"{name}.replicas from {before} to {after}{_bound(pool, after)}"
        for name, pool, before, after in counts
        if before != after
    ]
    caches = "" if found.knows_caches else ". It takes KV caches for large enough"
    gain, error = found.gain.mean, found.gain.deviation
    return Advice(
        "pools",
        f"change {'; '.join(changes)}: the same {found.accelerators} accelerators",
        f"the simulator, with the costs and lengths that this run measured, trains {100 * gain:.0f} % "
        f"(± {max(1.0, 100 * error):.0f} %, standard error of {found.workloads} workloads) more samples a "
        f"second so. Of the run as it was it makes {found.simulated:.3g} samples a second, and "
        f"{found.measured:.3g} were measured{caches}",
    )


def _bound(pool: RolloutPool | None, replicas: int) -> str:
    """Which bound of the pool must change too; the trainer has none."""
    if pool is not None and pool.max_replicas is not None and replicas > pool.max_replicas:
        return ", with its maxReplicas"
    if pool is not None and pool.min_replicas is not None and replicas < pool.min_replicas:
        return ", with its minReplicas"
    return ""


def _search(found: Unfinished, run: Path) -> Advice:
    folder, manifest, lengths = (shlex.quote(str(path)) for path in (run, run / MANIFEST, run / LENGTHS_FILE))
    return Advice(
        "pools",
        f"let the simulator search the best sizes for {found.accelerators} accelerators: "
        f"`rljob trace fit {folder} > measured.yaml`, then `rljob simulate {manifest} --assumptions "
        f"measured.yaml --trace {lengths} --size {found.accelerators}`",
        "this run is too large for the report to try other sizes in a few seconds",
    )
