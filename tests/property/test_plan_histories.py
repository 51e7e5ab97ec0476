"""Whatever users, nodes, KubeRay, Kueue, the runtime and the operator's own crashes do, in whatever order."""

from datetime import timedelta

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rljob_api.job import Spec
from rljob_operator.plan import deadlines
from rljob_operator.plan.conditions import condition, finished, holds
from rljob_operator.plan.decide import decide
from rljob_operator.plan.failure import DriverExit
from rljob_operator.plan.observed import POOLS, Queue
from rljob_operator.plan.outdated import outdated
from tests.support.depth import examples
from tests.support.operator.observations import NOW, new_job, spec
from tests.support.operator.plan_checks import ENDS, check_plan
from tests.support.operator.simulated_kuberay import SimulatedKuberay
from tests.support.operator.simulated_operator import SimulatedOperator

CHANCE = st.floats(0, 1, allow_nan=False)
MOVERS = (
    *("see_job", "see_pods", "see_clusters", "restart"),
    *("kuberay", "kuberay", "kuberay_watches", "runtime_step"),
    *("a pod starts", "a pod is gone", "kueue admits"),
)
SIZES = st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(0, 2))


class AnyHistory(RuleBasedStateMachine):
    """Drives the simulated cluster, and looks at everything that the operator writes."""

    @initialize(
        sizes=SIZES,
        backoff_limit=st.integers(0, 2),
        suspended=st.sampled_from([False, False, False, True]),
        active=st.sampled_from([None, None, 700]),
        queue=st.sampled_from([None, None, Queue("team-a")]),
    )
    def begin(self, sizes, backoff_limit, suspended, active, queue):
        policy = {"suspendGraceSeconds": 60, "drainGraceSeconds": 100, "backoffLimit": backoff_limit}
        if active is not None:
            policy["activeDeadlineSeconds"] = active
        of = spec({"runPolicy": policy, "suspend": suspended}, sizes)
        self.world = SimulatedKuberay(new_job(of, queue=queue), NOW, self.worst)
        self.operator = SimulatedOperator(self.world)
        self.end = None
        self.completed = False

    def worst(self, pods):
        """KubeRay's arbitrary victim: a busy one, if there is any."""
        return next((pod for pod in pods if self.world.busy(pod)), pods[0])

    def some(self, chance, things):
        things = list(things)
        return things[min(int(chance * len(things)), len(things) - 1)] if things else None

    # Who does something next

    @rule(stop_after=st.sampled_from([None, None, None, 0, 1, 2]))
    def the_operator_reconciles(self, stop_after):
        observed = self.operator.observed()
        plan = self.operator.reconcile(stop_after)
        if plan is not None:
            check_plan(observed, plan, self.world.now)

    @rule()
    def the_operator_sees_all(self):
        self.operator.see()
        self.the_operator_reconciles(None)

    @rule(who=st.sampled_from(MOVERS), chance=CHANCE)
    def somebody_moves(self, who, chance):
        world, pods = self.world, self.world.pods.values()
        match who:
            case "see_job" | "see_pods" | "see_clusters" | "restart":
                getattr(self.operator, who)()
            case "kuberay" | "kuberay_watches" | "runtime_step":
                getattr(world, who)()
            case "kueue admits":
                world.suspend_cluster(False)
            case "a pod starts":
                pod = self.some(chance, (pod for pod in pods if pod.phase == "Pending"))
                if pod is not None:
                    world.start_pod(pod.name)
            case "a pod is gone":
                pod = self.some(chance, (pod for pod in pods if pod.deleting is not None))
                if pod is not None:
                    world.remove_pod(pod.name)

    @rule()
    def everything_moves_on(self):
        settle(self.world, self.operator, rounds=5)

    @rule(seconds=st.sampled_from([1, 20, 150, 400]))
    def time_passes(self, seconds):
        self.world.now += timedelta(seconds=seconds)

    # Users

    @rule(pool=st.sampled_from(POOLS), size=st.integers(0, 5))
    def a_user_resizes(self, pool, size):
        sizes = {each: getattr(self.spec.pools, python).replicas for each, python in PYTHON.items()}
        sizes[pool] = size
        if sizes["trainer"] > 0 and sizes["fastRollout"] + sizes["heavyRollout"] > 0:
            self.world.edit(resized(self.spec, sizes))

    @rule(then=st.sampled_from(["stay", "resume", "wait", "wait", "late", "done late"]))
    def a_user_suspends_or_resumes(self, then):
        self.world.edit(self.spec.model_copy(update={"suspend": not self.spec.suspend}))
        if then in ("late", "done late"):
            self.the_operator_sees_all()
            self.world.now += timedelta(seconds=self.spec.run_policy.suspend_grace_seconds)
            self.the_operator_sees_all()
        if then == "done late":
            self.complete()
        if then == "wait":
            settle(self.world, self.operator, rounds=5)
        if then != "stay":
            self.world.edit(self.spec.model_copy(update={"suspend": False}))
        if then == "late":
            self.the_operator_sees_all()

    @rule(cpus=st.integers(1, 2))
    def a_user_changes_what_is_fixed_while_nobody_looks(self, cpus):
        trainer = self.spec.pools.trainer.model_copy(update={"cpus_per_worker": cpus})
        pools = self.spec.pools.model_copy(update={"trainer": trainer})
        self.world.edit(self.spec.model_copy(update={"pools": pools}))
        self.completed = self.completed and not outdated(self.world.job.status, self.spec)

    @rule(chance=CHANCE, what=st.sampled_from(["pod", "pod", "cluster"]))
    def a_user_deletes_something(self, chance, what):
        if what == "pod":
            pod = self.some(chance, self.world.pods.values())
            if pod is not None:
                self.world.delete_pod(pod.name)
            return
        for name in list(self.world.clusters):
            self.world.delete_cluster(name)
            self.operator.see_clusters()

    # Faults

    @rule(then=st.sampled_from(["stay", "wait", "admit"]))
    def kueue_evicts(self, then):
        self.world.suspend_cluster(True)
        if then == "wait":
            self.world.kuberay_watches()
            self.world.kuberay()
            self.the_operator_sees_all()
        if then == "admit":
            self.world.suspend_cluster(False)

    @rule(chance=CHANCE, how=st.sampled_from(["OOMKilled", "Error", "Evicted", "node"]))
    def a_worker_fails(self, chance, how):
        started = [pod for pod in self.world.pods.values() if pod.phase == "Running" and pod.role != "head"]
        pod = self.some(chance, started)
        if pod is None:
            return
        if how == "node":
            self.world.lose_node(pod.name)
        else:
            self.world.end_pod(
                pod.name, "Error" if how == "Evicted" else how, how if how == "Evicted" else None
            )

    @precondition(lambda self: self.world.runtime is not None)
    @rule(how=st.sampled_from(["failed", "memory", "deleted"]))
    def an_attempt_is_lost_and_the_next_one_starts(self, how):
        head = self.world.driving_head()
        if how == "memory":
            self.world.kill_head()
        elif how == "deleted" and head is not None:
            self.world.delete_pod(head.name)
        else:
            self.world.end_driver(DriverExit.FAILED, "the last words")
        settle(self.world, self.operator, rounds=8)

    @precondition(lambda self: self.world.runtime is not None)
    @rule(
        how=st.sampled_from(["failed", "stopped", "memory", "node", "done", "refused"]),
        completed=st.booleans(),
    )
    def the_head_ends(self, how, completed):
        head = self.world.driving_head()
        if completed:
            self.complete()
        if how == "memory":
            self.world.kill_head()
        elif how == "node" and head is not None:
            self.world.lose_node(head.name)
        elif how in EXITS:
            self.world.end_driver(EXITS[how], "the last words")

    def complete(self):
        head, status = self.world.driving_head(), self.world.job.status
        if head is not None:
            self.world.complete()
            of_this_spec = head.attempt == status.attempt and not outdated(status, self.spec)
            self.completed = self.completed or (of_this_spec and not finished(status))

    # What always holds

    @property
    def spec(self) -> Spec:
        return self.world.job.spec

    @invariant()
    def only_free_pods_are_removed(self):
        for killed in self.world.killed:
            assert killed.late or not killed.busy, f"busy {killed}"
            assert killed.late or killed.named, f"KubeRay chose {killed}"

    @invariant()
    def one_cluster_at_a_time(self):
        assert sum(not cluster.deleting for cluster in self.world.clusters.values()) <= 1

    @invariant()
    def failures_are_bounded(self):
        assert self.world.job.status.failures <= self.spec.run_policy.backoff_limit + 1

    @invariant()
    def a_job_that_was_done_does_not_fail(self):
        assert not (self.completed and holds(self.world.job.status, "Failed"))

    @invariant()
    def an_end_is_final(self):
        status = self.world.job.status
        ends = [condition(status, kind) for kind in ENDS if holds(status, kind)]
        assert len(ends) <= 1
        kept = status.attempt, status.failures, status.restarts, status.completion_time, status.cluster_name
        if self.end is not None:
            assert (ends, kept) == self.end
        self.end = (ends, kept) if ends else None

    def teardown(self):
        if hasattr(self, "world"):
            if self.completed and self.world.driving_head() is not None:
                self.world.end_driver(DriverExit.DONE, "")  # that word is a driver's last
            settle(self.world, self.operator, rounds=60)
            check_settled(self.world, self.operator)
            assert not self.completed or holds(self.world.job.status, "Complete")


