"""Pods as KubeRay makes them, many of them, and an informer's view of them."""

import asyncio
import sys
from contextlib import suppress
from typing import Any

import msgspec

from rljob_client.errors import AlreadyExists
from rljob_client.objects import Item
from rljob_client.resources import PODS
from rljob_operator.kube.client import ApiClient
from rljob_operator.kube.informer import Selection

JOB_LABEL = "rljob.dev/job"
PODS_PER_JOB = 10
_AT_A_TIME = 48
"""Requests under way."""


class Condition(msgspec.Struct, gc=False):
    type: str
    status: str


class PodStatus(msgspec.Struct, gc=False):
    phase: str = ""
    conditions: list[Condition] = []


class PodSpec(msgspec.Struct, rename="camel", gc=False):
    node_name: str = ""


class Pod(Item):
    spec: PodSpec
    status: PodStatus


Owner = tuple[str, str]
View = tuple[str, str, bool, str]
"""UID, phase, ready, node."""


def job_of(namespace: str, number: int) -> Owner:
    """The owner of the pods of a job."""
    return namespace, f"job-{number}"


def pods(namespace: str | None) -> Selection[Pod, Owner, View]:
    """All pods that carry the job's label, by job."""
    return Selection(PODS, Pod, _owner, _view, namespace, JOB_LABEL)


def _owner(pod: Pod) -> Owner | None:
    return sys.intern(pod.metadata.namespace), sys.intern(pod.metadata.labels[JOB_LABEL])


def _view(pod: Pod) -> View:
    ready = any(each.type == "Ready" and each.status == "True" for each in pod.status.conditions)
    return pod.metadata.uid, sys.intern(pod.status.phase), ready, sys.intern(pod.spec.node_name)


async def make_pods(client: ApiClient, namespace: str, count: int) -> None:
    """`count` pods of about 10 KB each, `PODS_PER_JOB` to a job, that no scheduler takes."""
    turn = asyncio.Semaphore(_AT_A_TIME)

    async def make(number: int) -> None:
        # Of a creation that is tried again, the first try was carried out and its answer came too late.
        async with turn:
            with suppress(AlreadyExists):
                await client.create(manifest(namespace, number))

    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(make(number))


def manifest(namespace: str, number: int) -> dict[str, Any]:
    """A worker pod."""
    job = f"job-{number // PODS_PER_JOB}"
    env = [{"name": f"RAY_SETTING_{n}", "value": f"value-{n}-of-{job}"} for n in range(50)]
    probe = {
        "exec": {
            "command": ["bash", "-c", "wget -T 2 -q -O- http://localhost:52365/api/local_raylet_healthz"]
        }
    }
    mounts = [{"name": f"volume-{n}", "mountPath": f"/mnt/{n}"} for n in range(6)]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": namespace,
            "name": f"{job}-1-fast-rollout-worker-{number}",
            "labels": {
                JOB_LABEL: job,
                "rljob.dev/attempt": "1",
                "rljob.dev/pool": "fastRollout",
                "ray.io/cluster": f"{job}-1",
                "ray.io/group": "fast-rollout",
                "ray.io/is-ray-node": "yes",
            },
        },
        "spec": {
            "schedulerName": "nobody",
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "ray-worker",
                    "image": "rljob/runtime:cpu",
                    "env": env,
                    "livenessProbe": probe,
                    "readinessProbe": probe,
                    "volumeMounts": mounts,
                    "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
                }
            ],
            "volumes": [{"name": f"volume-{n}", "emptyDir": {}} for n in range(6)],
        },
    }
