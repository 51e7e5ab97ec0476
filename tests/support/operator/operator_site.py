"""An operator as a process, and a client that plays the user of an RLJob and its runtime.

with running_operator(cluster, tmp_path, namespace) as operator:
    client = JobClient(cluster, namespace)
    client.create()
    client.wait_phase("Running")
    operator.process.stop(kill=True)
    operator.process.start()
"""

import json
import os
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

import rljob_api
import rljob_client
import rljob_operator
from tests.support.jobs import job
from tools.cluster import ApiError, Cluster
from tools.cluster.control_plane import answers
from tools.cluster.ports import Ports
from tools.cluster.processes import Process

ROOT = Path(__file__).parents[3]
PACKAGES = (rljob_api, rljob_client, rljob_operator)
OWN_PYTHONPATH = os.pathsep.join(str(Path(each.__path__[0]).parent) for each in PACKAGES)
"""Of this checkout's operator."""
SECONDS = 300.0
"""A machine that does much else at the same time may be slow; an event ends every wait."""
SMALL = {"requests": {"cpu": "100m", "memory": "64Mi"}}

Object = dict[str, Any]
Found = TypeVar("Found")


@dataclass
class OperatorSite:
    """One replica of the operator."""

    process: Process
    url: str
    """Where it serves /healthz, /readyz and /metrics."""

    def readiness(self) -> tuple[int, str]:
        """Status and text of /readyz; 0 and why while nothing answers."""
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=10.0) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def metric(self, name: str, *labels: str) -> float:
        """Sum of a metric's values that have all these labels, such as `verb="get"`."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=SECONDS) as answer:
            lines = answer.read().decode().splitlines()
        return sum(
            float(line.rpartition(" ")[2])
            for line in lines
            if line.startswith((f"{name} ", f"{name}{{")) and all(label in line for label in labels)
        )


@contextmanager
def running_operator(
    cluster: Cluster,
    folder: Path,
    namespace: str | None,
    *,
    name: str = "operator",
    server: str | None = None,
    kubeconfig: Path | None = None,
    start: bool = True,
    lease_namespace: str | None = None,
    arguments: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
) -> Iterator[OperatorSite]:
    """An operator for one namespace, or for all; what it logged is printed in the end, for pytest to show
    where a test failed.

    `server`: URL of a proxy to go through. `kubeconfig`: as whom; default: as administrator. `environment`:
    variables of the process, such as another release's PYTHONPATH.
    """
    ports = Ports()
    port = ports.take()
    command = [sys.executable, "-m", "rljob_operator.controller.main", "--host=127.0.0.1", f"--port={port}"]
    command += [f"--kubeconfig={_kubeconfig(kubeconfig or cluster.kubeconfig, folder / name, server)}"]
    command += [f"--lease-namespace={lease_namespace or namespace or 'default'}", *arguments]
    command += [f"--namespace={namespace}"] if namespace else []
    url = f"http://127.0.0.1:{port}"
    # Without an environment, the operator of the checkout whose tests these are, and not the installed one.
    given = environment if environment is not None else {"PYTHONPATH": OWN_PYTHONPATH}
    log = folder / f"{name}.log"
    process = Process(name, command, log, answers(f"{url}/readyz"), given, stop_seconds=20.0)
    try:
        if start:
            process.start()
        yield OperatorSite(process, url)
        process.check()
    finally:
        process.stop()
        ports.give_back()
        if process.log.exists():
            print(process.log.read_text()[-20_000:])


def _kubeconfig(config: Path, path: Path, server: str | None) -> Path:
    if server is None:
        return config
    changed = yaml.safe_load(config.read_text())
    changed["clusters"][0]["cluster"] = {"server": server}
    path.touch(mode=0o600)  # before the token is in it
    path.write_text(yaml.safe_dump(changed))
    return path


SHARED = {"storage.volume": {"nfs": {"server": "files", "path": "/runs"}}}
"""What a job with several trainer pods needs; pods of fake nodes mount nothing."""


class JobClient:
    """Makes, changes and reads one RLJob and its objects: as its user does, and as the runtime does."""

    def __init__(self, cluster: Cluster, namespace: str, name: str = "test") -> None:
        """`name`: the RLJob's."""
        self.cluster = cluster
        self.namespace = namespace
        self.name = name
        self.jobs = f"/apis/rljob.dev/v1alpha1/namespaces/{namespace}/rljobs"
        self.pods_path = f"/api/v1/namespaces/{namespace}/pods"
        self.clusters_path = f"/apis/ray.io/v1/namespaces/{namespace}/rayclusters"
        self._touched = 0

    # A person

    def create(self, changes: Object | None = None) -> Object:
        """Make the job, with small pods."""
        small = {
            "image": "rljob/runtime:1",
            "/metadata.name": self.name,
            "/metadata.namespace": self.namespace,
            **{f"pools.{pool}.resources": SMALL for pool in ("head", "trainer", "fastRollout")},
        }
        made: Object = self.cluster.api.request("POST", self.jobs, job({**small, **(changes or {})}))
        return made

    def patch(self, spec: Object) -> Object:
        """Change the spec: a merge patch."""
        changed: Object = self.cluster.api.request("PATCH", f"{self.jobs}/{self.name}", {"spec": spec})
        return changed

    def scale(self, fast: int) -> None:
        """Ask for so many fast rollout workers."""
        self.patch({"pools": {"fastRollout": {"replicas": fast}}})

    def get(self) -> Object:
        found: Object = self.cluster.api.request("GET", f"{self.jobs}/{self.name}")
        return found

    def columns(self) -> dict[str, str]:
        """What `kubectl get` prints of the job, by column."""
        head, row = self.cluster.kubectl("get", "rlj", self.name, "-n", self.namespace).splitlines()
        # Columns begin below their titles; a cell may have blanks in it.
        starts = [head.index(title) for title in head.split()]
        ends = [*starts[1:], None]
        return {head[a:b].strip(): row[a:b].strip() for a, b in zip(starts, ends, strict=True)}

    # Waiting

    def wait(self, done: Callable[[Object], bool], what: str, seconds: float = SECONDS) -> Object:
        """The job, as soon as `done` says so of it."""
        name = self.name

        def found(jobs: list[Object]) -> list[Object]:
            return [each for each in jobs if each["metadata"]["name"] == name and done(each)]

        try:
            return found(self.cluster.wait(self.jobs, lambda jobs: bool(found(jobs)), what, seconds=seconds))[
                0
            ]
        except TimeoutError as error:
            error.add_note(json.dumps(self.get().get("status", {}), indent=1))
            raise

    def wait_phase(self, phase: str, attempt: int | None = None, seconds: float = SECONDS) -> Object:
        """The job, as soon as it is in this phase (and attempt)."""

        def done(each: Object) -> bool:
            status = each.get("status", {})
            return status.get("phase") == phase and attempt in (None, status.get("attempt"))

        return self.wait(done, f"phase {phase}", seconds)

    @contextmanager
    def seeing_phase(self, phase: str) -> Iterator[None]:
        """The job comes into this phase, and maybe out of it, because of what is done in the body. It is
        watched from before that: a phase that lasts for a moment is not missed."""
        watched = threading.Event()

        def done(each: Object) -> bool:
            watched.set()
            return bool(each.get("status", {}).get("phase") == phase)

        with ThreadPoolExecutor(1) as pool:
            seen = pool.submit(self.wait, done, f"phase {phase}")
            assert watched.wait(SECONDS), f"{self.name} was not found"
            yield
            seen.result()

    def wait_condition(self, kind: str, status: str, reason: str | None = None) -> Object:
        """The condition, as soon as it is so."""

        def found(each: Object) -> Object | None:
            there = condition(each, kind)
            right = there is not None and there["status"] == status and reason in (None, there["reason"])
            return there if right else None

        name = f"{kind}={status}" + (f" ({reason})" if reason else "")
        there = found(self.wait(lambda each: found(each) is not None, name))
        assert there is not None
        return there

    def wait_pods(self, done: Callable[[list[Object]], bool], what: str) -> list[Object]:
        """The job's pods, as soon as `done` says so of them."""
        label = f"rljob.dev/job={self.name}"
        return self.cluster.wait(self.pods_path, done, what, seconds=SECONDS, labelSelector=label)

    def wait_event(self, reason: str) -> str:
        """The message of an Event about the job."""
        events = f"/api/v1/namespaces/{self.namespace}/events"

        def found(items: list[Object]) -> list[str]:
            mine = [each for each in items if each["involvedObject"]["name"] == self.name]
            return [each["message"] for each in mine if each["reason"] == reason]

        return found(
            self.cluster.wait(events, lambda items: bool(found(items)), f"Event {reason}", seconds=SECONDS)
        )[0]

    def operator_has_seen(self) -> None:
        """Until the operator has seen all that was written to the job before this call: it tells what it sees
        of a job in the order in which that was written."""
        generation = self.patch({"runPolicy": {"activeDeadlineSeconds": 86_400 + self._touched}})["metadata"]
        self._touched += 1
        self.wait(
            lambda job: job["status"].get("observedGeneration", 0) >= generation["generation"],
            f"generation {generation['generation']} seen",
        )

    def wait_gone(self) -> None:
        """Nothing of the job is left."""
        rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{self.namespace}"
        paths = [self.jobs, self.clusters_path, self.pods_path, f"{rbac}/roles", f"{rbac}/rolebindings"]
        paths += [f"/api/v1/namespaces/{self.namespace}/{each}" for each in ("serviceaccounts", "secrets")]
        paths += [f"/apis/networking.k8s.io/v1/namespaces/{self.namespace}/networkpolicies"]

        def own(items: list[Object]) -> list[str]:
            names = [each["metadata"]["name"] for each in items]
            return [each for each in names if each == self.name or each.startswith(f"{self.name}-")]

        for path in paths:
            self.cluster.wait(path, lambda items: not own(items), f"nothing of {self.name}", seconds=SECONDS)

    # The runtime, the kubelet, the cluster

    def report(self, **training: Any) -> None:
        """The driver writes its part of the status, as of the attempt and generation that there are."""
        now = self.get()
        known = {
            "attempt": now["status"]["attempt"],
            "observedGeneration": now["metadata"]["generation"],
            "step": 3,
            "totalSteps": 4,
            "weightVersion": 3,
            "progress": "3/4",
        }
        document = {
            "apiVersion": "rljob.dev/v1alpha1",
            "kind": "RLJob",
            "metadata": {"name": self.name, "namespace": self.namespace},
            "status": {"training": {**known, **training}},
        }
        options = [
            "--server-side",
            "--force-conflicts",
            "--field-manager=rljob-runtime",
            "--subresource=status",
        ]
        self.cluster.kubectl("apply", *options, "-f", "-", stdin=json.dumps(document))

    def pods(self, pool: str | None = None) -> list[Object]:
        """The job's pods, of one pool or of all."""
        label = f"rljob.dev/job={self.name}" + (f",rljob.dev/pool={pool}" if pool else "")
        return self.cluster.api.items(self.pods_path, {"labelSelector": label})

    def set_pod_status(self, name: str, status: Object) -> None:
        self.cluster.api.request("PATCH", f"{self.pods_path}/{name}/status", {"status": status})

    def delete_pod(self, name: str, **options: Any) -> None:
        self.cluster.api.request("DELETE", f"{self.pods_path}/{name}", options or None)

    def end_driver(self, code: int, message: str = "") -> None:
        """The driver's container exits; Ray's goes on."""
        attempt = str(self.get()["status"]["attempt"])
        # The head of an attempt that has ended may still be on its way out.
        [head] = [
            pod for pod in self.pods("head") if pod["metadata"]["labels"]["rljob.dev/attempt"] == attempt
        ]
        reason = "Completed" if code == 0 else "Error"
        finished = {"exitCode": code, "reason": reason, "message": message, "finishedAt": _now(head)}
        statuses = [
            {**each, "ready": False, "started": False, "state": {"terminated": finished}}
            if each["name"] == "driver"
            else each
            for each in head["status"]["containerStatuses"]
        ]
        conditions = [
            {**each, "status": "False"} if each["type"] in ("Ready", "ContainersReady") else each
            for each in head["status"]["conditions"]
        ]
        changed = {"containerStatuses": statuses, "conditions": conditions}
        self.set_pod_status(head["metadata"]["name"], changed)

    def fail_pod(self, name: str, **more: Any) -> None:
        """A worker's container ends with exit code 1; `more` goes into the pod's status."""
        pod = self.cluster.api.request("GET", f"{self.pods_path}/{name}")
        finished = {"exitCode": 1, "reason": "Error", "finishedAt": _now(pod)}
        statuses = [
            {**each, "ready": False, "started": False, "state": {"terminated": finished}}
            for each in pod["status"]["containerStatuses"]
        ]
        self.set_pod_status(name, {"phase": "Failed", "containerStatuses": statuses, **more})

    def versions(self) -> dict[str, str]:
        """resourceVersions of the job and of all that the operator makes for it, by path."""
        rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{self.namespace}"
        paths = [self.jobs, self.clusters_path, self.pods_path, f"{rbac}/roles", f"{rbac}/rolebindings"]
        paths += [f"/api/v1/namespaces/{self.namespace}/serviceaccounts"]
        return {
            f"{path}/{each['metadata']['name']}": each["metadata"]["resourceVersion"]
            for path in paths
            for each in self.cluster.api.items(path)
        }