PYTHON = {"trainer": "trainer", "fastRollout": "fast_rollout", "heavyRollout": "heavy_rollout"}
EXITS = {
    "failed": DriverExit.FAILED,
    "stopped": DriverExit.STOPPED,
    "refused": DriverExit.REFUSED,
    "done": DriverExit.DONE,
}


def resized(of: Spec, sizes: dict[str, int]) -> Spec:
    """The spec with other numbers of workers."""
    pools = {
        python: getattr(of.pools, python).model_copy(update={"replicas": sizes[pool]})
        for pool, python in PYTHON.items()
    }
    return of.model_copy(update={"pools": of.pools.model_copy(update=pools)})


def settle(world: SimulatedKuberay, operator: SimulatedOperator, rounds: int) -> None:
    """Nothing goes wrong any more; everybody does what there is to do, time and again."""
    for _ in range(rounds):
        for pod in list(world.pods.values()):
            if pod.deleting is not None:
                world.remove_pod(pod.name)
        operator.see()
        observed = operator.observed()
        plan = operator.reconcile()
        assert observed is not None and plan is not None
        check_plan(observed, plan, world.now)
        world.suspend_cluster(False)
        world.kuberay_watches()
        world.kuberay()
        for name in list(world.pods):
            world.start_pod(name)
        world.runtime_step()
        suspended = world.runtime is not None and world.runtime.suspended_at is not None
        if suspended:
            world.end_driver(DriverExit.STOPPED)
        if plan.requeue_after is not None and holds(world.job.status, "Running") is False:
            world.now += timedelta(seconds=min(plan.requeue_after, 60))


