"""One batch: all prompts at once; it lasts as long as its slowest response. Pure."""

from collections.abc import Sequence

from rljob_runtime.routing.requests import EngineShape
from rljob_runtime.simulate.agenda import Agenda
from rljob_runtime.simulate.outcome import Outcome, outcome
from rljob_runtime.simulate.physics import Physics
from rljob_runtime.simulate.rollout import Rollout
from rljob_runtime.simulate.scheduler import Scheduler
from rljob_runtime.simulate.workload import Workload


class Stuck(RuntimeError):
    """Requests wait, nothing runs, and the scheduler orders nothing."""


def simulate_batch(
    workload: Workload, shapes: Sequence[EngineShape], physics: Physics, scheduler: Scheduler
) -> Outcome:
    """Generate every group of the workload. Raises `ValueError` for engines that cannot hold the requests,
    and `Stuck` where the scheduler leaves requests lying."""
    agenda = Agenda()
    done: list[int] = []
    rollout = Rollout(workload, shapes, physics, scheduler, agenda, done.append)
    for uid in range(workload.groups):
        rollout.dispatch(uid)
    rollout.act()
    rollout.cluster.begin()
    while len(done) < workload.groups:
        if not agenda.advance():
            raise Stuck(f"{workload.groups - len(done)} groups are not complete, and nothing runs")
        rollout.act()
        rollout.cluster.begin()
    tokens = int(workload.lengths.sum())
    return outcome(rollout, agenda.now, workload.lengths.size, tokens)
