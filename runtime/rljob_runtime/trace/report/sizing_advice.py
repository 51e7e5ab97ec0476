"""Advice on pool sizes, from what the simulator proposes; pure."""

from pathlib import Path

from rljob_api.job import Spec
from rljob_runtime.trace.forecast.sizing import Proposal, Unfinished
from rljob_runtime.trace.report.advice import Advice


def size_advice(found: Proposal | Unfinished | None, spec: Spec, run: Path) -> Advice | None:
    """What is advised; None where nothing is proposed."""
    if isinstance(found, Proposal):
        return _sizes(found, spec)
    return None if found is None else _search(found, run)


def _sizes(found: Proposal, spec: Spec) -> Advice:
    pools, now, then = spec.pools, found.now, found.then
    bounds = {
        "trainer": None,
        "fastRollout": pools.fast_rollout.max_replicas,
        "heavyRollout": pools.heavy_rollout.max_replicas,
    }
    counts = zip(
        bounds, (now.trainer, now.fast, now.heavy), (then.trainer, then.fast, then.heavy), strict=True
    )
    changes = []
    for pool, before, after in counts:
        if before != after:
            bound = bounds[pool]
            more = ", with its maxReplicas" if bound is not None and after > bound else ""
            changes.append(f"{pool}.replicas from {before} to {after}{more}")
    gain, error = found.gain.mean, found.gain.deviation
    return Advice(
        "pools",
        f"change {'; '.join(changes)}: the same {found.accelerators} accelerators",
        f"the simulator, with the costs and lengths that this run measured, trains {100 * gain:.0f} % "
        f"(± {max(1.0, 100 * error):.0f} %, standard error of {found.workloads} workloads) more samples a "
        f"second so. Of the run as it was it makes {found.simulated:.3g} samples a second, and "
        f"{found.measured:.3g} were measured. It takes KV caches for large enough",
    )


def _search(found: Unfinished, run: Path) -> Advice:
    return Advice(
        "pools",
        f"let the simulator search the best sizes for {found.accelerators} accelerators: "
        f"`rljob trace fit {run} > measured.yaml`, then `rljob simulate {run}/job.yaml --assumptions "
        f"measured.yaml --trace {run}/lengths.jsonl --size {found.accelerators}`",
        "this run is too large for the report to try other sizes in a few seconds",
    )
