"""A job in the real cluster as its user has it: kubectl, the volume of its run folder, and nothing else.

Volumes are folders of this machine, in which tests also look at what a run recorded.
"""

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rljob_runtime.trace.record.metrics_log import METRICS_FILE, read_metrics
from tests.support.jobs import job
from tools.cluster import Cluster, demo
from tools.cluster.api import Object, holds

PROMPTS = 4
"""Prompts of a step."""
SECONDS = 400.0
"""Deadline of a wait in which pods start; a machine that does much else at the same time is slow."""
END_SECONDS = 600.0
"""For all steps that are left, from `hurry` on."""
CLAIM = "runs"
PACE = "pace"
"""File in the volume: how long a sample's reward takes, in seconds. A step has eight."""
IDLE, WALKING = 4.0, 0.2
"""While the test does something else a step takes half a minute, so that no job ends before its test is
through; while it waits for what comes with the end of a step, about two seconds."""
REWARD = f"""
import pathlib, time
from rljob_runtime.rewards.tasks import copy

def paced(sample):
    time.sleep(float(pathlib.Path({PACE!r}).read_text()))
    return copy(sample)
"""
POOL_LABEL = "rljob.dev/pool"


def new_namespace(cluster: Cluster, name: str) -> None:
    """A namespace that takes none but restricted pods."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    cluster.api.request("POST", "/api/v1/namespaces", body)
    # Before the controller has made it, the API server refuses every pod.
    cluster.wait(f"/api/v1/namespaces/{name}/serviceaccounts", bool, f"a default service account in {name}")


def claim(cluster: Cluster, namespace: str) -> Path:
    """A volume and the namespace's claim `runs` to it; its folder on this machine."""
    folder = cluster.folder / "volumes" / namespace
    folder.mkdir(parents=True)
    folder.chmod(0o777)  # the pods' user is none of this machine's
    (folder / "pace.py").write_text(REWARD)
    _set_pace(folder, IDLE)
    cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(demo.claim(namespace, CLAIM, folder)))
    return folder


