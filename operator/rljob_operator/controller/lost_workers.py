"""Workers that ran and were lost, until an event has told of them; and trainers that the cluster took, until
the training has come further.

Guarantees: a worker that is lost and replaced between two reconciliations of its job is not missed.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from rljob_operator.controller.project import JobRef
from rljob_operator.plan.attempt import alive
from rljob_operator.plan.failure import cluster_took
from rljob_operator.plan.observed import Pod


@dataclass
class _Taken:
    pod: Pod
    step: int | None = None
    """The lowest that the driver has told of since."""


class LostWorkers:
    """Kept for each job; a worker that ended before `see` was called for it is not known."""

    def __init__(self) -> None:
        self._running: dict[JobRef, dict[str, Pod]] = {}
        """Workers that run, by UID."""
        self._lost: dict[JobRef, dict[str, Pod]] = {}
        self._taken: dict[JobRef, dict[str, _Taken]] = {}
        """Trainers that the cluster took, by UID."""

    def see(self, ref: JobRef, pods: Iterable[Pod]) -> None:
        """To be called at each change of a job's pods."""
        there = {pod.uid: pod for pod in pods if pod.role != "head" and pod.cluster_uid}
        for uid, pod in self._running.get(ref, {}).items():
            # As it is now, where it still is: its status may name the cause.
            now = there.get(uid, pod)
            if uid not in there or not alive(now):
                self._lost.setdefault(ref, {})[uid] = now
                if now.role == "trainer" and cluster_took(now):
                    self._taken.setdefault(ref, {})[uid] = _Taken(now)
        # Only what ran can be lost: a pod that never started is waited for, which PodsReady tells.
        running = {uid: pod for uid, pod in there.items() if pod.phase == "Running" and alive(pod)}
        if running:
            self._running[ref] = running
        else:
            self._running.pop(ref, None)

    def of(self, ref: JobRef) -> tuple[Pod, ...]:
        """A job's lost workers, as they were last seen, that were not told yet."""
        return tuple(self._lost.get(ref, {}).values())

    def taken(self, ref: JobRef, attempt: int, step: int) -> tuple[Pod, ...]:
        """A job's trainers that the cluster took and since when nothing was trained, as they were last seen.
        `step`: the last that the driver of this attempt, the newest, has told of; 0: of none."""
        taken = self._taken.pop(ref, {})
        for each in taken.values():
            # After a loss the training goes on from an earlier step, that of a checkpoint.
            each.step = step if each.step is None else min(each.step, step)
        left = {uid: each for uid, each in taken.items() if each.pod.attempt >= attempt and each.step == step}
        if left:
            self._taken[ref] = left
        return tuple(each.pod for each in left.values())

    def told(self, ref: JobRef, pods: Iterable[Pod]) -> None:
        """These need not be told any more."""
        lost = self._lost.get(ref, {})
        for pod in pods:
            lost.pop(pod.uid, None)
        if not lost:
            self._lost.pop(ref, None)

    def forget(self, ref: JobRef) -> None:
        """The job is gone."""
        self._running.pop(ref, None)
        self._lost.pop(ref, None)
        self._taken.pop(ref, None)
