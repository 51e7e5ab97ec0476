"""A job that writes whatever it likes into its own status, as its token may: 1,000 random writes between the
operator's decisions."""

import json
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from random import Random

import pytest

from rljob_api.status import Status, TrainingStatus
from rljob_api.stored_status import read_status
from rljob_operator.plan.conditions import finished, holds
from rljob_operator.plan.decide import decide
from rljob_operator.plan.failure import DriverExit
from rljob_operator.plan.observed import Observed
from rljob_operator.plan.plan import CreateCluster, DeleteCluster
from tests.support.operator.observations import NAME, NOW, cluster, new_job, pods, spec
from tests.support.operator.simulated_kuberay import SimulatedKuberay
from tests.support.operator.simulated_operator import SimulatedOperator

WRITES = 1_000
TIMES = (
    None, "", "x", "yesterday", "9999-12-31T23:59:59Z", "9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00Z",
    "0001-01-01T00:00:00+14:00", "2026-11-21T14:02:00", "2026-11-21", "1e400", "2099-01-01T00:00:00Z",
    "2026-11-21T14:02:00Z", "2026-13-45T99:99:99Z",
)  # fmt: skip
NUMBERS = (0, 1, 2, 3, -1, 7, 39, 10**9, 10**18, -(10**18), 2**63)
WORDS = (
    None, "", "math-1", "math-2", "math-7", "other-1", "x" * 5_000, "a,b=c", "\x1b[2J", "../../x", "math-01",
    "math-1000000000", "uid-1", "uid-2", "cluster-1",
)  # fmt: skip
KINDS = ("Accepted", "PodsReady", "Running", "Degraded", "Suspended", "Complete", "Failed")


def condition(random: Random) -> dict:
    # Complete and Failed end the job: that is for the job to say, and costs nobody else anything.
    return {
        "type": random.choice(KINDS[:5]),
        "status": random.choice(("True", "False", "Unknown")),
        "reason": random.choice(("Running", "HeadLost", "Suspending", "SuspendTimedOut", "Starting", "")),
        "message": "x" * random.choice((0, 5, 1024)),
        "lastTransitionTime": random.choice(TIMES) or "",
    }


def scale_down(random: Random) -> dict:
    return {
        "pool": random.choice(("trainer", "fastRollout", "heavyRollout")),
        "victims": random.choices(("math-1-head-1", "other-1-head-1", "x" * 300), k=2),
        "replicas": random.choice(NUMBERS),
        "askedTime": random.choice(TIMES),
        "timedOut": random.random() < 0.5,
    }


def training(random: Random) -> dict:
    return {
        "attempt": random.choice(NUMBERS),
        "observedGeneration": random.choice(NUMBERS),
        "step": random.choice(NUMBERS),
        "totalSteps": random.choice(NUMBERS),
        "weightVersion": random.choice(NUMBERS),
        "released": random.choices(("other-1-head-1", "math-1-head-1", "x" * 300), k=3),
        "trainerStoppedFor": random.choice((None, *NUMBERS)),
        "time": random.choice(TIMES),
    }


FIELDS = {
    "observedGeneration": lambda random: random.choice(NUMBERS),
    "phase": lambda random: random.choice(("Running", "Complete", "nothing", 3, None)),
    "conditions": lambda random: [condition(random) for _ in range(random.randrange(4))],
    "attempt": lambda random: random.choice((*NUMBERS, "two", None)),
    "failures": lambda random: random.choice((*NUMBERS, "none", [])),
    "restarts": lambda random: random.choice(NUMBERS),
    "specDigest": lambda random: random.choice(WORDS),
    "clusterName": lambda random: random.choice((*WORDS, 7)),
    "headPod": lambda random: random.choice(WORDS),
    "startTime": lambda random: random.choice((*TIMES, 0)),
    "attemptTime": lambda random: random.choice(TIMES),
    "suspendTime": lambda random: random.choice(TIMES),
    "completionTime": lambda random: random.choice(TIMES),
    "pools": lambda random: random.choice(([], {"name": "trainer"}, [{"name": "trainer", "ready": -5}])),
    "scaleDowns": lambda random: [scale_down(random) for _ in range(random.randrange(3))],
    "fastRolloutReplicas": lambda random: random.choice(NUMBERS),
    "fastRolloutSelector": lambda random: random.choice(WORDS),
    "training": training,
}


def patch(world: SimulatedKuberay, random: Random, **always: object) -> None:
    """The job's token writes some fields of the status, and `always` these."""
    assert world.job is not None
    raw = json.loads(world.job.status.model_dump_json(by_alias=True))
    for name in random.sample(sorted(FIELDS), random.choice((1, 1, 2, 4, len(FIELDS)))):
        raw[name] = FIELDS[name](random)
    raw |= always
    world.put_job(replace(world.job, status=read_status(raw)))


def heads(world: SimulatedKuberay) -> list[str]:
    """Heads whose driver may run."""
    running = (pod for pod in world.pods.values() if pod.role == "head" and pod.phase == "Running")
    return [pod.name for pod in running if pod.driver is None and pod.main is None and pod.deleting is None]


def rest(world: SimulatedKuberay) -> None:
    """Everybody but the operator does what there is to do."""
    for pod in list(world.pods.values()):
        if pod.deleting is not None:
            world.remove_pod(pod.name)
    world.kuberay_watches()
    world.kuberay()
    for name in list(world.pods):
        world.start_pod(name)
    world.runtime_step()


