"""A head that is lost while a node is away, on a real API server with KubeRay and the real scheduler.

A job takes all fake nodes: one for the trainer, one for each rollout pod. One of them is closed and the head
pod deleted: the next attempt finds room for all but one pod. It has to train without a rollout pod, Degraded,
long after its start deadline, and to be whole again once the node is back. Each time it is another job, since
heads that vanish soon after each other are waited for longer and longer.

    python -m tests.bench.shrunken_cluster
"""

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.bench.figures import Figure, parser, record
from tests.support.operator.operator_site import SMALL, JobClient, Object, condition, running_operator
from tools.cluster import Cluster

NAMESPACE = "shrunken"
JOBS = 10
POOLS = ("fastRollout", "trainer")
"""Whose node is away, in turn."""
ROLLOUT_PODS = 3
START_DEADLINE = 10
"""Seconds; far less than a node is away in production, and more than the scheduler needs for four pods."""


@dataclass(frozen=True)
class Lost:
    """What one lost head cost."""

    starts: float
    """Seconds until all pods but one ran in the next attempt."""
    outlasts: bool
    """Whether that attempt was Running and Degraded after its start deadline."""
    recovers: float
    """Seconds from the node's return until nothing was missing."""


@contextmanager
def running_job(cluster: Cluster, name: str) -> Iterator[JobClient]:
    """A job that trains, on all nodes."""
    job = JobClient(cluster, NAMESPACE, name)
    whole_node = {"acceleratorsPerWorker": 8, "resources": SMALL}
    job.create(
        {
            "accelerator": "nvidia",
            "pools.trainer": {"replicas": 1, **whole_node},
            "pools.fastRollout": {"replicas": ROLLOUT_PODS, **whole_node},
            "runPolicy": {"startDeadlineSeconds": START_DEADLINE},
        }
    )
    job.wait_phase("Running")
    trains(job)
    yield job
    cluster.kubectl("delete", "rlj", name, "-n", NAMESPACE)
    job.wait_gone()


def trains(job: JobClient) -> None:
    """The driver reports that it trains."""
    job.report(reward=0.5, time=datetime.now(UTC).isoformat(timespec="seconds"))


@contextmanager
def node_closed(job: JobClient, pool: str) -> Iterator[None]:
    """The node of a pool's first pod takes no pods, and the head is deleted."""
    node = job.pods(pool)[0]["spec"]["nodeName"]
    job.cluster.kubectl("cordon", node)
    [head] = job.pods("head")
    job.delete_pod(head["metadata"]["name"], gracePeriodSeconds=0)
    yield
    job.cluster.kubectl("uncordon", node)


def lacks_one(job: Object) -> bool:
    """Whether the second attempt waits for one rollout pod and for nothing else."""
    message: str = (condition(job, "PodsReady") or {}).get("message", "")
    lacks = message.startswith(f"Waiting for 1 of {ROLLOUT_PODS} fast-rollout pods: ")
    return job["status"].get("attempt") == 2 and lacks


def lose_a_head(job: JobClient, pool: str) -> Lost:
    """While a node of this pool is away."""
    began = time.monotonic()
    with node_closed(job, pool):
        job.wait(lacks_one, "an attempt with one rollout pod too few")
        starts = time.monotonic() - began
        trains(job)
        job.wait_phase("Running", attempt=2)
        time.sleep(START_DEADLINE + 1)  # nothing is to happen
        job.operator_has_seen()
        seen = job.get()
        why = (condition(seen, "Degraded") or {}).get("reason")
        outlasts = (seen["status"]["phase"], why) == ("Running", "RolloutWorkersMissing")
        began = time.monotonic()
    job.wait_condition("Degraded", "False")
    return Lost(starts, outlasts, time.monotonic() - began)


def main() -> None:
    """Measure and record."""
    out = parser(__doc__).parse_args().out
    with (
        Cluster(nodes={"nvidia.com/gpu": 1 + ROLLOUT_PODS}) as cluster,
        tempfile.TemporaryDirectory() as folder,
    ):
        cluster.api.request("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        cluster.wait(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", bool, "a default service account")
        with running_operator(cluster, Path(folder), NAMESPACE):
            found = []
            for number in range(JOBS):
                with running_job(cluster, f"math-{number}") as job:
                    found.append(lose_a_head(job, POOLS[number % len(POOLS)]))
    record(
        "shrunken_cluster",
        [
            Figure("lost heads", JOBS, "heads"),
            Figure(
                f"of these: Running and Degraded {START_DEADLINE + 1} s later",
                sum(each.outlasts for each in found),
                "attempts",
                goal="all",
            ),
            Figure(
                "lost head to pods that can train, median",
                round(statistics.median(each.starts for each in found), 1),
                "s",
            ),
            Figure(
                "node back to not Degraded, median",
                round(statistics.median(each.recovers for each in found), 1),
                "s",
            ),
        ],
        out,
    )


if __name__ == "__main__":
    main()