@dataclass(frozen=True)
class NodeJob:
    """An RLJob `name` in a namespace whose claim `runs` is `volume`."""

    cluster: Cluster
    namespace: str
    volume: Path
    name: str = "learn"

    # What a person does

    def apply(self, steps: int, changes: dict[str, Any] | None = None) -> None:
        """A job of one pass over `steps` steps' prompts with small torch engines; `hurry` speeds it up."""
        small = {
            "/metadata.name": self.name,
            "storage": {"volume": {"persistentVolumeClaim": {"claimName": CLAIM}}},
            "pools": {"fastRollout": {"replicas": 1}, "heavyRollout": {"replicas": 0}},
            "training.data": {
                "generated": {"task": "copy", "rows": steps * PROMPTS},
                "maxPromptTokens": 8,
            },
            "training.reward": {"function": "pace:paced", "workers": 1, "timeoutSeconds": 60},
            "training.rollout": {
                "engine": {"torch": {}},
                "samplesPerPrompt": 2,
                "maxResponseTokens": 32,
                "maxRunningRequests": 8,
            },
            "training.schedule": {"epochs": 1, "promptsPerBatch": PROMPTS},
            "training.checkpoint": {"everySteps": 5},
        }
        self.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(job({**small, **(changes or {})})))

    def kubectl(self, *arguments: str, stdin: str | None = None, seconds: float = 60.0) -> str:
        return self.cluster.kubectl("-n", self.namespace, *arguments, stdin=stdin, seconds=seconds)

    def patch(self, spec: Object) -> None:
        self.kubectl("patch", "rlj", self.name, "--type=merge", "-p", json.dumps({"spec": spec}))

    def delete_pod(self, pool: str) -> str:
        """Deletes one pod of a pool at once; its name."""
        name: str = self.pods(pool)[0]["metadata"]["name"]
        self.kubectl("delete", "pod", name, "--grace-period=1", "--wait=false")
        return name

    def in_pod(self, pool: str, container: str, *command: str) -> str:
        """What a command says in a container of a pool's first pod."""
        name = self.pods(pool)[0]["metadata"]["name"]
        return self.kubectl("exec", name, "-c", container, "--", *command)

    def logs(self, pool: str, container: str) -> str:
        return self.kubectl("logs", self.pods(pool)[0]["metadata"]["name"], "-c", container)

    def hurry(self) -> None:
        """From now on steps take no longer than they must."""
        self.set_pace(0.0)

    def set_pace(self, seconds: float) -> None:
        """From now on a sample's reward takes so long, for all jobs of the volume."""
        _set_pace(self.volume, seconds)

    # What can be seen

    def get(self) -> Object:
        found: Object = json.loads(self.kubectl("get", "rlj", self.name, "-o", "json"))
        return found

    @property
    def training(self) -> Object:
        found: Object = self.get().get("status", {}).get("training", {})
        return found

    def pods(self, pool: str | None = None) -> list[Object]:
        """The job's pods that are not on their way out."""
        label = f"rljob.dev/job={self.name}" + (f",{POOL_LABEL}={pool}" if pool else "")
        found = json.loads(self.kubectl("get", "pods", "-l", label, "-o", "json"))["items"]
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    @property
    def run_folder(self) -> Path:
        return self.volume / "runs" / self.namespace / self.name

    def recorded(self) -> list[Object]:
        """The run's metrics, a row for each step; what a restart trained again counts once."""
        return read_metrics(self.run_folder / METRICS_FILE).rows

    def trained(self) -> dict[int, list[int]]:
        """Prompts by step, from 0, as the run recorded them."""
        return {row["step"]: row["uids"] for row in self.recorded()}

    def rewards(self) -> dict[int, float]:
        """Mean rewards by the number of steps done, from 1, as the run recorded them."""
        return {row["step"] + 1: row["reward_mean"] for row in self.recorded()}

    def events(self, reason: str) -> list[str]:
        """Messages of the job's Events with a reason."""
        selector = f"involvedObject.kind=RLJob,involvedObject.name={self.name},reason={reason}"
        found = json.loads(self.kubectl("get", "events", f"--field-selector={selector}", "-o", "json"))
        return [each["message"] for each in found["items"]]

    # Waiting

    def wait_event(self, reason: str) -> str:
        """The message of an Event about the job, which comes a moment after what it tells of."""
        path = f"/api/v1/namespaces/{self.namespace}/events"
        self.cluster.wait(path, lambda _: bool(self.events(reason)), f"Event {reason}", seconds=SECONDS)
        return self.events(reason)[0]

    def wait(self, done: Callable[[Object], object], what: str, seconds: float = SECONDS) -> Object:
        """Until `done(job)`; the job then. TimeoutError, with what the job says of itself."""
        path = f"/apis/rljob.dev/v1alpha1/namespaces/{self.namespace}/rljobs"

        def there(jobs: list[Object]) -> bool:
            mine = [each for each in jobs if each["metadata"]["name"] == self.name]
            for each in mine:
                # A job that has ended never becomes what is waited for: told at once, not at the deadline.
                ended = {"Complete", "Failed"} & {each.get("status", {}).get("phase")}
                if ended and not done(each):
                    raise AssertionError(f"the job ended before {what}:\n{self.told()}")
            return any(done(each) for each in mine)

        try:
            found = self.cluster.wait(path, there, what, seconds=seconds)
        except TimeoutError as error:
            error.add_note(self.told())
            raise
        return next(each for each in found if each["metadata"]["name"] == self.name)

    def wait_phase(self, phase: str, seconds: float = SECONDS) -> Object:
        return self.wait(lambda job: job.get("status", {}).get("phase") == phase, phase, seconds)

    def wait_step(self, step: int, seconds: float = SECONDS) -> Object:
        """Until the status says that so many steps are done; the job makes them faster meanwhile."""

        def done(job: Object) -> bool:
            return bool(job.get("status", {}).get("training", {}).get("step", 0) >= step)

        with self.walking():
            return self.wait(done, f"step {step}", seconds)

    @contextmanager
    def walking(self) -> Iterator[None]:
        """A step takes about two seconds meanwhile."""
        self.set_pace(WALKING)
        try:
            yield
        finally:
            self.set_pace(IDLE)

    def wait_steps_more(self, steps: int, seconds: float = SECONDS) -> Object:
        """Until so many steps more are done than now."""
        return self.wait_step(self.training.get("step", 0) + steps, seconds)

    def wait_pods(self, pool: str, count: int, seconds: float = SECONDS) -> None:
        """Until a pool has so many pods, all of them ready, and none on its way out."""

        def there(pods: list[Object]) -> bool:
            ready = [
                pod for pod in pods if holds(pod, "Ready") and "deletionTimestamp" not in pod["metadata"]
            ]
            return len(pods) == len(ready) == count

        label = f"rljob.dev/job={self.name},{POOL_LABEL}={pool}"
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        self.cluster.wait(path, there, f"{count} ready pods of {pool}", seconds=seconds, labelSelector=label)

    def told(self) -> str:
        """What a person would look at: the pods, the job's conditions, Events, the driver's last lines."""
        parts = [
            self.kubectl("get", "pods", "-o", "wide"),
            yaml.safe_dump(self.get().get("status", {}).get("conditions", [])),
            self.kubectl("get", "events", "--field-selector=type=Warning"),
        ]
        for pod in self.pods("head"):
            try:
                parts.append(self.kubectl("logs", pod["metadata"]["name"], "-c", "driver", "--tail=30"))
            except subprocess.CalledProcessError as error:  # the container has not started
                parts.append(str(error.stderr))
        return "\n".join(parts)


def _set_pace(folder: Path, seconds: float) -> None:
    # In one step: the reward reads the old pace or the new one.
    new = folder / f"{PACE}.new"
    new.write_text(str(seconds))
    new.replace(folder / PACE)


def assert_every_prompt_once(run: NodeJob, steps: int) -> None:
    """All steps are there, and each prompt of the data was trained in exactly one of them."""
    trained = run.trained()
    assert sorted(trained) == list(range(steps))
    assert sorted(uid for uids in trained.values() for uid in uids) == list(range(steps * PROMPTS))
