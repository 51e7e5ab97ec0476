"""`rljob drive` as a process of its own: a real API server, a real Ray cluster whose nodes stand for pods."""

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rljob_runtime.trace.record.metrics_log import METRICS_FILE, read_metrics
from tests.support.runtime.prepared import Prepared
from tests.support.runtime.ray_pods import RayPods
from tests.support.runtime.runs import PROMPTS, manifest
from tools.cluster import Cluster
from tools.cluster.api import Object

NAME = "driven"
_SECONDS = 240.0
"""Deadline of a wait in which processes start, on a machine that does much else."""
PACE = "pace"
"""File in the working directory: how long a sample's reward takes, in seconds. A step has eight."""
IDLE, WALKING = 4.0, 0.25
"""While the test does something else a step takes half a minute, so that a job of 40 does not end before its
test is through; while it waits for what comes with the end of a step, two seconds."""
TEST_SECONDS = 1200.0
"""For a test of this kind."""
REWARD = f"""
import pathlib, time
from rljob_runtime.rewards.tasks import copy

def paced(sample):
    time.sleep(float(pathlib.Path({PACE!r}).read_text()))
    return copy(sample)
"""


class Driven:
    """An RLJob in the API server, and its driver; what the operator would do is up to the test."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        pods: RayPods | None,
        folder: Path,
        document: dict[str, Any],
    ) -> None:
        """`folder` is the driver's working directory. `pods`: None where each `start` names its own."""
        self.cluster = cluster
        self.pods = pods
        self.folder = folder
        self.run_folder = folder / "runs" / namespace / NAME
        self.termination_log = folder / "termination-log"
        self.log = folder / "out.log"
        self.path = f"/apis/rljob.dev/v1alpha1/namespaces/{namespace}/rljobs/{NAME}"
        self._namespace = namespace
        self._attempt = 0
        self.process: subprocess.Popen[bytes] | Prepared
        self.alive_file = folder / "alive"
        self.key_file = folder / "wire-key"
        self.key_file.write_text(secrets.token_hex(32))
        document = {**document, "metadata": {"name": NAME, "namespace": namespace}}
        cluster.api.apply(self.path, document)
        _allow(cluster, namespace)

    def start(self, pods: RayPods | None = None, image: Mapping[str, str] | None = None) -> None:
        """Start the driver of the next attempt, on the same Ray cluster or on that of `pods`. `image`: its
        environment, where that is another release's (`Release.environment`)."""
        self._attempt += 1
        self.pods = pods or self.pods
        environment = {
            **os.environ,
            **(image or {}),
            "RLJOB_NAME": NAME,
            "RLJOB_NAMESPACE": self._namespace,
            "RLJOB_ATTEMPT": str(self._attempt),
            "RLJOB_RUN_FOLDER": str(self.run_folder),
            "RLJOB_KEY_FILE": str(self.key_file),
            "RLJOB_ALIVE_FILE": str(self.alive_file),
            "RLJOB_RAY_ADDRESS": self.pods.address,
            "RLJOB_KUBECONFIG": str(self.cluster.kubeconfig_of(self._namespace, f"{NAME}-driver")),
            "RLJOB_TERMINATION_LOG": str(self.termination_log),
        }
        module, arguments = "rljob_runtime.cli", ["drive"]
        with self.log.open("a") as log:
            if image is None:
                self.process = Prepared(module, arguments, log, environment, self.folder)
            else:  # whose modules are others
                self.process = subprocess.Popen(
                    [sys.executable, "-m", module, *arguments],
                    env=environment, cwd=self.folder, stdout=log, stderr=subprocess.STDOUT,
                )  # fmt: skip

    def ask(self, **spec: Any) -> None:
        """Change the spec, as `kubectl patch --type merge` does."""
        self.cluster.api.request("PATCH", self.path, {"spec": spec})

    def operator_saw(self, trainer: int | None = None) -> None:
        """The operator says that it has acted on the spec as it is now, and is about to make the trainer's
        pool have `trainer` workers, where that is given."""
        generation = self.cluster.api.request("GET", self.path)["metadata"]["generation"]
        resizes = [] if trainer is None else [{"pool": "trainer", "replicas": trainer}]
        status = {"observedGeneration": generation, "scaleDowns": resizes}
        self.cluster.api.request("PATCH", f"{self.path}/status", {"status": status})

    @property
    def training(self) -> Object:
        """status.training now."""
        found: Object = self.cluster.api.request("GET", self.path).get("status", {}).get("training", {})
        return found

    def trained(self) -> dict[int, list[int]]:
        """Prompts by step, as the run recorded them."""
        return {row["step"]: row["uids"] for row in read_metrics(self.run_folder / METRICS_FILE).rows}

    def wait_for(self, done: Callable[[Object], object], what: str, seconds: float = _SECONDS) -> Object:
        """Wait until `done(status.training)`; the status of which it said so."""
        found: Object = {}

        def there() -> object:
            found.clear()
            found.update(self.training)
            # The driver may not have written any status yet.
            return found and done(found)

        self.wait(there, what, seconds)
        return found

    def wait_for_step(self, step: int) -> None:
        """Until `step` steps are recorded. A job of `paced` makes them faster meanwhile."""
        with self.walking():
            self.wait(lambda: len(self.trained()) >= step, f"step {step}")

    @contextmanager
    def walking(self) -> Iterator[None]:
        """A job of `paced` takes two seconds for a step meanwhile."""
        paced = (self.folder / PACE).exists() and _pace(self.folder) == IDLE
        if paced:
            _set_pace(self.folder, WALKING)
        try:
            yield
        finally:
            if paced:
                _set_pace(self.folder, IDLE)

    def wait(self, done: Callable[[], object], what: str, seconds: float = _SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not done():
            assert self.process.poll() is None, (
                f"ended with {self.process.returncode} before {what}: {self.said}"
            )
            assert time.monotonic() < deadline, f"no {what} in {seconds:g} s: {self.said}"
            time.sleep(0.2)

    def end(self, seconds: float = _SECONDS) -> int:
        """Wait for the driver's end, which may have to wait for that of a step; its exit code."""
        with self.walking():
            return self.process.wait(seconds)

    @property
    def said(self) -> str:
        """All that the driver printed."""
        return self.log.read_text()


@contextmanager
def driven(
    cluster: Cluster, namespace: str, pods: RayPods, folder: Path, document: dict[str, Any]
) -> Iterator[Driven]:
    """A driver that runs."""
    run = Driven(cluster, namespace, pods, folder, document)
    run.start()
    try:
        yield run
    finally:
        if run.process.poll() is None:
            run.process.kill()
            run.process.wait(30)


def _allow(cluster: Cluster, namespace: str) -> None:
    """What the operator gives a driver, and no more."""
    account = f"{NAME}-driver"
    core, rbac = f"/api/v1/namespaces/{namespace}", "/apis/rbac.authorization.k8s.io/v1"
    metadata = {"name": account, "namespace": namespace}
    rules = [
        {"resources": ["rljobs"], "verbs": ["get", "watch"]},
        {"resources": ["rljobs/status"], "verbs": ["patch"]},
    ]
    rules = [{**rule, "apiGroups": ["rljob.dev"], "resourceNames": [NAME]} for rule in rules]
    subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    reference = {"kind": "Role", "name": account, "apiGroup": "rbac.authorization.k8s.io"}
    for path, body in (
        (f"{core}/serviceaccounts", {"apiVersion": "v1", "kind": "ServiceAccount"}),
        (f"{rbac}/namespaces/{namespace}/roles", {"kind": "Role", "rules": rules}),
        (
            f"{rbac}/namespaces/{namespace}/rolebindings",
            {"kind": "RoleBinding", "subjects": [subject], "roleRef": reference},
        ),
    ):
        document = {"apiVersion": "rbac.authorization.k8s.io/v1", **body, "metadata": metadata}
        cluster.api.request("POST", path, document)


def paced(folder: Path, steps: int, pools: dict[str, Any], **training: Any) -> dict[str, Any]:
    """A job whose reward comes from the working directory and holds it up until `hurry`."""
    (folder / "pace.py").write_text(REWARD)
    _set_pace(folder, IDLE)
    reward = {"function": "pace:paced", "workers": 1, "timeoutSeconds": 60}
    return manifest(folder, steps, pools, reward=reward, **training)[1]


def hurry(run: Driven) -> None:
    """From now on steps take no longer than they must."""
    _set_pace(run.folder, 0.0)


def _pace(folder: Path) -> float:
    return float((folder / PACE).read_text())


def _set_pace(folder: Path, seconds: float) -> None:
    # In one step: the reward reads the old pace or the new one.
    new = folder / f"{PACE}.new"
    new.write_text(str(seconds))
    new.replace(folder / PACE)


def assert_every_prompt_once(run: Driven, steps: int) -> None:
    trained = run.trained()
    assert sorted(trained) == list(range(steps))
    assert sorted(uid for uids in trained.values() for uid in uids) == list(range(steps * PROMPTS))
