"""Whoever carries out the plans for a simulated RLJob, over views that may be old.

Guarantees: keeps what `plan.observed` and `plan.plan` ask of the one who observes and acts, and no more:
reads its own writes of the job and of RayClusters, never goes back in time, and may be stopped anywhere.
"""

from rljob_operator.controller.lost_workers import LostWorkers
from rljob_operator.controller.own_statuses import OwnStatuses
from rljob_operator.plan.decide import decide
from rljob_operator.plan.observed import Cluster, Job, Observed, Pod, Record
from rljob_operator.plan.plan import (
    Action,
    CreateCluster,
    DeleteCluster,
    DeleteJob,
    EnsureAccess,
    Event,
    NoteHead,
    Plan,
    ScaleGroup,
)
from rljob_operator.plan.times import after, stamp
from tests.support.operator.simulated_kuberay import SimulatedKuberay
from tests.support.operator.simulated_objects import Conflict

_REF = ("default", "simulated")


class SimulatedOperator:
    """What observes, asks `decide`, and carries out, over views that may be old."""

    def __init__(self, world: SimulatedKuberay, checks: bool = True) -> None:
        """`checks`: it writes the status before it takes pods away even where it is the same, as a plan asks;
        False shows what that is for."""
        self.world = world
        self._checks = checks
        self.plans: list[Plan] = []
        self.events: list[Event] = []
        self.refusals: list[str] = []
        self.deleted_job = False
        self._job: Job | None = None
        self.restart()

    def restart(self) -> None:
        """All memory is lost; everything is read anew."""
        self.lost_heads: tuple[Pod, ...] = ()
        self._workers = LostWorkers()
        self._statuses = OwnStatuses()
        self._pods: tuple[Pod, ...] = tuple(self.world.pods.values())
        self._workers.see(_REF, self._pods)
        self._clusters: tuple[Cluster, ...] = tuple(self.world.clusters.values())
        self.see_job()

    def hand_over(self, job: Job, version: int) -> None:
        """Another replica leads. It remembers nothing and lists pods and RayClusters, but what it knows of
        the RLJob is `job`, as it was at this resourceVersion."""
        self.restart()
        self._job, self._version = job, version

    def see_job(self) -> None:
        self._job, self._version = self.world.job, self.world.version

    def see_clusters(self) -> None:
        self._clusters = tuple(self.world.clusters.values())

    def see_pods(self) -> None:
        """Pod events arrive; a head that is gone is remembered as it was last seen."""
        names = self.world.pods
        gone = [pod for pod in self._pods if pod.role == "head" and pod.name not in names]
        self.lost_heads = (*self.lost_heads, *gone)
        self._pods = tuple(names.values())
        self._workers.see(_REF, self._pods)

    def see(self) -> None:
        """All views become the present."""
        self.see_job()
        self.see_clusters()
        self.see_pods()

    def observed(self) -> Observed | None:
        if self._job is None:
            return None
        seen = Observed(self._job, self._clusters, self._pods, self.lost_heads, self._workers.of(_REF))
        return self._statuses.known(_REF, seen, self.world.now)

    def reconcile(self, stop_after: int | None = None) -> Plan | None:
        """Decide and carry out; `stop_after` ends it (a crash, an error) after so many parts of the plan: the
        status, then one action after the other."""
        observed = self.observed()
        plan = decide(observed, self.world.now) if observed is not None else None
        if plan is None or observed is None:
            return None
        self.plans.append(plan)
        if stop_after == 0:
            return plan
        # The status first: what it promises, such as which pods go, must be known before it is done.
        assert self._job is not None
        if plan.status != self._job.status or (self._checks and plan.destroys):
            try:
                self.world.write_status(plan.status, self._version)
            except Conflict:
                return plan
            self.see_job()
        self._statuses.wrote(_REF, observed.job, plan.status)
        self.events += plan.events
        # Only now: losses are told in the status, and forgotten once it is written.
        self._workers.told(_REF, observed.lost_workers)
        for number, action in enumerate(plan.actions, start=1):
            if stop_after is not None and number >= stop_after:
                break
            if not self._carry_out(action, observed, plan):
                break
        return plan

    def _carry_out(self, action: Action, observed: Observed, plan: Plan) -> bool:
        match action:
            case EnsureAccess():
                return True
            case CreateCluster():
                status = plan.status
                noted = Record(status.failures, status.restarts, status.start_time)
                self.world.create_cluster(action, noted)
            case DeleteCluster(name, uid):
                self.world.delete_cluster(name, uid)
            case NoteHead():
                self.world.note_head(action)
            case DeleteJob():
                self.deleted_job = True
            case ScaleGroup():
                self._note_lateness(action, observed, plan)
                refused = self.world.patch_group(action)
                if refused is not None:
                    self.refusals.append(refused)
                    self.see_clusters()
                    return False
        self.see_clusters()
        return True

    def _note_lateness(self, action: ScaleGroup, observed: Observed, plan: Plan) -> None:
        spec = observed.job.spec
        entry = next((entry for entry in plan.status.scale_downs if entry.pool == action.pool), None)
        if spec is None or entry is None or action.replicas >= action.seen_replicas:
            return
        deadline = after(entry.asked_time or stamp(self.world.now), spec.run_policy.drain_grace_seconds)
        if self.world.now >= deadline:
            self.world.late_pools.add(action.pool)
            self.world.late_names.update(name for name, _ in action.victims_must_live)