def until(found: Callable[[], Found], what: str) -> Found:
    """Wait for what no watch tells of: what `found()` gives, once that is true."""
    deadline = time.monotonic() + SECONDS
    while not (there := found()):
        assert time.monotonic() < deadline, f"not after {SECONDS:g} s: {what}"
        time.sleep(0.2)
    return there


def condition(item: Object, kind: str) -> Object | None:
    """A condition of an RLJob."""
    conditions = item.get("status", {}).get("conditions", [])
    return next((each for each in conditions if each["type"] == kind), None)


def writes(cluster: Cluster, namespace: str, user: str | None = None) -> list[Object]:
    """Requests in the audit log that changed something in a namespace; Leases do not count."""
    return [
        event
        for event in cluster.audit_events(user)
        if event["verb"] in ("create", "update", "patch", "delete", "deletecollection")
        and event.get("objectRef", {}).get("namespace") == namespace
        and event["objectRef"]["resource"] != "leases"
    ]


def as_operator(cluster: Cluster, namespace: str, name: str = "the-operator") -> Path:
    """A kubeconfig of an account of the operator's own, so that the audit log tells its requests."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
    cluster.api.request("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", account)
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": f"{namespace}-{name}"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
    }
    try:
        cluster.api.request("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)
    except ApiError as error:
        if error.reason != "AlreadyExists":
            raise
    return cluster.kubeconfig_of(namespace, name)


def _now(pod: Object) -> str:
    """A time after the pod's start."""
    started: str = pod["status"].get("startTime", pod["metadata"]["creationTimestamp"])
    return started
