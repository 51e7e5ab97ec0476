"""What the loss of a pod costs a job that trains in real pods, and how long it takes to its first step.

One job with small torch engines whose steps take about two seconds. Its pods are deleted one after the other,
with a second to say good-bye. Lost time is the longest time after the deletion without a step that had not
been done before, beyond a usual step.

    python -m tests.bench.node_faults          (as root)
"""

import itertools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rljob_runtime.trace.record.metrics_log import METRICS_FILE
from tests.bench.figures import Figure, parser, record
from tests.support.operator.node_jobs import (
    WALKING,
    NodeJob,
    assert_every_prompt_once,
    claim,
    new_namespace,
)
from tools.cluster import Cluster
from tools.cluster.product import NAMESPACE as OPERATOR_NAMESPACE
from tools.cluster.product import product_cluster

STEPS = 160
CHECKPOINT_STEPS = 5
STEADY_STEPS, STEPS_AFTER = 6, 5
"""Before and after the loss of a pod. A step that was under way then may still end."""
WAIT_SECONDS = 300.0
START_GOAL = "< 90 s on 2 cores with images present"
NO_STEP_LOST = "no step lost"
RESTART_GOAL = f"at most {CHECKPOINT_STEPS} steps and a restart of < 90 s"


def steps_done(file: Path) -> list[tuple[int, float]]:
    """Step and time (s since the epoch) of all lines of a run's metrics, repeated steps included."""
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [(row["step"], row["time"]) for row in rows if "step" in row]


def usual_seconds(rows: list[tuple[int, float]]) -> float:
    """The median time between two steps."""
    times = [at for _, at in rows]
    return statistics.median(later - sooner for sooner, later in itertools.pairwise(times))


def new_steps(rows: list[tuple[int, float]], newest: int) -> list[float]:
    """When each step after `newest` was done for the first time."""
    first: dict[int, float] = {}
    for step, at in rows:
        first.setdefault(step, at)
    return [at for step, at in sorted(first.items()) if step > newest]


def lost_seconds(rows: list[tuple[int, float]], newest: int, killed: float, usual: float) -> float | None:
    """The longest time without a new step since `killed`, beyond a usual one; None while few are done."""
    done = new_steps(rows, newest)
    if len(done) < STEPS_AFTER:
        return None
    return max(0.0, max(later - sooner for sooner, later in itertools.pairwise([killed, *done])) - usual)


def wait_for(what: str, done: Callable[[], Any]) -> Any:
    """Polls a file that another machine would not tell of either, until `done()` is not None."""
    deadline = time.monotonic() + WAIT_SECONDS
    while (found := done()) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {what} in {WAIT_SECONDS:.0f} s")
        time.sleep(0.25)
    return found


def kill_operator(cluster: Cluster) -> None:
    cluster.kubectl("delete", "pods", "--all", "-n", OPERATOR_NAMESPACE, "--grace-period=0", "--force")


def main() -> None:
    out = parser(__doc__).parse_args().out
    with product_cluster() as cluster:
        new_namespace(cluster, "faults")
        run = NodeJob(cluster, "faults", claim(cluster, "faults"))
        file = run.run_folder / METRICS_FILE
        run.set_pace(WALKING)
        applied = time.time()
        both = {"fastRollout": {"replicas": 1}, "heavyRollout": {"replicas": 1}}
        checkpoint = {"everySteps": CHECKPOINT_STEPS}
        run.apply(STEPS, {"pools": both, "training.checkpoint": checkpoint})
        first = wait_for("first step", lambda: next(iter(steps_done(file)), None))
        figures = [Figure("kubectl apply to the first step", first[1] - applied, "s", goal=START_GOAL)]
        faults: list[tuple[str, Callable[[], object], str]] = [
            ("operator: both pods", lambda: kill_operator(cluster), NO_STEP_LOST),
            ("fast rollout pod", lambda: run.delete_pod("fastRollout"), NO_STEP_LOST),
            ("heavy rollout pod", lambda: run.delete_pod("heavyRollout"), NO_STEP_LOST),
            ("trainer pod", lambda: run.delete_pod("trainer"), RESTART_GOAL),
            ("head pod", lambda: run.delete_pod("head"), RESTART_GOAL),
        ]
        for name, kill, goal in faults:
            figures += measured(file, name, kill, goal)
        run.hurry()
        run.wait_phase("Complete", 900)
        assert_every_prompt_once(run, STEPS)
        figures.append(Figure("prompts trained more or less than once, over all faults", 0, "", goal="0"))
    record("node_faults", figures, out)


def measured(file: Path, name: str, kill: Callable[[], object], goal: str) -> list[Figure]:
    """Some steps of peace, the loss of a pod, and what that cost."""
    start = len(steps_done(file))
    calm = wait_for(
        "steady steps", lambda: rows if len(rows := steps_done(file)[start:]) >= STEADY_STEPS else None
    )
    usual = usual_seconds(calm)
    kill()
    killed, rows = time.time(), steps_done(file)
    newest = max(step for step, _ in rows)
    lost = wait_for(f"step after {name}", lambda: lost_seconds(steps_done(file), newest, killed, usual))
    after = [row for row in steps_done(file) if row[1] > killed]
    again = len(after) - len(new_steps(after, newest))
    return [
        Figure(f"{name} killed: time lost", lost, "s", goal=goal),
        Figure(f"{name} killed: steps done again", again, "", goal=goal),
    ]


if __name__ == "__main__":
    main()
