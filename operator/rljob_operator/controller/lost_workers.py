"""Workers that ran and were lost, until an event has told of them.

Guarantees: a worker that is lost and replaced between two reconciliations of its job is not missed.
"""

from collections.abc import Iterable

from rljob_operator.controller.project import JobRef
from rljob_operator.plan.attempt import alive
from rljob_operator.plan.observed import Pod


class LostWorkers:
    """Kept for each job; a worker that ended before `see` was called for it is not known."""

    def __init__(self) -> None:
        self._running: dict[JobRef, dict[str, Pod]] = {}
        """Workers that run, by UID."""
        self._lost: dict[JobRef, dict[str, Pod]] = {}

    def see(self, ref: JobRef, pods: Iterable[Pod]) -> None:
        """To be called at each change of a job's pods."""
        there = {pod.uid: pod for pod in pods if pod.role != "head" and pod.cluster_uid}
        for uid, pod in self._running.get(ref, {}).items():
            # As it is now, where it still is: its status may name the cause.
            now = there.get(uid, pod)
            if uid not in there or not alive(now):
                self._lost.setdefault(ref, {})[uid] = now
        # Only what ran can be lost: a pod that never started is waited for, which PodsReady tells.
        running = {uid: pod for uid, pod in there.items() if pod.phase == "Running" and alive(pod)}
        if running:
            self._running[ref] = running
        else:
            self._running.pop(ref, None)

    def of(self, ref: JobRef) -> tuple[Pod, ...]:
        """A job's lost workers, as they were last seen, that were not told yet."""
        return tuple(self._lost.get(ref, {}).values())

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
