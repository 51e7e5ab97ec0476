"""Random lives of an RLJob whose operator's leaders change, and what that costs its attempts.

Every leader lists pods and RayClusters when it begins. `Leader` says what it does about RLJobs.
"""

from collections import deque
from dataclasses import dataclass
from datetime import timedelta
from random import Random

from rljob_operator.plan.failure import DriverExit
from rljob_operator.plan.observed import Job
from rljob_operator.plan.plan import DeleteCluster, Plan
from tests.support.operator.observations import NOW, new_job, spec
from tests.support.operator.simulated_kuberay import SimulatedKuberay
from tests.support.operator.simulated_operator import SimulatedOperator

HISTORIES = 250
STALE = timedelta(seconds=75)
"""A watch whose connection is dead is given up after this silence: what it brought may be so old."""
_MOVES = 150
_POLICY = {"suspendGraceSeconds": 60, "drainGraceSeconds": 100, "backoffLimit": 50}


@dataclass(frozen=True)
class Leader:
    """How a new leader gets to know the RLJobs, and what it does before it takes pods away."""

    lists: bool
    """It lists them when it begins; otherwise it begins with what its watch has brought."""
    checks: bool
    """It writes the status first, also where that is the same: refused where the RLJob has changed."""


@dataclass
class Harm:
    """What went wrong in histories."""

    hand_overs: int = 0
    deleted: int = 0
    """RayClusters that were deleted while their driver ran and the stored status named them."""
    two_heads: int = 0
    """Moves after which two heads ran that nobody had asked to end."""


class History:
    """One history: the same for the same seed and leader."""

    def __init__(self, seed: int, leader: Leader) -> None:
        self._random = Random(seed)
        self._leader = leader
        self.world = SimulatedKuberay(new_job(spec({"runPolicy": _POLICY})), NOW, lambda pods: pods[0])
        self.operator = SimulatedOperator(self.world, leader.checks)
        self.harm = Harm()
        # What was true at which time, for as long as a watch may lag.
        self._past: deque[tuple[Job, int, timedelta]] = deque()

    def run(self) -> Harm:
        """The history from the job's creation on."""
        moves = [
            *[self._reconcile] * 2,
            *[self._everybody] * 8,
            *[self._see] * 4,
            *[self._time] * 2,
            *[self._attempt_ends] * 2,
            *[self._hand_over] * 5,
            self._user,
        ]
        for _ in range(_MOVES):
            self._random.choice(moves)()
            self._note()
        return self.harm

    def _note(self) -> None:
        world = self.world
        heads = [pod for pod in world.pods.values() if pod.role == "head" and pod.phase == "Running"]
        running = [pod for pod in heads if pod.deleting is None and pod.driver is None and pod.main is None]
        self.harm.two_heads += len(running) > 1
        assert world.job is not None
        now = world.now - NOW
        self._past.append((world.job, world.version, now))
        # The one before the oldest that counts was true until then.
        while len(self._past) > 1 and self._past[1][2] < now - STALE:
            self._past.popleft()

    # The operator

    def _reconcile(self) -> None:
        world = self.world
        head, job = world.driving_head(), world.job
        assert job is not None
        clusters = {cluster.name: cluster.uid for cluster in world.clusters.values()}
        named = None if head is None or head.deleting is not None else clusters.get(head.cluster)
        # A leader may end anywhere; the next one begins with what it left.
        plan = self.operator.reconcile(self._random.choice([None, None, None, 0, 1, 2]))
        assert world.job is not None
        # Whoever means to end an attempt says so in the status first.
        if head is not None and world.job.status.cluster_name == head.cluster and _deletes(plan, named):
            self.harm.deleted += head.cluster not in world.clusters

    def _hand_over(self) -> None:
        job, version, _ = self._random.choice(self._past) if self._past else (self.world.job, 1, None)
        if self._leader.lists or job is None:
            self.operator.restart()
        else:
            self.operator.hand_over(job, version)
        self.harm.hand_overs += 1
        self._reconcile()

    def _see(self) -> None:
        self.operator.see()
        self._reconcile()

    # Everybody else

    def _everybody(self) -> None:
        world = self.world
        world.kuberay_watches()
        world.kuberay()
        for name, pod in list(world.pods.items()):
            if pod.deleting is not None:
                world.remove_pod(name)
            else:
                world.start_pod(name)
        world.runtime_step()
        self.operator.see_pods()
        self.operator.see_clusters()

    def _time(self) -> None:
        self.world.now += timedelta(seconds=self._random.choice([1, 5, 20, 40]))

    def _attempt_ends(self) -> None:
        world, head = self.world, self.world.driving_head()
        match self._random.randrange(3):
            case 0:
                world.end_driver(DriverExit.FAILED, "the last words")
            case 1:
                world.kill_head()
            case _ if head is not None:
                world.delete_pod(head.name)

    def _user(self) -> None:
        job = self.world.job
        assert job is not None and job.spec is not None
        self.world.edit(job.spec.model_copy(update={"suspend": not job.spec.suspend}))


def _deletes(plan: Plan | None, uid: str | None) -> bool:
    actions = plan.actions if plan is not None else ()
    return any(isinstance(action, DeleteCluster) and action.uid == uid for action in actions)


def harm(leader: Leader, histories: int = HISTORIES) -> Harm:
    """That of so many histories together."""
    total = Harm()
    for seed in range(histories):
        one = History(seed, leader).run()
        total.hand_overs += one.hand_overs
        total.deleted += one.deleted
        total.two_heads += one.two_heads
    return total