def check_settled(world: SimulatedKuberay, operator: SimulatedOperator) -> None:
    """A job that is left alone gets where its spec says, and then costs nothing."""
    operator.see()
    observed = operator.observed()
    assert observed is not None
    plan = decide(observed, world.now)
    assert plan is not None
    status = world.job.status
    assert plan.status == status and not plan.events and not plan.actions, "an idle job plans something"
    if finished(status) or world.job.spec.suspend:
        assert not world.clusters and not world.pods
        assert finished(status) or holds(status, "Suspended")
        return
    deadline = deadlines.active(status, world.job.spec)
    assert deadline is None or world.now < deadline
    assert holds(status, "Running") and holds(status, "PodsReady") and not holds(status, "Degraded")
    told = condition(status, "Accepted").reason == "SpecOutdated"
    assert told == outdated(status, world.job.spec)
    head = world.driving_head()
    assert head is not None and (head.uid, head.attempt) == (status.head_pod, status.attempt)
    assert not status.scale_downs
    for group in next(iter(world.clusters.values())).groups:
        wish = getattr(world.job.spec.pools, PYTHON[group.pool]).replicas
        assert (group.replicas, group.workers_to_delete) == (wish, ())
        assert len(world.group_pods(next(iter(world.clusters.values())), group.pool)) == wish


AnyHistory.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=50, deadline=None)
TestAnyHistory = AnyHistory.TestCase