@pytest.mark.parametrize("seed", range(2))
def test_it_gets_no_other_cluster_by_writing(seed: int) -> None:
    """The attempt that runs goes on, whatever is written: nothing is created or deleted."""
    random = Random(seed)
    world = SimulatedKuberay(new_job(spec()), NOW, lambda found: found[0])
    operator = SimulatedOperator(world)
    for _ in range(3):
        operator.see()
        operator.reconcile()
        rest(world)
    before = len(world.creations), set(world.clusters), heads(world)
    assert before == (1, {"math-1"}, heads(world)) and len(before[2]) == 1
    for _ in range(WRITES):
        patch(world, random)
        world.now += timedelta(seconds=random.choice((0, 0, 1, 20)))
        operator.see()
        operator.reconcile()
        assert (len(world.creations), set(world.clusters), heads(world)) == before
    assert not world.killed and not operator.deleted_job


@pytest.mark.parametrize("head", [None, "x", "uid-of-a-worker"])
def test_another_leader_does_not_take_a_head_for_lost_by_writing(head: str | None) -> None:
    world = SimulatedKuberay(new_job(spec()), NOW, lambda found: found[0])
    operator = SimulatedOperator(world)
    for _ in range(3):
        operator.see()
        operator.reconcile()
        rest(world)
    before = heads(world)
    for _ in range(50):
        assert world.job is not None
        written = world.job.status.model_copy(update={"head_pod": head})
        world.put_job(replace(world.job, status=written))
        operator.restart()
        operator.reconcile()
        world.now += timedelta(seconds=20)
        rest(world)
        assert (len(world.creations), heads(world)) == (1, before)


@pytest.mark.parametrize("seed", range(4))
def test_attempts_are_bounded_where_it_fails_too(seed: int) -> None:
    """A job that writes `failures: 0` all the time, and whose driver fails: backoffLimit holds, each attempt
    waits for its back-off, and there are never two heads. Also where another replica leads now and then."""
    random = Random(seed)
    world = SimulatedKuberay(new_job(spec({"runPolicy.backoffLimit": 3})), NOW, lambda found: found[0])
    operator = SimulatedOperator(world)
    for turn in range(WRITES):
        # The job's pods have its token: without them nobody writes.
        if world.pods:
            patch(world, random, failures=0, restarts=0)
        world.now += timedelta(seconds=random.choice((0, 0, 1, 5)))
        if turn % 50 == 49 and world.clusters:
            operator.restart()
        operator.see()
        operator.reconcile()
        rest(world)
        assert len(heads(world)) <= 1
        if random.random() < 0.1:
            world.end_driver(DriverExit.FAILED, "by itself")
    assert world.job is not None and holds(world.job.status, "Failed")
    times = [time for time, _ in world.creations]
    gaps = [(later - former).total_seconds() for former, later in pairwise(times)]
    assert len(times) <= 4 and all(gap >= 10 for gap in gaps), gaps
    assert world.job.status.failures == 4


@pytest.mark.parametrize("seed", range(2))
def test_a_suspension_ends_in_time(seed: int) -> None:
    """The pods go within suspendGraceSeconds, whatever is written meanwhile."""
    random = Random(seed)
    world = SimulatedKuberay(
        new_job(spec({"runPolicy.suspendGraceSeconds": 60})), NOW, lambda found: found[0]
    )
    operator = SimulatedOperator(world)
    for _ in range(3):
        operator.see()
        operator.reconcile()
        rest(world)
    assert world.job is not None
    world.edit(world.job.spec.model_copy(update={"suspend": True}))  # type: ignore[union-attr]
    began = world.now
    while world.clusters:
        patch(world, random, suspendTime="9999-12-31T23:59:59Z")
        operator.see()
        operator.reconcile()
        world.now += timedelta(seconds=1)
        assert (world.now - began).total_seconds() <= 62
    assert not finished(world.job.status)


def test_no_status_makes_a_decision_fail_or_reaches_another_job() -> None:
    """A new leader, which remembers nothing, with every kind of cluster and pods."""
    random = Random(0)
    own = (cluster(1),), pods()
    for turn in range(WRITES):
        world = SimulatedKuberay(new_job(spec({"suspend": turn % 3 == 0})), NOW, lambda found: found[0])
        patch(world, random)
        clusters, running = own if turn % 2 else ((), ())
        foreign = replace(cluster(1), name="other-1", uid="other", owner="another-job")
        observed = Observed(world.job, (*clusters, foreign), running)
        plan = decide(observed, NOW + timedelta(seconds=turn))
        for action in plan.actions:
            if isinstance(action, DeleteCluster):
                assert action.uid == "cluster-1"
            if isinstance(action, CreateCluster):
                assert action.name == f"{NAME}-{action.attempt}" and len(action.name) <= 53


def test_what_can_be_read_of_a_status_is_kept() -> None:
    known = Status(attempt=2, training=TrainingStatus(step=1, total_steps=2, weight_version=1))
    raw = {**json.loads(known.model_dump_json(by_alias=True)), "failures": "none", "fromTheFuture": 1}
    raw["conditions"] = [
        {"type": "Queued", "status": "True", "reason": "New", "lastTransitionTime": ""},
        {"type": "Complete", "status": "True", "reason": "Completed", "lastTransitionTime": ""},
    ]
    found = read_status(raw)
    assert (found.attempt, found.failures, found.training) == (2, 0, known.training)
    assert finished(found)
    assert read_status("nonsense") == Status()
