"""The operator at size, on a real API server with KubeRay and fake nodes: how fast, how large, how quiet.

For each of the sizes, so many RLJobs of ten pods are created at once; at the last one, pod events, idleness
and a restart are measured too. All of it shares the machine with the control plane.

    python -m tests.bench.operator_scale [--jobs 100 300 1000] [--idle-seconds 600]
"""

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from statistics import median, quantiles

from rljob_client.credentials import find_credentials
from rljob_client.resources import RLJOBS
from tests.bench.figures import Figure, record
from tests.bench.operator_view import View
from tests.support.jobs import job
from tests.support.operator.kube_site import site
from tests.support.operator.operator_site import SMALL, OperatorSite, running_operator
from tools.cluster import Cluster

FAST = 8
PODS_PER_JOB = FAST + 2
PODS_PER_NODE = 200
AT_ONCE = 32
KUBERAY_SECONDS = 258.0
"""Published by KubeRay: 1,000 RayClusters created until all are ready, on a cluster of its own."""
_WRITES = ("create", "apply", "patch", "delete")


def cpu_seconds(operator: OperatorSite) -> float:
    """Used by the operator's process so far."""
    fields = Path(f"/proc/{operator.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def megabytes(operator: OperatorSite, field: str) -> float:
    """`VmRSS` (now) or `VmHWM` (at most so far) of the operator's process."""
    lines = Path(f"/proc/{operator.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


async def create(view: View, namespace: str, jobs: int) -> None:
    """So many RLJobs, as fast as the API server takes them."""
    turn = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        document = job(
            {
                "/metadata.name": f"job-{number}",
                "/metadata.namespace": namespace,
                "image": "rljob/runtime:1",
                "pools.fastRollout.replicas": FAST,
                **{f"pools.{pool}.resources": SMALL for pool in ("head", "trainer", "fastRollout")},
            }
        )
        async with turn:
            await view.client.create(document)

    async with asyncio.TaskGroup() as group:
        for number in range(jobs):
            group.create_task(one(number))


async def grown(view: View, namespace: str, operator: OperatorSite, jobs: int) -> list[Figure]:
    """All jobs are created, and run."""
    used, written, began = cpu_seconds(operator), writes(operator), time.monotonic()
    creating = asyncio.create_task(create(view, namespace, jobs))
    made = await view.until(lambda: len(view.clusters) >= jobs)
    await creating
    states = range(jobs)
    ran = await view.until(lambda: all(view.state(n)[0] == "Running" for n in states))
    name = f"{jobs:,} RLJobs created at once"
    goal = "1,000: below 60 s" if jobs == 1000 else None
    baseline = KUBERAY_SECONDS if jobs == 1000 else None
    return [
        Figure(f"{name}: all RayClusters exist", made - began, "s", goal=goal),
        Figure(f"{name}: all {jobs * PODS_PER_JOB:,} pods ready, jobs Running", ran - began, "s", baseline),
        Figure(
            f"{name}: the operator's CPU time for each, until Running",
            (cpu_seconds(operator) - used) / jobs * 1000,
            "ms",
            goal="linear in the number of jobs, or better",
        ),
        Figure(
            f"{name}: the operator's writes for each, until Running", (writes(operator) - written) / jobs, ""
        ),
    ]


async def latencies(cluster: Cluster, view: View, namespace: str, jobs: int, samples: int) -> list[float]:
    """Seconds from the answer to a change of a pod until the RLJob's status shows it."""
    random, found = Random(1), []
    for _ in range(samples):
        number = random.randrange(jobs)
        pods = view.pods.of((namespace, f"job-{number}")).values()
        name = min(each for each, pool in pods if pool == "fastRollout")
        for ready in ("False", "True"):
            wanted = FAST - (ready == "False")
            await asyncio.to_thread(set_ready, cluster, f"/api/v1/namespaces/{namespace}/pods/{name}", ready)
            began = time.monotonic()
            found.append(await view.until(lambda: view.state(number)[1] == wanted) - began)  # noqa: B023
    return found


def set_ready(cluster: Cluster, path: str, ready: str) -> None:
    """Set the pod's condition Ready."""
    conditions = [
        {**each, "status": ready} if each["type"] == "Ready" else each
        for each in cluster.api.request("GET", path)["status"]["conditions"]
    ]
    cluster.api.request("PATCH", f"{path}/status", {"status": {"conditions": conditions}})


def writes(operator: OperatorSite) -> float:
    """Writes of the operator so far, but for its lease."""
    return sum(
        operator.metric("rljob_api_calls_total", f'verb="{verb}"')
        - operator.metric("rljob_api_calls_total", f'verb="{verb}"', 'resource="leases"')
        for verb in _WRITES
    )


async def idle(operator: OperatorSite, seconds: float) -> float:
    """Writes of the operator while nothing happens."""
    before = writes(operator)
    await asyncio.sleep(seconds)  # that nothing happens is what is measured
    return writes(operator) - before


def leads(operator: OperatorSite) -> None:
    """Wait until the operator holds its lease. TimeoutError."""
    deadline = time.monotonic() + 60
    while operator.metric("rljob_leader") < 1:
        operator.process.check()
        if time.monotonic() > deadline:
            raise TimeoutError("the operator does not get its lease")
        time.sleep(0.2)  # a metric gives no event


def versions(cluster: Cluster, namespace: str) -> dict[str, str]:
    """resourceVersions of the RLJobs and RayClusters, and of what belongs to the jobs besides."""
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    paths = [
        f"/apis/rljob.dev/v1alpha1/namespaces/{namespace}/rljobs",
        f"/apis/ray.io/v1/namespaces/{namespace}/rayclusters",
        *(f"{rbac}/{kind}" for kind in ("roles", "rolebindings")),
        f"/api/v1/namespaces/{namespace}/serviceaccounts",
    ]
    return {
        f"{path}/{each['metadata']['name']}": each["metadata"]["resourceVersion"]
        for path in paths
        for each in cluster.api.request("GET", path, seconds=120)["items"]
    }


async def restarted(cluster: Cluster, view: View, operator: OperatorSite, namespace: str) -> list[Figure]:
    """The operator is killed and started again."""
    await asyncio.to_thread(operator.process.stop, True)
    before = await asyncio.to_thread(versions, cluster, namespace)
    began = time.monotonic()
    starting = await asyncio.to_thread(started, operator, "Operator killed and started again")
    desired = {"spec": {"pools": {"fastRollout": {"replicas": FAST + 1}}}}
    await view.client.patch(RLJOBS, namespace, "job-0", desired)
    works = await view.until(lambda: view.state(0)[1] == FAST + 1)
    after = await asyncio.to_thread(versions, cluster, namespace)
    own = {name for name in before if not name.endswith(("/job-0", "/job-0-1"))}
    changed = sum(before[name] != after.get(name) for name in own)
    return [
        *starting,
        Figure("Operator killed and started again: objects changed", changed, "", goal="0"),
        Figure(
            "Operator killed and started again: a scale-up done after", works - began, "s", goal="below 30 s"
        ),
    ]


def started(operator: OperatorSite, name: str) -> list[Figure]:
    """The operator is started; what that takes until it is ready."""
    began = time.monotonic()
    operator.process.start()
    return [
        Figure(f"{name}: ready after", time.monotonic() - began, "s"),
        Figure(f"{name}: CPU time until ready", cpu_seconds(operator), "s"),
        Figure(f"{name}: memory when ready", megabytes(operator, "VmRSS"), "MiB"),
    ]


async def one_size(
    cluster: Cluster,
    operator: OperatorSite,
    namespace: str,
    jobs: int,
    idle_seconds: float | None,
    samples: int,
) -> list[Figure]:
    """All figures at a size; without `idle_seconds`, those of its growth alone."""
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    cluster.api.request("POST", "/api/v1/namespaces", body)
    cluster.wait(f"/api/v1/namespaces/{namespace}/serviceaccounts", bool, "a default service account")
    async with site(find_credentials(cluster.kubeconfig)) as made, asyncio.TaskGroup() as group:
        view = View(made, namespace)
        looking = view.run(group)
        await asyncio.to_thread(leads, operator)
        figures = await grown(view, namespace, operator, jobs)
        if idle_seconds is not None:
            figures += await settled(cluster, view, operator, namespace, jobs, idle_seconds, samples)
        cluster.api.request("DELETE", f"/api/v1/namespaces/{namespace}")
        await view.until(lambda: len(view.pods) == len(view.clusters) == len(view.jobs) == 0)
        for task in looking:
            task.cancel()
    return figures


async def settled(
    cluster: Cluster,
    view: View,
    operator: OperatorSite,
    namespace: str,
    jobs: int,
    idle_seconds: float,
    samples: int,
) -> list[Figure]:
    """Figures of jobs that run."""
    seconds = await latencies(cluster, view, namespace, jobs, samples)
    await asyncio.sleep(5.0)  # the last writes that follow from it
    made = await idle(operator, idle_seconds)
    size = f"{jobs:,} jobs, {jobs * PODS_PER_JOB:,} pods"
    return [
        Figure(f"{size}: pod event to RLJob status, p50", median(seconds) * 1000, "ms"),
        Figure(
            f"{size}: pod event to RLJob status, p99",
            quantiles(seconds, n=100)[98] * 1000,
            "ms",
            goal="below 1 s",
        ),
        Figure(f"{size}: operator's memory now", megabytes(operator, "VmRSS"), "MiB", goal="below 256 MiB"),
        Figure(f"{size}: operator's memory at most", megabytes(operator, "VmHWM"), "MiB"),
        Figure(f"{size}: writes in {idle_seconds:g} s without events", made, "", goal="0"),
        *(await restarted(cluster, view, operator, namespace)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--jobs", type=int, nargs="+", default=[100, 300, 1000], help="sizes, the last in full"
    )
    parser.add_argument("--idle-seconds", type=float, default=600.0, help="how long idleness is measured")
    parser.add_argument("--samples", type=int, default=200, help="pods that change twice")
    options = parser.parse_args()
    nodes = {"nvidia.com/gpu": -(-max(options.jobs) * PODS_PER_JOB // PODS_PER_NODE) + 1}
    with Cluster(nodes=nodes) as cluster, tempfile.TemporaryDirectory() as folder:
        record("operator_scale", list(sizes(cluster, Path(folder), options)))


def sizes(cluster: Cluster, folder: Path, options: argparse.Namespace) -> Iterator[Figure]:
    """Every size, the last one in full."""
    for number, jobs in enumerate(options.jobs, 1):
        full = options.idle_seconds if number == len(options.jobs) else None
        # A process for each size: what was used at one does not count at the next.
        with running_operator(cluster, folder, None, name=f"operator-{jobs}") as operator:
            work = one_size(cluster, operator, f"jobs-{jobs}", jobs, full, options.samples)
            yield from asyncio.run(work)


if __name__ == "__main__":
    main()
